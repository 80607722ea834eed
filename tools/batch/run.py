"""Ray's part of a batch: workers are started, given chunks of images, and their rows put into the manifest."""

import logging
import math
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import ray
import ray.data

import deblur
from deblur.data.files.kinds import READ_SUFFIXES, REFUSED_SUFFIXES, skipped_in_words
from deblur.devices import core_count
from deblur.progress import ProgressBar
from deblur.restoration.options import Options
from deblur.restoration.outputs import Extras, Names, planned, targets
from deblur.restoration.restorer import LARGEST_BATCH
from deblur.tools.batch.options import OBJECT_STORE, WORKER_MEMORY, Flags
from deblur.tools.batch.store import PARTS, ManifestTable, Place, row_values
from deblur.tools.batch.watch import watched
from deblur.tools.batch.worker import Job, Worker, describe

SHOWN = 20  # failures that are printed one by one
# Sent to a cluster, which does not have this program.
PACKAGE = Path(deblur.__file__).parent
SENT = {"py_modules": [str(PACKAGE)], "excludes": ["tools/benchmarks"]}


class Begun:
    """The chunks that were begun, by their first keys. It runs outside the workers, which a chunk may kill."""

    def __init__(self):
        self._keys = set()

    def first(self, key: str) -> bool:
        """Whether a chunk is begun for the first time; records it."""
        is_begun = key in self._keys
        self._keys.add(key)
        return not is_begun


def run(source: str, options: Options, numbers: dict[str, Any], flags: Flags) -> int:
    """Restore the images that are not done.

    Args:
        source: a folder or bucket prefix.
        options: as for sample.py; its output is the target, a folder or bucket prefix.
        numbers: sampling settings by field of `SamplingSettings`; the others come from the preset.
        flags: all other flags.

    Returns:
        The number of images that could not be restored; each has a row with its error in the target's manifest.parquet.

    Raises:
        ValueError, OSError: nothing can be restored, or the job cannot continue.
    """
    if options.checkpoint and os.path.exists(options.checkpoint):
        options = replace(options, checkpoint=str(Path(options.checkpoint).resolve()))  # workers run in another folder
    require_listening(flags.cluster)
    target = Place(options.output)
    place = Place(source)
    rows = images_of(place, options)
    if place.contains(target):
        raise ValueError(f"{target.url} lies in {place.url}, which is read: choose another target")
    target.write({f"{PARTS}/try": b""})  # fails at once if the target cannot be written to
    manifest = ManifestTable(target)
    job = Job(options, numbers, place, target)
    try:
        with watched(target.url), connected(flags.cluster):
            failures, summary = _restore_all(rows, job, manifest, flags)
    finally:
        manifest.close()
    for failure in sorted(failures)[:SHOWN]:
        print(f"batch: error: {failure}", file=sys.stderr)
    if len(failures) > SHOWN:
        print(f"batch: and {len(failures) - SHOWN} more, with their errors in the manifest", file=sys.stderr)
    print(summary)
    return len(failures)


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
    rows = [
        {"key": key, "bytes": files[key].size, "modified": files[key].mtime_ns, "target": target.as_posix()}
        for key, target in targets(names, options.suffix, options.depth == 16).items()
    ]
    if not rows:
        raise ValueError(f"{place.url} holds no image ({' '.join(sorted(READ_SUFFIXES))})")
    return rows


