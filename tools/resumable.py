"""Output folders of many files that a stopped command can resume, filled on all cores."""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from base.progress import ProgressBar
from data.layouts import DatasetError


@contextmanager
def resumable(folder: Path, description: str, facts: dict[str, Any]) -> Iterator[Path]:
    """A hidden folder beside `folder` to fill; it takes the place of `folder` when the block ends.

    If the block raises, the hidden folder stays, and the same command finds the finished files there.

    Args:
        folder: must not exist or must be empty.
        description: name of the JSON file in it that holds `facts`.
        facts: what the files depend on.

    Raises:
        DatasetError: the hidden folder was begun with other facts.
    """
    part = folder.with_name(f".{folder.name}.part")
    described, text = part / description, json.dumps(facts, indent=1) + "\n"
    if described.is_file() and described.read_text() != text:
        raise DatasetError(f"{part} was begun with other settings: give those again, or remove it.")
    part.mkdir(parents=True, exist_ok=True)
    described.write_text(text)
    yield part
    os.replace(part, folder)


def on_all_cores(function: Callable, *arguments: Sequence, workers: int | None, unit: str) -> None:
    """Call a function of a module with each of its arguments, with a progress bar that counts `unit`.

    Args:
        function: called with an element of each sequence.
        arguments: sequences of one length.
        workers: processes; None: one per core, but at most one for every four calls: a process takes as long to start.
        unit: what a call makes.
    """
    count = len(arguments[0])
    workers = min(workers or min(len(os.sched_getaffinity(0)), -(-count // 4)), count)
    bar = {"total": count, "unit": unit}
    if workers == 1:
        for _ in ProgressBar(map(function, *arguments), **bar):
            pass
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for _ in ProgressBar(pool.map(function, *arguments), **bar):
            pass
