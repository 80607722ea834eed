"""A job of sample.py: its checkpoint, what is left to do, and what is said about it."""

import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from deblur.data.files.kinds import skipped_in_words
from deblur.devices import choose_device
from deblur.hub import name_of, stored_index
from deblur.restoration.duration import TooSlow, WatchedBar, expected, sizes, time_in_words
from deblur.restoration.manifest import Manifest
from deblur.restoration.options import Options, largest_scale, ways
from deblur.restoration.outputs import Names, Outputs
from deblur.restoration.photograph import Restoration
from deblur.restoration.restorer import Restorer, checkpoint_facts
from deblur.tiling import sides_in_words

LONG_JOB = 20.0  # seconds: a job that takes longer says so before it begins
SMALLEST_TIMED_JOB = 400_000  # pixels: for fewer no checkpoint takes long that was named, or on a GPU
# What is advised in place of a slow checkpoint; in place of any that is not named here, lite.
FASTER_CHECKPOINTS = {"maxim": "swift", "lite": None, "u2net": None, "text": None}


class Job:
    """The restoration of a list of images, each in its own format and depth, with its metadata.

    Where no checkpoint is named and a CPU restores, it is done in the best of `options.ways` that is quick enough, as
    measured on a piece of an image; the next one takes over where that turns out to be wrong. Under torchrun the
    processes share the list.

    Args:
        outputs: the images, and where their restorations go.
        options: of the command line.
        numbers: sampling settings by field of `SamplingSettings`; the others come from the preset.

    Raises:
        ValueError, OSError: nothing can be restored.
    """

    def __init__(self, outputs: Outputs, options: Options, numbers: dict[str, Any]):
        self.outputs, self.numbers = outputs, numbers
        self.manifest = Manifest(outputs.folder, outputs.file)
        self.rank, self.processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        device = choose_device(options.device)
        if self.processes > 1 and str(device) == "cuda":
            options = replace(options, device=f"cuda:{os.environ['LOCAL_RANK']}")
        self.ways = ways(options, numbers)
        # An image that was restored in any of the ways is done: a busy machine may choose another one.
        self.accepted = [{}]
        if len(self.ways) > 1:
            self.accepted = [
                checkpoint_facts(stored_index(way.checkpoint)["presets"], way, numbers) for way, _ in self.ways
            ]
        if device.type != "cpu":
            del self.ways[1:]
        elif self.processes > 1:  # which need not measure the same
            del self.ways[:-1]
        self.written: set[Path] = set()  # images whose restorations were written
        self.refused: dict[Path, str] = {}  # images that cannot be restored, each with a sentence that names it
        self.replaced = 0
        self.restorer: Restorer | None = None
        self._take_next_way()
        self.wanted = len(self.work)
        self._choose_way()
        for remark in self.restorer.remarks:
            self._say(remark)

    def _take_next_way(self) -> None:
        options, longest = self.ways.pop(0)
        self.may_take = longest if self.ways else math.inf  # a way that no other one follows is not left
        is_loaded = self.restorer is not None and self.restorer.options.checkpoint == options.checkpoint
        self.restorer = Restorer(options, self.numbers, self.restorer if is_loaded else None)
        names = self.outputs.plan(self.restorer.extras, self.manifest)
        self.own_images = list(names.items())[self.rank :: self.processes]
        self.work = [(path, names) for path, names in self.own_images if not self._is_done(path, names)]

    def _is_done(self, path: Path, names: Names) -> bool:
        if path in self.written or path in self.refused:
            return True
        files, facts = names.files(self.restorer.extras), self.restorer.facts
        if self.restorer.options.overwrite:
            return False
        return any(self.manifest.has(path, files, facts | accepted) for accepted in self.accepted)

    def _choose_way(self) -> None:
        """Take the first way that is quick enough; say in a line how long it takes, and what is better or faster."""
        if self.rank > 0 or not self.work:
            return
        sized, better, options = list(sizes(self.work)), None, self.restorer.options
        scales = (largest_scale(options.scale, options.max_side, max(size)) for _, _, *size in sized)
        pixels = sum(height * width * scale**2 for (_, _, height, width), scale in zip(sized, scales, strict=True))
        if pixels < SMALLEST_TIMED_JOB and not self.ways:
            return
        while (seconds := expected(self.restorer, sized, self.may_take)) > self.may_take:
            better = f"better, in about {time_in_words(seconds)}: {_flags(self.restorer.options)}"
            self._take_next_way()
        length = time_in_words(seconds)
        if better:
            self._say(f"restoring by {_flags(self.restorer.options)}, which takes about {length}; {better}")
        elif seconds > LONG_JOB:
            faster = []
            if "fast" in self.restorer.pipeline.config.presets and options.preset != "fast":
                faster.append("--preset fast")
            if checkpoint := FASTER_CHECKPOINTS.get(name_of(options.checkpoint).removeprefix("pretrained/"), "lite"):
                faster.append(f"--checkpoint {checkpoint}")
            self._say(f"this takes about {length}" + (f"; faster: {' or '.join(faster)}" if faster else ""))

    def restorations(self) -> Iterator[Restoration]:
        """Restore what is left to do, image by image, with a progress bar."""
        while self.work:
            try:
                with WatchedBar(len(self.work), self.may_take, disable=self.rank > 0) as self.bar:
                    yield from self.restorer.restore(self.work, self.bar, self.refused)
                return
            except TooSlow as slow:
                better = f"better, in about {time_in_words(slow.seconds)}: {_flags(self.restorer.options)}"
                self._take_next_way()
                self._say(f"slower than measured: going on by {_flags(self.restorer.options)}; {better}")

    def write(self, restoration: Restoration) -> None:
        """Write a restored image, say what is notable about it, and record it in the manifest."""
        photograph, options = restoration.photograph, self.restorer.options
        path, target = photograph.path, photograph.names.target
        if not self.written:
            self.bar.write(self.restorer.title + sides_in_words(restoration.out.tiles))
        remarks = list(restoration.notes)
        if target.suffix != path.suffix and not self.outputs.is_file and options.format is None:
            remarks.append(f"is written as {target.name}")
        back = ", the prediction is written" if options.on_fault == "fallback" else ""
        for remark in [*remarks, *(fault + back for fault in restoration.faults)]:
            self.bar.write(f"{path}: {remark}", sys.stderr)
        self.replaced += self.manifest.replaces(path, list(restoration.files))
        try:
            self.manifest.add(path, *self.restorer.write(restoration))
        except OSError as error:
            raise OSError(
                f"{target} cannot be written: {error.strerror or error}; {len(self.written)} of {self.wanted} images"
                " are done: free the disk, or choose another --output, and run again to resume"
            ) from None
        self.written.add(path)

    def report(self) -> int:
        """Say what was not restored, and what was; returns how many images could not be restored."""
        failures = sorted([*self.outputs.missing, *self.refused.values()])
        for failure in failures:
            print(f"sample.py: error: {failure}", file=sys.stderr)
        for line in skipped_in_words(self.outputs.skipped):
            print(f"sample.py: {line}", file=sys.stderr)
        where = self.outputs.file or self.outputs.folder
        done_before = len(self.own_images) - self.wanted
        if done_before and not self.wanted:
            print(f"all {done_before} done before, in {where}")
            return len(failures)
        parts = [f"wrote {len(self.written)} of {self.wanted} restored images to {where}"]
        parts += [f"{done_before} done before"] if done_before else []
        parts += [f"replaced {self.replaced}"] if self.replaced else []
        print(", ".join(parts))
        return len(failures)

    def _say(self, line: str) -> None:
        if self.rank == 0:
            print(f"sample.py: {line}", file=sys.stderr)


def _flags(options: Options) -> str:
    """The flags by which a way is asked for."""
    name = name_of(options.checkpoint).removeprefix("pretrained/")
    return f"--checkpoint {name} --preset {options.preset}" if options.preset else f"--checkpoint {name}"