def named_rows(
    rows: Sequence[dict[str, Any]], extras: Extras, job: Job, manifest: ManifestTable
) -> list[dict[str, Any]]:
    """The rows with the `stem` of their derived files, and all `files`. ValueError as `planned`."""
    work = {row["key"]: PurePosixPath(row["target"]) for row in rows}
    replaced = {str(Names.of(target).files(extras)[0]) for target in work.values()}
    owned = {PurePosixPath(file): image for file, image in manifest.owned(set(work), replaced).items()}
    inputs = [PurePosixPath(key) for key in job.target.inside(job.source, list(work))]
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
    ray.data.DataContext.get_current().print_on_execution_start = False
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if ray.is_initialized():
        yield
        return
    arguments = {
        "num_cpus": core_count(),
        "object_store_memory": OBJECT_STORE,
        "include_dashboard": False,
    }
    if address:
        arguments = {"address": address} | ({"runtime_env": SENT} if address.startswith("ray://") else {})
    try:
        ray.init(**arguments, logging_level=logging.CRITICAL, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"Ray cannot be started: {' '.join(str(error).split())}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _restore_all(
    rows: Sequence[dict[str, Any]], job: Job, manifest: ManifestTable, flags: Flags
) -> tuple[list[str], str]:
    """Run the workers on what the manifest lacks; returns a sentence for each failure, and a summary."""
    workers, resources = share(ray.cluster_resources(), job.options, flags)
    # Run on a worker: this machine may have another device and precision.
    facts, title, remarks, extras = result(ray.remote(max_calls=1, **resources)(describe).remote(job))
    for remark in remarks:
        print(f"batch: {remark}", file=sys.stderr)
    rows = named_rows(rows, extras, job, manifest)
    stamps = {row["key"]: (row["bytes"], row["modified"]) for row in rows}
    files = {row["key"]: row["files"] for row in rows}
    done = set() if job.options.overwrite else manifest.done(stamps, facts, files)
    todo = [row for row in rows if row["key"] not in done]
    print(f"{title}workers: {workers}")
    failures, warned = [], 0
    with ProgressBar(total=len(todo), unit="image") as bar:
        for finished in results(todo, job, workers, resources) if todo else ():
            images = [row | row_values(facts) for row in finished if not row.get("stop")]
            manifest.add(images)
            failures += [f"{job.source.url}/{row['image']} {row['error']}" for row in images if row["error"]]
            warned += sum(bool(row.get("faults")) for row in images)
            bar.update(len(images))
            if len(images) < len(finished):
                raise OSError(finished[-1]["stop"])
    if done and not todo:
        return failures, f"all {len(done)} done before"
    parts = [f"wrote {len(todo) - len(failures)} of {len(todo)} images to {job.target.url}"]
    if done:
        parts.append(f"{len(done)} done before")
    if warned:
        parts.append(f"{warned} with a warning (faults in the manifest)")
    return failures, ", ".join(parts)


def share(total: dict[str, float], options: Options, flags: Flags) -> tuple[int, dict[str, float]]:
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
    todo: Sequence[dict[str, Any]], job: Job, workers: int, resources: dict[str, float]
) -> Iterator[list[dict[str, Any]]]:
    """Yield the workers' results, chunk by chunk. Images whose workers died come last, each alone."""
    count = job.options.batch_size or max(1, min(LARGEST_BATCH, len(todo) // (4 * workers)))
    dataset = ray.data.from_items(todo, override_num_blocks=math.ceil(len(todo) / count)).map_batches(
        Worker,
        fn_constructor_args=(job, ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Begun).remote()),
        batch_size=None,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=workers),
        **resources,
    )
    left = {row["key"]: row for row in todo}
    for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        rows = table.to_pylist()
        for row in rows:
            left.pop(row["image"], None)
        yield rows
    alone = None
    for row in left.values():
        alone = alone or ray.remote(max_restarts=0, **resources)(Worker).remote(job)
        try:
            yield result(alone.__call__.remote(pa.Table.from_pylist([row]))).to_pylist()
        except Exception as error:
            alone = None
            why = f"ended its worker twice, the second time alone: {' '.join(str(error).split())}"
            yield [{"image": row["key"], "bytes": row["bytes"], "modified": row["modified"], "error": why}]


def result(reference: ray.ObjectRef) -> Any:
    """A worker's result. Raises the worker's exception, or ChildProcessError if it ended without an answer."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError:
        raise ChildProcessError("a worker's process was killed, perhaps for its memory") from None
