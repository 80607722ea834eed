"""Folders and buckets for deployment.batch: files in and out of them, and the manifest of what was done."""

from __future__ import annotations

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
OBJECT_STORES = ("s3", "gcs")
THREADS = 16  # that wait for a bucket at a time
SECONDS = (1.0, 60.0)  # between two writes of what was done: at first, at most, and twice the last in between
SCHEMA = pa.schema(
    {
        "image": pa.string(),  # its key below the source; of a pair its name
        "bytes": pa.int64(),
        "modified": pa.int64(),  # nanoseconds since 1970
        "written": pa.list_(pa.string()),  # keys below the target
        "error": pa.string(),
        "remarks": pa.list_(pa.string()),
        "faults": pa.list_(pa.string()),
        "seconds": pa.float64(),
        "tiles": pa.string(),  # JSON, as all that has names of its own
        "scores": pa.string(),
        "std_white": pa.float64(),
        "error_white": pa.float64(),
        "checkpoint": pa.string(),
        "preset": pa.string(),
        "device": pa.string(),
        # What a restoration depends on beside the image.
        "checkpoint_sha256": pa.string(),
        "settings": pa.string(),
        "precision": pa.string(),
        "seed": pa.int64(),
        "guard": pa.string(),
        "uncertainty": pa.bool_(),
        "compare": pa.bool_(),
        "depth": pa.int64(),
        "tile": pa.int64(),
        "predictor_tile": pa.int64(),
        "format": pa.string(),
        "recipes": pa.string(),  # of the scores
    }
)


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
        self.base, self._stores_objects = base.rstrip("/"), self.files.type_name in OBJECT_STORES

    def __reduce__(self):
        return Place, (self.url,)

    def list(self, folder: str = "", missing: bool = False) -> dict[str, fs.FileInfo]:
        """The files below, or below a folder there, by key and sorted, without what is hidden.

        Where `missing` is allowed, what does not exist holds nothing.
        """
        root = f"{self.base}/{folder}".rstrip("/")
        with self._said("listed"):
            found = self.files.get_file_info(fs.FileSelector(root, allow_not_found=missing, recursive=True))
        shown = [file for file in found if file.is_file and not re.search(r"/\.", file.path[len(root) :])]
        return {file.path[len(self.base) + 1 :]: file for file in sorted(shown, key=lambda file: file.path)}

    def contains(self, other: Place) -> bool:
        """Whether another place is this one, or lies in it."""
        return f"{other.base}/".startswith(f"{self.base}/") and other.files.type_name == self.files.type_name

    def stat(self, keys: Sequence[str]) -> dict[str, fs.FileInfo]:
        """Files by their keys; StoreError where one is missing."""
        with self._said("listed"), ThreadPoolExecutor(THREADS) as threads:
            found = dict(
                zip(keys, threads.map(lambda key: self.files.get_file_info(f"{self.base}/{key}"), keys), strict=True)
            )
        for key, file in found.items():
            if not file.is_file:
                raise StoreError(f"{self.url}/{key} does not exist")
        return found

    def read(self, key: str) -> bytes:
        """The contents of a file."""
        with self._said("read", key), self.files.open_input_file(f"{self.base}/{key}") as file:
            return file.readall()

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files by key, each whole or not at all.

        An object store shows an object when all of it is there. In a folder all are written under temporary names
        first, then renamed.
        """
        with self._said("written"):
            names = {key: f"{self.base}/{key}" for key in files}
            if not self._stores_objects:
                self.files.create_dir(f"{self.base}/{PARTS}")
                names = {key: f"{self.base}/{PARTS}/{uuid4().hex}" for key in files}
            for key, content in files.items():
                with self.files.open_output_stream(names[key]) as stream:
                    stream.write(content)
            for key in () if self._stores_objects else files:
                self.files.create_dir(f"{self.base}/{key}".rpartition("/")[0])
                self.files.move(names[key], f"{self.base}/{key}")

    def remove(self, keys: Iterable[str]) -> None:
        """Remove files that may be gone already; keys that lead elsewhere are passed over."""
        for key in keys:
            if ".." not in PurePosixPath(key).parts:
                with self._said("written"):
                    if self.files.get_file_info(f"{self.base}/{key}").is_file:
                        self.files.delete_file(f"{self.base}/{key}")

    def clear(self, folder: str) -> None:
        """Remove a folder; of PARTS, what killed processes left of `write`."""
        with self._said("written"):
            if self.files.get_file_info(f"{self.base}/{folder}").type == fs.FileType.Directory:
                self.files.delete_dir(f"{self.base}/{folder}")

    @contextmanager
    def _said(self, done: str, key: str = "") -> Iterator[None]:
        """What pyarrow raises, in one sentence."""
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as error:
            what = f"{self.url}/{key}" if key else self.url
            raise StoreError(f"{what} cannot be {done}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """What went wrong, without where in a library, and without the number of a request."""
    text = " ".join(str(error).split())
    if getattr(error, "errno", None):
        return os.strerror(error.errno)
    aws = re.search(r"AWS Error (\w+) during \w+ operation: (.*?)( \(Request ID.*)?$", text)
    return f"{aws[2].rstrip('.')} ({aws[1]})" if aws else text


def place_of_paths(source: str | Dataset) -> tuple[Place, dict[str, fs.FileInfo]]:
    """The place below which all files lie that a table names, and these files by key.

    Args:
        source: a .parquet file with a column `path`, or a dataset of Ray with that column.
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
    paths = [path.removeprefix(scheme + sign) if sign else os.path.abspath(path) for path in dict.fromkeys(paths)]
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    place = Place(scheme + sign + root)
    return place, place.stat(sorted(path[len(root) :].lstrip("/") for path in paths))


