"""A batch: list the images of a place, let workers restore them, and record each in the target's manifest."""

import logging
import os
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import ray
from ray.actor import ActorHandle
from tqdm import tqdm

import deblur
from deblur.data.files.kinds import READ_SUFFIXES, REFUSED_SUFFIXES, skipped_in_words
from deblur.devices import core_count
from deblur.progress import ProgressBar
from deblur.restoration.options import Options
from deblur.restoration.outputs import Extras, Names, planned, targets
from deblur.restoration.restorer import IMAGES_AT_ONCE, Restorer
from deblur.tools.batch.options import OBJECT_STORE, WORKER_MEMORY, Flags
from deblur.tools.batch.store import (
    PARTS_FOLDER,
    REQUESTS_AT_ONCE,
    ManifestTable,
    Place,
    StoreError,
    local_name,
    row_values,
)

LARGEST_LIST = 20  # failures that are printed one by one
# Sent to a cluster, which does not have this program.
PROGRAM = {"py_modules": [str(Path(deblur.__file__).parent)], "excludes": ["tools/benchmarks"]}


@dataclass(frozen=True)
class Batch:
    """What all workers share.

    Args:
        options, numbers: as for `Restorer`.
        source, target: places of the images and of their restorations.
    """

    options: Options
    numbers: dict[str, Any]
    source: Place
    target: Place

    @classmethod
    def of(cls, source: str, options: Options, numbers: dict[str, Any]) -> "Batch":
        """A batch from one place to another, with a checkpoint that workers find: they run in another folder."""
        if options.checkpoint and os.path.exists(options.checkpoint):
            options = replace(options, checkpoint=str(Path(options.checkpoint).resolve()))
        return cls(options, numbers, Place(source), Place(options.output))

    def require_target(self) -> None:
        """Raise ValueError or StoreError unless the target can be written to, and lies outside the source."""
        if self.source.contains(self.target):
            raise ValueError(f"{self.target.url} lies in {self.source.url}, which is read: choose another target")
        self.target.write({f"{PARTS_FOLDER}/try": b""})


