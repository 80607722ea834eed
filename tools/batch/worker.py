"""The workers of a batch in Ray's processes: read files from a bucket, restore them, and write the results."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import ray
from ray.actor import ActorHandle
from tqdm import tqdm

from deblur.restoration.options import Options
from deblur.restoration.outputs import Extras, Names
from deblur.restoration.restorer import Restorer
from deblur.tools.batch.store import SCHEMA, THREADS, Place, StoreError, on_disk, row_values

ROWS = SCHEMA.append(pa.field("stop", pa.string()))  # the reason if the job must end here


@dataclass(frozen=True)
class Job:
    """The task that all workers share.

    Args:
        options, numbers: as for `Restorer`.
        source, target: places of the images and of their restorations.
    """

    options: Options
    numbers: dict[str, Any]
    source: Place
    target: Place


class Worker:
    """A pipeline that reads chunks of images from one place and writes their restorations to another.

    Args:
        job: its task.
        begun: a handle of `Begun`, if Ray replaces workers that die and sends their chunks again. An error that is not
            specific to an image then ends the process, since after some errors it cannot use its GPU any more. None:
            errors are raised.
    """

    def __init__(self, job: Job, begun: ActorHandle | None = None):
        self.job, self.begun, self.restorer = job, begun, Restorer(job.options, job.numbers)

    def __call__(self, chunk: pa.Table) -> pa.Table:
        """The manifest's row for each image of a chunk (`batch.images_of`); none if the chunk has killed a worker.

        A row with a sentence under `stop` ends the job, because nothing can be written.
        """
        done = []
        try:
            if self.begun is None or self._is_first(chunk):
                with TemporaryDirectory(prefix="batch") as folder:
                    for row in self.rows(chunk.to_pylist(), Path(folder)):
                        done.append(row)
        except OSError as error:
            done.append({"stop": " ".join(str(error).split())})
        except Exception:
            if self.begun is None:
                raise
            traceback.print_exc()  # into Ray's logs
            os._exit(1)
        return pa.Table.from_pylist(done, ROWS)

    def rows(self, chunk: Sequence[dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
        """Yield the manifest's rows for a chunk, whose files are kept in a folder meanwhile."""
        unread = self.fetch([row["key"] for row in chunk], folder)
        by_path = {folder / on_disk(row["key"]): row for row in chunk}  # the noise depends on the name itself
        out = folder / ".out"  # no key begins with a dot
        wanted = {path: row for path, row in by_path.items() if row["key"] not in unread}
        work = [(path, Names(out / row["target"], row["stem"])) for path, row in wanted.items()]
        yield from (self.row(row, error=unread[row["key"]]) for row in chunk if row["key"] in unread)
        refused: dict[Path, str] = {}
        with ThreadPoolExecutor(THREADS) as threads:  # the next image is restored while the last one is uploaded
            sent = []
            for restoration in self.restorer.restore(work, tqdm(disable=True), refused.__setitem__):
                row = by_path[restoration.photograph.path]
                files, facts = self.restorer.write(restoration)
                contents = {file.relative_to(out).as_posix(): file.read_bytes() for file in files}
                done = self.row(row, written=list(contents), remarks=restoration.notes, **facts)
                sent.append((threads.submit(self.job.target.write, contents), done))
            for writing, done in sent:
                writing.result()
                yield done
        for path, sentence in refused.items():
            yield self.row(by_path[path], error=sentence.removeprefix(f"{path} "))

    def fetch(self, keys: Sequence[str], folder: Path) -> dict[str, str]:
        """Copy files of the source to a folder; returns key -> reason for those that cannot be read."""

        def fetch(key: str) -> str | None:
            try:
                content = self.job.source.read(key)
            except StoreError as error:
                return str(error).removeprefix(f"{self.job.source.url}/{key} ")
            copy = folder / on_disk(key)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)

        with ThreadPoolExecutor(THREADS) as threads:
            return {key: why for key, why in zip(keys, threads.map(fetch, keys), strict=True) if why}

    def row(self, row: dict[str, Any], **facts: Any) -> dict[str, Any]:
        """A row of the manifest for an image."""
        return row_values({"image": row["key"], "bytes": row["bytes"], "modified": row["modified"]} | facts)

    def _is_first(self, chunk: pa.Table) -> bool:
        return ray.get(self.begun.first.remote(chunk["key"][0].as_py()))


def describe(job: Job) -> tuple[dict[str, Any], str, list[str], Extras]:
    """What the manifest's rows depend on, the same in words, notes on settings without effect, and what is written."""
    restorer = Restorer(job.options, job.numbers)
    return restorer.facts, restorer.title, restorer.remarks, restorer.extras
