"""Folders and buckets: reading and writing files, and the manifest of finished images."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from deblur.data.files import search

MANIFEST_TABLE = "manifest.parquet"  # in the target
ROWS_FOLDER = ".rows"  # in the target: rows that will be merged into the manifest
PARTS_FOLDER = ".parts"  # in the target: files that do not have their final name yet
REQUESTS_AT_ONCE = 16  # concurrent requests to a bucket
SECONDS_BETWEEN_WRITES = 20  # between two writes of the manifest's rows
COLUMNS = {  # types of the manifest's columns; dicts are stored as JSON
    pa.string(): "image error tiles checkpoint preset device checkpoint_sha256 settings precision metadata on_fault"
    " format scale restore mask",
    pa.list_(pa.string()): "written remarks faults",
    pa.int64(): "bytes modified seed depth quality tile predictor_tile max_side",
    pa.float64(): "seconds std_white error_white bound_white working_scale restored_share",
    pa.bool_(): "uncertainty error_bound compare",
}
SCHEMA = pa.schema([(name, kind) for kind, names in COLUMNS.items() for name in names.split()])


class StoreError(OSError):
    """A folder or bucket cannot be used; the message names it."""


def local_name(key: str) -> str:
    """The name of a local file by its key: Arrow holds UTF-8 alone, so its other bytes are escaped in keys."""
    return re.sub(r"\\u(dc[89a-f][0-9a-f])", lambda match: chr(int(match[1], 16)), key)


class Place:
    """A folder, or a prefix in a bucket. Each process opens it itself, with its own credentials.

    A file is named by its key, its path below the place; see `local_name`.

    Args:
        url: a path, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, or any other URL that pyarrow has a file system for.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        # With this option a small object takes one request instead of three.
        if url.startswith("s3://"):
            url += ("&" if "?" in url else "?") + "allow_delayed_open=true"
        with self._in_one_sentence("opened"):
            self.files, base = fs.FileSystem.from_uri(url if "://" in url else str(Path(url).resolve()))
        self.base, self._is_bucket = base.rstrip("/"), self.files.type_name in ("s3", "gcs")
        self._is_local = self.files.type_name == "local"

    def __reduce__(self):
        return Place, (self.url,)

    def list(self, folder: str = "", missing: bool = False) -> dict[str, fs.FileInfo]:
        """The files below, by key and sorted, without hidden ones; with `missing` the folder need not exist."""
        root = f"{self.base}/{folder}".rstrip("/")
        with self._in_one_sentence("listed"):
            if self._is_local and (not missing or os.path.isdir(root)):
                # Not by pyarrow, which follows links in circles and knows no names but UTF-8.
                entries = []
                for path in search.walk(Path(root)):
                    status, name = path.stat(), str(path).encode("utf-8", "backslashreplace").decode()
                    size, modified = status.st_size, status.st_mtime_ns
                    entries.append(fs.FileInfo(name, fs.FileType.File, size=size, mtime_ns=modified))
            else:
                entries = self.files.get_file_info(fs.FileSelector(root, allow_not_found=missing, recursive=True))
        shown = [file for file in entries if file.is_file and "/." not in file.path[len(root) :]]
        return {file.path[len(self.base) + 1 :]: file for file in sorted(shown, key=lambda file: file.path)}

    def inputs(self) -> dict[str, fs.FileInfo]:
        """`list` without restored images: targets of batches, and what a manifest.json lists.

        Raises StoreError if this place itself is a target, or holds nothing else.
        """
        files = self.list()
        targets = {key[: -len(MANIFEST_TABLE)] for key in files if PurePosixPath(key).name == MANIFEST_TABLE}
        manifests = [PurePosixPath(key) for key in files if PurePosixPath(key).name == search.MANIFEST]
        results = {str(key.parent / name) for key in manifests for name in search.written_by(self.read(str(key)))}
        left = {key for key in files if not key.startswith(tuple(targets))} - results
        if "" in targets or (results and left <= set(map(str, manifests))):
            raise StoreError(f"{self.url} holds restored images (it has a manifest): give the folder of the originals")
        return {key: info for key, info in files.items() if key in left}

    def contains(self, other: Place) -> bool:
        """Whether another place is this one, or lies inside it."""
        return f"{other.base}/".startswith(f"{self.base}/") and other.files.type_name == self.files.type_name

    def inside(self, other: Place, keys: Iterable[str]) -> list[str]:
        """The keys of another place's files as they are in this one; none if that place does not lie in it."""
        if not self.contains(other):
            return []
        folder = f"{other.base}/"[len(self.base) + 1 :]
        return [folder + key for key in keys]

    def read(self, key: str) -> bytes:
        """The content of a file."""
        with self._in_one_sentence("read", key):
            if self._is_local:
                return self._local(key).read_bytes()
            with self.files.open_input_file(f"{self.base}/{key}") as file:
                return file.readall()

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files by key, each atomically; in a folder they are renamed when all are written."""
        parts = {key: key if self._is_bucket else f"{PARTS_FOLDER}/{uuid4().hex}" for key in files}
        with self._in_one_sentence("written"):
            if not self._is_bucket:
                self.files.create_dir(f"{self.base}/{PARTS_FOLDER}")
            for key, part in parts.items():
                with self.files.open_output_stream(f"{self.base}/{part}") as stream:
                    stream.write(files[key])
            for key, part in parts.items():
                if self._is_local:
                    self._local(key).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(self._local(part), self._local(key))
                elif part != key:
                    self.files.create_dir(f"{self.base}/{key}".rpartition("/")[0])
                    self.files.move(f"{self.base}/{part}", f"{self.base}/{key}")

    def remove(self, keys: Iterable[str]) -> None:
        """Remove files if they exist, but none outside this place."""
        with self._in_one_sentence("written"):
            for key in keys:
                if self._is_local:
                    file = self._local(key)
                    is_inside = file.parent.resolve().is_relative_to(Path(self.base).resolve())
                    if is_inside and file.is_file():
                        file.unlink()
                elif ".." not in PurePosixPath(key).parts and self.files.get_file_info(f"{self.base}/{key}").is_file:
                    self.files.delete_file(f"{self.base}/{key}")

    def clear(self, folder: str) -> None:
        """Remove a folder if it exists."""
        with self._in_one_sentence("written"):
            if self.files.get_file_info(f"{self.base}/{folder}").type == fs.FileType.Directory:
                self.files.delete_dir(f"{self.base}/{folder}")

    def _local(self, key: str) -> Path:
        return Path(self.base, local_name(key))

    @contextmanager
    def _in_one_sentence(self, done: str, key: str = "") -> Iterator[None]:
        """Turn an error of pyarrow into one sentence without source locations and request ids."""
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as error:
            why = os.strerror(error.errno) if getattr(error, "errno", None) else " ".join(str(error).split())
            if aws := re.search(r"AWS Error (\w+) during \w+ operation: (.*?)( \(Request ID.*)?$", why):
                why = f"{aws[2].rstrip('.')} ({aws[1]})"
            place = f"{self.url}/{key}" if key else self.url
            raise StoreError(f"{place} cannot be {done}: {why}") from None


class ManifestTable:
    """manifest.parquet in the target: a row per image, with how it was restored or why it could not be.

    Rows are collected and written in parts; `close` merges them into one file.
    """

    def __init__(self, place: Place):
        self.place, self.table, self._there = place, SCHEMA.empty_table(), set(place.list(missing=True))
        self._rows, self._written, self._replaced = [], 0.0, set()
        stored = [*self._there.intersection([MANIFEST_TABLE]), *place.list(ROWS_FOLDER, missing=True)]
        for key in stored:
            try:
                table = pq.read_table(pa.BufferReader(place.read(key)))
                if not {"image", "written", "bytes", "modified", "settings"} <= set(table.column_names):
                    raise ValueError("other columns")
                # Older ones have other columns, too, and lack some.
                table = pa.concat_tables([SCHEMA.empty_table(), table], promote_options="default")
                self._merge(table.select(SCHEMA.names).cast(SCHEMA))
            except (pa.ArrowInvalid, ValueError, KeyError) as error:
                what = f"{place.url}/{key} is no manifest of python -m tools.batch"
                raise StoreError(f"{what} ({error}): remove it") from None

    def done(self, wanted: Iterable[Mapping[str, Any]], facts: Mapping[str, Any]) -> set[str]:
        """The keys of the wanted images whose restorations with the same facts exist.

        An image is a `key`, its `bytes`, when it was `modified`, and the `files` that it would be written to now: one
        that changed, or has other files, is not done.
        """
        stored, done = {row["image"]: row for row in self._rows_of_table()}, set()
        for image in wanted:
            stamp = {"bytes": image["bytes"], "modified": image["modified"], "error": None}
            row = stored.get(image["key"], {})
            if (row_values(facts) | stamp).items() <= row.items():
                is_there = self._there.issuperset(row["written"])
                if is_there and set(image["files"]) == set(row["written"]):
                    done.add(image["key"])
        return done

    def owned(self, images: set[str], replaced: set[str]) -> dict[str, str]:
        """The files of other images than these, and whose they are, without those of restorations that are replaced."""
        owners = {}
        for row in self._rows_of_table():
            written = row["written"] or []
            if row["image"] not in images and not replaced.issuperset(written[:1]):
                owners |= dict.fromkeys(self._there.intersection(written), row["image"])
        return owners

    def _rows_of_table(self) -> Iterator[dict[str, Any]]:
        return (row for batch in self.table.to_batches(10_000) for row in batch.to_pylist())

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows of finished images."""
        self._rows += rows
        if time.monotonic() - self._written > SECONDS_BETWEEN_WRITES:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are not on disk yet."""
        if self._rows:
            rows = pa.Table.from_pylist(self._rows, SCHEMA)
            self.place.write({f"{ROWS_FOLDER}/{time.time_ns()}.parquet": _parquet(rows)})  # names sort by time
            self._merge(rows)
        self._rows, self._written = [], time.monotonic()

    def close(self) -> None:
        """Merge all rows into one file, and remove the files of replaced restorations."""
        self.flush()
        if self.table.num_rows:
            self.place.write({MANIFEST_TABLE: _parquet(self.table)})
        # Only now: before, a replaced file could still become another image's, such as a_0.png of a.png or of a_0.png.
        self.place.remove(self._replaced.difference(pc.list_flatten(self.table["written"]).to_pylist()))
        self.place.clear(ROWS_FOLDER)
        self.place.clear(PARTS_FOLDER)

    def _merge(self, rows: pa.Table) -> None:
        """Replace the rows of the same images."""
        # As an array, since of no values isin would not know the type.
        restored = pc.field("image").isin(rows.filter(pc.field("error").is_null())["image"].combine_chunks())
        self._replaced.update(pc.list_flatten(self.table.filter(restored)["written"]).to_pylist())
        self.table = pa.concat_tables([self.table.filter(~pc.field("image").isin(rows["image"])), rows])


def row_values(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts in the manifest's form: dicts as JSON."""
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items() if isinstance(value, dict)}
    return dict(facts) | texts


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()