class Worker:
    """A process that reads chunks of images from one place and writes their restorations to another."""

    def __init__(self, batch: Batch):
        self.batch = batch

    @cached_property
    def restorer(self) -> Restorer:
        """Not made with the worker: Ray hides the errors of constructors."""
        return Restorer(self.batch.options, self.batch.numbers)

    def describe(self) -> tuple[dict[str, Any], str, list[str], Extras]:
        """What the manifest's rows depend on, the same in words, notes on settings without effect, what is written."""
        return self.restorer.facts, self.restorer.title, self.restorer.remarks, self.restorer.extras

    def restore(self, chunk: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        """Restore images (`named_rows`). Returns their rows of the manifest, and why the batch must end, if it must
        because nothing can be written; rows of images that were not written are lacking then."""
        rows = []
        try:
            with TemporaryDirectory(prefix="batch") as folder:
                for row in self._rows(chunk, Path(folder)):
                    rows.append(row)
        except OSError as error:
            return rows, " ".join(str(error).split())
        return rows, ""

    def _rows(self, chunk: Sequence[dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
        """The manifest's rows of a chunk, whose files are kept in a folder meanwhile."""
        out = folder / ".out"  # no key begins with a dot
        by_path = {folder / local_name(row["key"]): row for row in chunk}  # the noise depends on the name itself
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            reasons = zip(by_path, threads.map(self._fetch, by_path, by_path.values()), strict=True)
            refused = {path: reason for path, reason in reasons if reason}
            names = {path: Names(out / row["target"], row["stem"]) for path, row in by_path.items()}
            work = [(path, names[path]) for path in by_path if path not in refused]
            sent = []
            for restoration in self.restorer.restore(work, tqdm(disable=True), refused):
                row = by_path[restoration.photograph.path]
                files, facts = self.restorer.write(restoration)
                contents = {file.relative_to(out).as_posix(): file.read_bytes() for file in files}
                done = manifest_row(row, written=list(contents), remarks=restoration.notes, **facts)
                # The next image is restored while this one is uploaded.
                sent.append((threads.submit(self.batch.target.write, contents), done))
            for writing, done in sent:
                writing.result()
                yield done
        for path, sentence in refused.items():
            yield manifest_row(by_path[path], error=sentence.removeprefix(f"{path} "))

    def _fetch(self, copy: Path, row: dict[str, Any]) -> str:
        """Copy an image of the source to a file; returns why it cannot be read, if so."""
        try:
            content = self.batch.source.read(row["key"])
        except StoreError as error:
            return str(error).removeprefix(f"{self.batch.source.url}/{row['key']} ")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
        return ""


def manifest_row(row: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """A row of the manifest for an image."""
    return row_values({"image": row["key"], "bytes": row["bytes"], "modified": row["modified"]} | facts)


def images_of(place: Place, options: Options) -> list[dict[str, Any]]:
    """For each image of a place its `key`, `bytes`, `modified` and `target`; says which formats are skipped.

    Raises:
        ValueError: there are no images, or two restorations would have the same name.
    """
    files = place.inputs()
    suffixes = {key: PurePosixPath(key).suffix.lower() for key in files}
    for line in skipped_in_words(Counter(suffix for suffix in suffixes.values() if suffix in REFUSED_SUFFIXES)):
        print(f"batch: {line}", file=sys.stderr)
    names = {key: PurePosixPath(key) for key, suffix in suffixes.items() if suffix in READ_SUFFIXES}
    if not names:
        raise ValueError(f"{place.url} holds no image ({' '.join(sorted(READ_SUFFIXES))})")
    return [
        {"key": key, "bytes": files[key].size, "modified": files[key].mtime_ns, "target": target.as_posix()}
        for key, target in targets(names, options.suffix, options.depth == 16).items()
    ]


def named_rows(
    rows: Sequence[dict[str, Any]], extras: Extras, batch: Batch, manifest: ManifestTable
) -> list[dict[str, Any]]:
    """The rows with the `stem` of their derived files, and all `files`. ValueError as `planned`."""
    work = {row["key"]: PurePosixPath(row["target"]) for row in rows}
    replaced = {str(Names.of(target).files(extras)[0]) for target in work.values()}
    owned = {PurePosixPath(file): image for file, image in manifest.owned(set(work), replaced).items()}
    inputs = [PurePosixPath(key) for key in batch.target.inside(batch.source, list(work))]
    names = planned(work, extras, inputs, owned)
    files = {key: [file.as_posix() for file in name.files(extras)] for key, name in names.items()}
    return [row | {"stem": names[row["key"]].stem, "files": files[row["key"]]} for row in rows]


def require_listening(address: str | None) -> None:
    """Raise ValueError if an address names a host and a port on which nothing listens."""
    parts = urlsplit(address if "://" in (address or "") else f"//{address or ''}")
    if parts.hostname and parts.port:
        try:
            socket.create_connection((parts.hostname, parts.port), timeout=10).close()
        except OSError as error:
            raise ValueError(f"no Ray cluster answers at {address} ({error.strerror or error}): start it") from None


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to Ray inside the block: to the caller's Ray, to a cluster at an address, or to a local one."""
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    if ray.is_initialized():
        yield
        return
    arguments = {"num_cpus": core_count(), "object_store_memory": OBJECT_STORE, "include_dashboard": False}
    if address:
        arguments = {"address": address} | ({"runtime_env": PROGRAM} if address.startswith("ray://") else {})
    try:
        ray.init(**arguments, logging_level=logging.CRITICAL, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"Ray cannot be started: {' '.join(str(error).split())}") from None
    try:
        yield
    finally:
        ray.shutdown()


class Job:
    """The images of a batch that are not done, the workers that restore them, and what became of them."""

    def __init__(self, batch: Batch, images: Sequence[dict[str, Any]], manifest: ManifestTable, flags: Flags):
        self.batch, self.manifest = batch, manifest
        self.failures, self.warned = [], 0
        workers, resources = workers_and_resources(ray.cluster_resources(), batch.options, flags)
        self.start = partial(ray.remote(**resources)(Worker).remote, batch)
        first = self.start()  # it describes the batch: this machine may have another device and precision
        self.facts, title, remarks, extras = answer(first.describe.remote())
        for remark in remarks:
            print(f"batch: {remark}", file=sys.stderr)
        rows = named_rows(images, extras, batch, manifest)
        self.done = set() if batch.options.overwrite else manifest.done(rows, self.facts)
        self.todo = [row for row in rows if row["key"] not in self.done]
        print(f"{title}workers: {workers}")
        size = batch.options.batch_size or max(1, min(IMAGES_AT_ONCE, len(self.todo) // (4 * workers)))
        self.chunks = [self.todo[i : i + size] for i in range(0, len(self.todo), size)]
        self.workers = [first, *(self.start() for _ in range(1, min(workers, len(self.chunks))))]

    def restorations(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the manifest's rows of a chunk when it is finished. OSError: nothing can be written."""
        with ProgressBar(total=len(self.todo), unit="image") as bar:
            for rows, reason in results(self.chunks, self.workers, self.start):
                yield rows
                bar.update(len(rows))
                if reason:
                    raise OSError(reason)

    def record(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add finished images to the manifest."""
        rows = [row | row_values(self.facts) for row in rows]
        self.manifest.add(rows)
        self.failures += [f"{self.batch.source.url}/{row['image']} {row['error']}" for row in rows if row.get("error")]
        self.warned += sum(bool(row.get("faults")) for row in rows)

    def report(self) -> int:
        """Print the failures and a summary. Returns how many images could not be restored."""
        for failure in sorted(self.failures)[:LARGEST_LIST]:
            print(f"batch: error: {failure}", file=sys.stderr)
        if (more := len(self.failures) - LARGEST_LIST) > 0:
            print(f"batch: and {more} more, with their errors in the manifest", file=sys.stderr)
        if self.done and not self.todo:
            print(f"all {len(self.done)} done before")
            return 0
        written = len(self.todo) - len(self.failures)
        parts = [f"wrote {written} of {len(self.todo)} images to {self.batch.target.url}"]
        if self.done:
            parts.append(f"{len(self.done)} done before")
        if self.warned:
            parts.append(f"{self.warned} with a warning (faults in the manifest)")
        print(", ".join(parts))
        return len(self.failures)


def workers_and_resources(total: dict[str, float], options: Options, flags: Flags) -> tuple[int, dict[str, float]]:
    """The number of workers, and the resources that Ray reserves for each out of the cluster's total."""
    gpus = flags.num_gpus
    if gpus is None:
        gpus = float("GPU" in total and options.device in ("auto", "cuda"))
    if gpus > total.get("GPU", 0) and not flags.cluster:
        raise ValueError(f"--num_gpus {gpus:g}, but this machine has {total.get('GPU', 0):g}")
    cpus, memory = total.get("CPU", 1.0), 1e9 * options.memory if options.memory else WORKER_MEMORY
    fitting = total.get("GPU", 0) // gpus if gpus else min(cpus, total.get("memory", memory) // memory)
    workers = flags.concurrency or max(1, int(fitting))
    cpus_each = cpus / workers
    return workers, {"num_cpus": int(cpus_each) if cpus_each >= 1 else cpus_each, "num_gpus": gpus}


def results(
    chunks: Sequence[list[dict[str, Any]]], workers: Sequence[ActorHandle], start: Callable[[], ActorHandle]
) -> Iterator[tuple[list[dict[str, Any]], str]]:
    """Yield what the workers return (`Worker.restore`), chunk by chunk, as they finish.

    A worker that ends, or raises an error, is replaced: after some errors a process cannot use its GPU any more. Its
    images come last, each alone; what ends its worker again is a failure.
    """
    waiting, again = deque(chunks), []
    # Each begins with nothing to do: a worker for which a cluster has no room yet must not hold images.
    running = {worker.restore.remote([]): (worker, []) for worker in workers}
    while waiting or any(chunk for _, chunk in running.values()):
        [reference], _ = ray.wait(list(running))
        worker, chunk = running.pop(reference)
        try:
            finished = answer(reference)
        except Exception:
            ray.kill(worker)
            if chunk:
                again += chunk
                worker = start()
                running[worker.restore.remote([])] = worker, []
            elif not running:
                raise
            continue
        if waiting:
            chunk = waiting.popleft()
            running[worker.restore.remote(chunk)] = worker, chunk
        yield finished
    for worker, _ in running.values():
        ray.kill(worker)
    alone = None
    for row in again:
        alone = alone or start()
        try:
            yield answer(alone.restore.remote([row]))
        except Exception as error:
            alone = None
            why = f"ended its worker twice, the second time alone: {' '.join(str(error).split())}"
            yield [manifest_row(row, error=why)], ""


def answer(reference: ray.ObjectRef) -> Any:
    """What a worker returns. Raises the worker's exception, or ChildProcessError if it ended without an answer."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError:
        raise ChildProcessError("a worker's process was killed, perhaps for its memory") from None
