"""Work on all cores, and output folders of many files that a stopped command can resume."""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from deblur.data.layouts import DatasetError
from deblur.devices import core_count
from deblur.progress import ProgressBar
from deblur.storage import require_free, temporary_path


@contextmanager
def resumable(folder: Path, description: str, facts: dict[str, Any]) -> Iterator[Path]:
    """A hidden folder beside `folder` to fill; it takes the place of `folder` when the block ends.

    If the block raises, the hidden folder stays, and the same command finds the finished files there. The JSON file
    `description` in it holds `facts`, what the files depend on.

    Raises:
        FolderInUse: `folder` is there and not empty.
        DatasetError: the hidden folder was begun with other facts.
    """
    require_free(folder)
    part = temporary_path(folder)
    described, text = part / description, json.dumps(facts, indent=1) + "\n"
    if described.is_file() and described.read_text() != text:
        raise DatasetError(f"{part} was begun with other settings: give those again, or remove it.")
    part.mkdir(parents=True, exist_ok=True)
    described.write_text(text)
    yield part
    os.replace(part, folder)


def on_all_cores(
    function: Callable, *arguments: Sequence, workers: int | None, unit: str, desc: str | None = None
) -> Iterator[Any]:
    """What a function of a module returns for each of its arguments, in order; the bar begins with `desc`.

    `workers` is a number of processes; None: one per core, but at most one for every four calls: a process takes as
    long to start. Raises DatasetError if one was killed.
    """
    count = len(arguments[0])
    wanted = min(core_count(), -(-count // 4)) if workers is None else workers
    bar = {"total": count, "unit": unit, "desc": desc}
    if min(wanted, count) < 2:
        yield from ProgressBar(map(function, *arguments), **bar)
        return
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(wanted, count), spawn, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield from ProgressBar(pool.map(function, *arguments), **bar)
    except BrokenProcessPool:
        # The pool would wait forever for a process that was just starting when another one was killed.
        for process in multiprocessing.active_children():
            process.kill()
        raise DatasetError("A process was killed, perhaps for its memory: give fewer workers.") from None
    finally:
        pool.shutdown()