class Manifest:
    """manifest.parquet in the target: a row for each image, with how it was restored or why it could not be.

    Rows are kept for a while, then written as a part; `close` makes one file of all.

    Args:
        place: the target.
    """

    def __init__(self, place: Place):
        self.place, self._rows, self._written, self._wait = place, [], time.monotonic(), SECONDS[0]
        self._parts, self.there = list(place.list(ROWS, missing=True)), place.list(missing=True)
        self.table = SCHEMA.empty_table()
        for key in [MANIFEST] * (MANIFEST in self.there) + self._parts:
            self.table = _newest(self.table, self._read(key))

    def done(self, wanted: Mapping[str, tuple[int, int]], facts: Mapping[str, Any]) -> set[str]:
        """The images that were restored with the same facts and are unchanged, and whose restorations are there.

        Args:
            wanted: bytes and time of change of each image.
            facts: what a restoration depends on beside the image.
        """
        same = pc.field("error").is_null()
        for name, value in plain(facts).items():
            same &= pc.field(name).is_null() if value is None else pc.field(name) == value
        rows = (row for batch in self.table.filter(same).to_batches() for row in batch.to_pylist())
        stamps = ((row["image"], (row["bytes"], row["modified"]), row["written"]) for row in rows)
        return {
            image for image, stamp, written in stamps if wanted.get(image) == stamp and self.there.keys() >= {*written}
        }

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Rows of what was done just now."""
        self._rows += rows
        if time.monotonic() - self._written > self._wait:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are only here."""
        self._written, self._wait = time.monotonic(), min(SECONDS[1], 2 * self._wait)
        if not self._rows:
            return
        rows = pa.Table.from_pylist(self._rows, SCHEMA)
        key = f"{ROWS}/{time.time_ns()}.parquet"  # in the order in which they were written
        self.place.write({key: _parquet(rows)})
        self._remove_replaced(rows)
        self.table = _newest(self.table, rows)
        self._rows, self._parts = [], [*self._parts, key]

    def close(self) -> None:
        """One file of all rows."""
        self.flush()
        if self._parts:
            self.place.write({MANIFEST: _parquet(self.table)})
        self.place.clear(ROWS)
        self.place.clear(PARTS)

    def _remove_replaced(self, rows: pa.Table) -> None:
        """Remove what lies there of earlier restorations of these images and was not written again."""
        new = {row["image"]: set(row["written"]) for row in rows.filter(pc.field("error").is_null()).to_pylist()}
        before = (
            self.table.filter(pc.field("image").isin(pa.array(new, pa.string())))
            .select(["image", "written"])
            .to_pylist()
        )
        self.place.remove(key for row in before for key in {*(row["written"] or ())} - new[row["image"]])

    def _read(self, key: str) -> pa.Table:
        try:
            return pq.read_table(pa.BufferReader(self.place.read(key))).cast(SCHEMA)
        except (pa.ArrowInvalid, ValueError) as error:
            raise StoreError(
                f"{self.place.url}/{key} is no manifest of deployment.batch ({error}): remove it"
            ) from None


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as they stand in the manifest: what has names of its own as JSON."""
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items() if isinstance(value, dict)}
    return dict(facts) | texts


def _newest(before: pa.Table, rows: pa.Table) -> pa.Table:
    """Both, where an image is in both the new row."""
    return pa.concat_tables([before.filter(~pc.field("image").isin(rows["image"])), rows])


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()
