"""What deployment.batch runs in Ray's processes: the pipeline, and around it files out of a bucket and into one."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch
from tqdm import tqdm

from deployment.batch_store import SCHEMA, Place, StoreError, plain
from deployment.restoration import Restoration, Restorer
from models.options import Options

if TYPE_CHECKING:
    from ray.actor import ActorHandle

THREADS = 16  # that wait for a bucket at a time
ROWS = SCHEMA.append(pa.field("stop", pa.string()))  # why the job ends here


@dataclass(frozen=True)
class Job:
    """What all workers do.

    Args:
        options, numbers: as for `Restorer`.
        source, target: where the images lie, and where their restorations go.
        score: metrics of the scores that are made in place of restorations.
        threads: of torch in a worker.
    """

    options: Options
    numbers: dict[str, Any]
    source: Place
    target: Place
    score: Sequence[str]
    threads: int


class Worker:
    """A pipeline that takes chunks of images out of one place and puts their restorations into another.

    Args:
        job: what it does.
        begun: a handle of `Begun`, where Ray replaces workers that die and sends their chunks again. An error that is
            no image's own then ends the process: after some of them a GPU is of no use to it. None: errors are raised.
    """

    def __init__(self, job: Job, begun: ActorHandle | None = None):
        torch.set_num_threads(job.threads)
        self.job, self.begun = job, begun
        self.restorer = Restorer(job.options, job.numbers)

    @property
    def facts(self) -> dict[str, Any]:
        """What a row depends on beside the image."""
        return self.restorer.facts

    def __call__(self, chunk: pa.Table) -> pa.Table:
        """Restore a chunk.

        Args:
            chunk: `key`, `bytes` and `modified` of each image, and `target`, the key of its restoration.

        Returns:
            A row of the manifest for each; none for a chunk that has killed a worker. A row with a sentence under
            `stop` ends the job: nothing can be written.
        """
        done = []
        if self.begun is not None:
            import ray

            if not ray.get(self.begun.first.remote(chunk["key"][0].as_py())):
                return pa.Table.from_pylist(done, ROWS)
        try:
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
        """The manifest's rows of a chunk, whose files are kept in a folder meanwhile."""
        found, work = {}, []
        for number, (row, path) in enumerate(
            zip(chunk, self.fetch((row["key"] for row in chunk), folder), strict=True)
        ):
            if isinstance(path, StoreError):
                yield self.row(row, error=str(path).removeprefix(f"{self.job.source.url}/{row['key']} "))
                continue
            found[path] = row
            work.append((path, folder / f"out{number}" / PurePosixPath(row["target"]).name))
        with ThreadPoolExecutor(THREADS) as threads:  # the next image is restored while the last one is on its way
            sent = []
            for one in self.restorer.restore(work, tqdm(disable=True)):
                row = found[one.path]
                if one.failure:
                    yield self.row(row, error=one.failure.removeprefix(f"{one.path} "))
                else:
                    sent.append(threads.submit(self._commit, row, one, *self.restorer.write(one)))
            yield from (own.result() for own in sent)

    def fetch(self, keys: Iterable[str], folder: Path) -> list[Path | StoreError]:
        """Files of the source in folders of their own, under their names; or why one cannot be read."""

        def fetch(numbered: tuple[int, str]) -> Path | StoreError:
            number, key = numbered
            path = folder / f"in{number}" / PurePosixPath(key).name
            try:
                content = self.job.source.read(key)
            except StoreError as error:
                return error
            path.parent.mkdir()
            path.write_bytes(content)
            return path

        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(fetch, enumerate(keys)))

    def row(self, row: dict[str, Any], **found: Any) -> dict[str, Any]:
        """A row of the manifest about an image."""
        return plain({"image": row["key"], "bytes": row["bytes"], "modified": row["modified"]} | found)

    def _commit(
        self, row: dict[str, Any], one: Restoration, files: Sequence[Path], found: dict[str, Any]
    ) -> dict[str, Any]:
        place = PurePosixPath(row["target"]).parent
        contents = {(place / file.name).as_posix(): file.read_bytes() for file in files}
        self.job.target.write(contents)
        return self.row(row, written=list(contents), remarks=one.image.remarks, **found)


def describe(worker: type[Worker], *arguments: Any) -> tuple[dict[str, Any], str, list[str]]:
    """What the rows of a worker depend on, the same in words, and sentences on numbers that have no effect."""
    one = worker(*arguments)
    return one.facts, one.restorer.title, one.restorer.remarks
