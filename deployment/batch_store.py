"""Folders and buckets for deployment.batch: files in and out of them, and the manifest of what was done."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

if TYPE_CHECKING:
    from ray.data import Dataset

MANIFEST = "manifest.parquet"  # in the target
ROWS = ".rows"  # there, what will be part of the manifest
PARTS = ".parts"  # there, what has not got its name yet
THREADS = 16  # that wait for a bucket at a time
SECONDS = 20  # between two writes of what was done
KINDS = {  # of the manifest's columns; what has names of its own is JSON
    pa.string(): "image error tiles scores checkpoint preset device checkpoint_sha256 settings precision guard format"
    " recipes",
    pa.list_(pa.string()): "written remarks faults",
    pa.int64(): "bytes modified seed depth tile predictor_tile",
    pa.float64(): "seconds std_white error_white",
    pa.bool_(): "uncertainty compare",
}
SCHEMA = pa.schema([(name, kind) for kind, names in KINDS.items() for name in names.split()])


class StoreError(OSError):
    """A folder or bucket cannot be used; the message is one sentence that names it."""


class Place:
    """A folder, or a prefix of a bucket; each process opens it for itself, with the credentials that it has.

    Args:
        url: a path, or s3://BUCKET/PREFIX, gs://BUCKET/PREFIX and whatever else pyarrow has a file system for.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        # With it a small object is one request, and not three.
        more = "&?"["?" not in url] + "allow_delayed_open=true" if url.startswith("s3://") else ""
        with self._said("opened"):
            self.files, base = fs.FileSystem.from_uri(url + more if "://" in url else str(Path(url).resolve()))
        self.base, self._is_bucket = base.rstrip("/"), self.files.type_name in ("s3", "gcs")

    def __reduce__(self):
        return Place, (self.url,)

    def list(self, folder: str = "", missing: bool = False) -> dict[str, fs.FileInfo]:
        """The files below, by key and sorted, but no hidden ones; what is `missing` may hold nothing."""
        root = f"{self.base}/{folder}".rstrip("/")
        with self._said("listed"):
            found = self.files.get_file_info(fs.FileSelector(root, allow_not_found=missing, recursive=True))
        shown = [file for file in found if file.is_file and "/." not in file.path[len(root) :]]
        return {file.path[len(self.base) + 1 :]: file for file in sorted(shown, key=lambda file: file.path)}

    def stat(self, key: str) -> fs.FileInfo:
        """What a list says of a file."""
        with self._said("read", key):
            if not (file := self.files.get_file_info(f"{self.base}/{key}")).is_file:
                raise FileNotFoundError(errno.ENOENT, key)
        return file

    def contains(self, other: Place) -> bool:
        """Whether another place is this one, or lies in it."""
        return f"{other.base}/".startswith(f"{self.base}/") and other.files.type_name == self.files.type_name

    def read(self, key: str) -> bytes:
        """The contents of a file."""
        with self._said("read", key), self.files.open_input_file(f"{self.base}/{key}") as file:
            return file.readall()

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files by key, each whole or not at all; in a folder they get their names when all are there."""
        parts = {key: key if self._is_bucket else f"{PARTS}/{uuid4().hex}" for key in files}
        with self._said("written"):
            if not self._is_bucket:
                self.files.create_dir(f"{self.base}/{PARTS}")
            for key, part in parts.items():
                with self.files.open_output_stream(f"{self.base}/{part}") as stream:
                    stream.write(files[key])
            for key, part in parts.items():
                if part != key:
                    self.files.create_dir(f"{self.base}/{key}".rpartition("/")[0])
                    self.files.move(f"{self.base}/{part}", f"{self.base}/{key}")

    def remove(self, keys: Iterable[str]) -> None:
        """Remove files that may be gone already, but none outside of this place."""
        with self._said("written"):
            for key in keys:
                inside = ".." not in PurePosixPath(key).parts
                if inside and self.files.get_file_info(f"{self.base}/{key}").is_file:
                    self.files.delete_file(f"{self.base}/{key}")

    def clear(self, folder: str) -> None:
        """Remove a folder, if there is one."""
        with self._said("written"):
            if self.files.get_file_info(f"{self.base}/{folder}").type == fs.FileType.Directory:
                self.files.delete_dir(f"{self.base}/{folder}")

    @contextmanager
    def _said(self, done: str, key: str = "") -> Iterator[None]:
        """What pyarrow raises, in one sentence without its place in a library or the number of a request."""
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as error:
            why = os.strerror(error.errno) if getattr(error, "errno", None) else " ".join(str(error).split())
            if aws := re.search(r"AWS Error (\w+) during \w+ operation: (.*?)( \(Request ID.*)?$", why):
                why = f"{aws[2].rstrip('.')} ({aws[1]})"
            what = f"{self.url}/{key}" if key else self.url
            raise StoreError(f"{what} cannot be {done}: {why}") from None


def place_of_paths(source: str | Dataset) -> tuple[Place, dict[str, fs.FileInfo]]:
    """The place below which all files lie that a .parquet file, or a dataset of Ray, has in its column `path`.

    Returns:
        The place, and the files there by key.
    """
    if isinstance(source, str):
        folder, _, name = source.rpartition("/")
        table = pq.read_table(pa.BufferReader(Place(folder or ".").read(name)))
        if "path" not in table.column_names:
            raise ValueError(f"{source} has no column path: it has {', '.join(table.column_names)}")
        paths = table["path"].to_pylist()
    else:
        paths = [row["path"] for row in source.select_columns(["path"]).iter_rows()]
    if not paths:
        raise ValueError(f"{source} names no image")
    scheme, sign, _ = paths[0].rpartition("://")
    whole = os.path.normpath if sign else os.path.abspath
    paths = {whole(path.removeprefix(scheme + sign)) for path in paths}
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    place, keys = Place(scheme + sign + root), sorted(path[len(root) :].lstrip("/") for path in paths)
    with ThreadPoolExecutor(THREADS) as threads:
        return place, dict(zip(keys, threads.map(place.stat, keys), strict=True))


class Manifest:
    """manifest.parquet in the target: a row for each image, with how it was restored or why it could not be.

    Rows are kept for a while, then written as a part; `close` makes one file of all.
    """

    def __init__(self, place: Place):
        self.place, self.table, self._there = place, SCHEMA.empty_table(), set(place.list(missing=True))
        self._rows, self._written, self._replaced = [], 0.0, set()
        for key in [MANIFEST] * (MANIFEST in self._there) + list(place.list(ROWS, missing=True)):
            try:
                self._merge(pq.read_table(pa.BufferReader(place.read(key))).cast(SCHEMA))
            except (pa.ArrowInvalid, ValueError) as error:
                what = f"{place.url}/{key} is no manifest of deployment.batch"
                raise StoreError(f"{what} ({error}): remove it") from None

    def done(self, wanted: Mapping[str, tuple[int, int]], facts: Mapping[str, Any]) -> set[str]:
        """The images, given with their bytes and times of change, whose restorations by the same facts are there."""
        facts = plain(facts) | {"error": None}
        rows = (row for batch in self.table.to_batches(10_000) for row in batch.to_pylist())
        return {
            row["image"]
            for row in rows
            if facts.items() <= row.items()
            and wanted.get(row["image"]) == (row["bytes"], row["modified"])
            and self._there.issuperset(row["written"])
        }

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Rows of what was done just now."""
        self._rows += rows
        if time.monotonic() - self._written > SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are only here."""
        if self._rows:
            rows = pa.Table.from_pylist(self._rows, SCHEMA)
            self.place.write({f"{ROWS}/{time.time_ns()}.parquet": _parquet(rows)})  # named in their order
            self._merge(rows)
        self._rows, self._written = [], time.monotonic()

    def close(self) -> None:
        """Make one file of all rows, and remove what was replaced."""
        self.flush()
        if self.table.num_rows:
            self.place.write({MANIFEST: _parquet(self.table)})
        # Not before: until now a file could become that of another image, a_0.png of a.png that of a_0.png.
        self.place.remove(self._replaced.difference(pc.list_flatten(self.table["written"]).to_pylist()))
        self.place.clear(ROWS)
        self.place.clear(PARTS)

    def _merge(self, rows: pa.Table) -> None:
        """Put rows in the place of those of the same images."""
        restored = pc.field("image").isin(rows.filter(pc.field("error").is_null())["image"])
        self._replaced.update(pc.list_flatten(self.table.filter(restored)["written"]).to_pylist())
        self.table = pa.concat_tables([self.table.filter(~pc.field("image").isin(rows["image"])), rows])


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as they stand in the manifest: what has names of its own as JSON."""
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items() if isinstance(value, dict)}
    return dict(facts) | texts


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()
