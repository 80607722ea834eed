"""Restore a list of images, and say on the way what a user should know."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from deblur.cli import Stopped
from deblur.data.files.kinds import ADVICE
from deblur.devices import choose_device
from deblur.progress import ProgressBar
from deblur.restoration import choice
from deblur.restoration.manifest import Manifest
from deblur.restoration.options import Options
from deblur.restoration.outputs import Outputs
from deblur.restoration.restorer import LONG, Restorer
from deblur.tiling import sides_in_words


def restore(outputs: Outputs, options: Options, numbers: dict[str, Any]) -> int:
    """Restore images, each in its own format and depth, with its metadata; under torchrun the processes share the list.

    Args:
        outputs: the images, and where their restorations go.
        options: of the command line.
        numbers: sampling settings by field of `SamplingSettings`; the others come from the preset.

    Returns:
        The number of images that could not be restored; each is named on stderr.

    Raises:
        ValueError, OSError: nothing can be restored.
    """
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if options.checkpoint is None:
        files = [path for path, _ in outputs.work]
        options, remark = choice.with_checkpoint(options, files, choose_device(options.device), numbers)
        if remark and rank == 0:
            print(f"sample.py: {remark}", file=sys.stderr)
    has_own_gpu = processes > 1 and str(choose_device(options.device)) == "cuda"
    restorer = Restorer(options, numbers, f"cuda:{os.environ['LOCAL_RANK']}" if has_own_gpu else None)
    for remark in restorer.remarks:
        print(f"sample.py: {remark}", file=sys.stderr)
    manifest = Manifest(outputs.folder, restorer.facts)
    names = outputs.plan(restorer.extras, manifest)
    share = list(names.items())[rank::processes]
    work = [
        (path, name) for path, name in share if options.overwrite or not manifest.has(path, name.files(restorer.extras))
    ]
    if rank == 0:
        _say_if_it_takes_long(restorer, [path for path, _ in work])
    failures, written, replaced = list(outputs.missing), 0, 0
    try:
        with ProgressBar(total=len(work) * restorer.steps, unit="step", disable=rank > 0) as bar:
            for restoration in restorer.restore(work, bar):
                if restoration.failure:
                    failures.append(restoration.failure)
                    continue
                if not written:
                    bar.write(restorer.title + sides_in_words(restoration.out.tiles))
                for remark in restoration.remarks(outputs.is_file or options.format is not None):
                    bar.write(f"{restoration.path}: {remark}", sys.stderr)
                replaced += manifest.replaces(restoration.path, list(restoration.files))
                try:
                    manifest.add(restoration.path, *restorer.write(restoration))
                except OSError as error:
                    raise OSError(
                        f"{restoration.target} cannot be written: {error.strerror or error}; {written} of {len(work)}"
                        " images are done: free the disk, or choose another --output, and run again to resume"
                    ) from None
                written += 1
    except Stopped as stopped:
        raise Stopped(stopped.signal, f"stopped, {written} done; run again to resume") from None
    for failure in sorted(failures):
        print(f"sample.py: error: {failure}", file=sys.stderr)
    for suffix, count in sorted(outputs.skipped.items()):
        why = ADVICE.get(suffix, "a format that is not read")
        print(f"sample.py: skipped {count} {suffix}, {why}", file=sys.stderr)
    print(_in_words(outputs, written, len(work), len(share) - len(work), replaced))
    return len(failures)


def _say_if_it_takes_long(restorer: Restorer, files: list[Path]) -> None:
    seconds, longest = restorer.expected(list(choice.sizes(files)))
    if seconds > LONG:
        length = f"{seconds / 60:.0f} min" if seconds > 100 else f"{seconds:.0f} s"
        print(f"sample.py: this takes about {length}; faster: {restorer.faster(longest)}", file=sys.stderr)


def _in_words(outputs: Outputs, written: int, wanted: int, skipped: int, replaced: int) -> str:
    """The last line: what was written, skipped and replaced."""
    where = outputs.work[0][1] if outputs.is_file else outputs.folder
    if skipped and not wanted:
        return f"all {skipped} done before, in {where}"
    parts = [f"wrote {written} of {wanted} restored images to {where}"]
    parts += [f"{skipped} done before"] if skipped else []
    parts += [f"replaced {replaced}"] if replaced else []
    return ", ".join(parts)
