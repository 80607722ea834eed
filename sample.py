"""Restore blurry photographs: files, folders or patterns in, restored images out.

python sample.py photo.jpg --output restored
python sample.py photo.jpg --output sharp.png --preset perceptual
python sample.py 'photos/**/*.png' --checkpoint runs/demo/checkpoint --output restored --sampler ddpm --steps 50
torchrun --nproc_per_node 2 sample.py photos --output restored
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.command_line import Parser, make_parser
from base.files import require_writable
from base.messages import UsageError
from base.stop import Stopped, run_command
from models.index import name_of, pretrained, stored_index
from models.settings import SamplingSettings, preset_settings
from restoration.manifest import Manifest
from restoration.options import Options, check_settings
from restoration.outputs import Outputs, outputs_of

if TYPE_CHECKING:
    from restoration.restorer import Restoration

STOPPED = "stopped, {} done; run again to resume"


def restore(inputs: list[str], options: Options, numbers: dict[str, Any]) -> int:
    """Restore images, each in its own format and depth, with its metadata; under torchrun the processes share the list.

    Args:
        inputs: images, folders of images (searched recursively) and patterns such as photos/**/*.png.
        options: of the command line.
        numbers: sampling settings by field of `SamplingSettings`; the others come from the preset.

    Returns:
        The number of images that could not be restored; each is named on stderr.

    Raises:
        ValueError, OSError: nothing can be restored.
    """
    check_settings(options, numbers)
    outputs = outputs_of(inputs, options.output, options.suffix, options.depth == 16)
    require_writable(outputs.folder)
    run = _Run(options, numbers, outputs)
    try:
        run.restore_all()
    except Stopped as stopped:
        raise Stopped(stopped.signal, STOPPED.format(run.written)) from None
    if options.index:
        from restoration.index import write_index  # not at the top, as below

        print(f"before and after: {write_index(outputs.folder)}")
    return run.report()


class _Run:
    """Restores the images of one process."""

    def __init__(self, options: Options, numbers: dict[str, Any], outputs: Outputs):
        # Not at the top: these take seconds to import, and checks of the command line do not need them.
        from models.devices import choose_device
        from restoration.restorer import Restorer

        self.options, self.outputs = options, outputs
        self.rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        several_gpus = processes > 1 and str(choose_device(options.device)) == "cuda"
        self.restorer = Restorer(options, numbers, f"cuda:{os.environ['LOCAL_RANK']}" if several_gpus else None)
        for remark in self.restorer.remarks:
            print(f"sample.py: {remark}", file=sys.stderr)
        self.title = self.restorer.title
        self.manifest = Manifest(outputs.folder, self.restorer.facts)
        self.share = outputs.work[self.rank :: processes]
        self.work = [pair for pair in self.share if options.overwrite or not self.manifest.has(pair[0])]
        self.failures, self.written, self.replaced = list(outputs.missing), 0, Counter()

    def restore_all(self) -> None:
        """Restore all images."""
        from base.progress import ProgressBar

        with ProgressBar(total=len(self.work) * self.restorer.steps, unit="step", disable=self.rank > 0) as self.bar:
            for restoration in self.restorer.restore(self.work, self.bar):
                if restoration.failure:
                    self.failures.append(restoration.failure)
                    continue
                self._print_remarks(restoration)
                if (why := self.manifest.replaced_by(restoration.path, list(restoration.files))) is not None:
                    self.replaced[why] += 1
                try:
                    self.manifest.add(restoration.path, *self.restorer.write(restoration))
                except OSError as error:
                    done = f"{self.written} of {len(self.work)} images are done"
                    raise OSError(
                        f"{restoration.target} cannot be written: {error.strerror or error}; {done}: free the"
                        " disk, or choose another --output, and run again to resume"
                    ) from None
                self.written += 1

    def report(self) -> int:
        """Print what was written and, on stderr, what was not; return the number of images that failed."""
        for failure in sorted(self.failures):
            print(f"sample.py: error: {failure}", file=sys.stderr)
        for suffix, count in sorted(self.outputs.skipped.items()):
            print(f"sample.py: skipped {count} {suffix}, a format that is not read", file=sys.stderr)
        skipped = len(self.share) - len(self.work)
        done = f", {skipped} done before" if skipped else ""
        replaced = ", ".join(f"{count} ({why})" for why, count in sorted(self.replaced.items()))
        where = self.outputs.work[0][1] if self._is_file() else self.outputs.folder
        if skipped and not self.work:
            print(f"all {skipped} done before, in {where}")
            return len(self.failures)
        print(
            f"wrote {self.written} of {len(self.work)} restored images to {where}{done}"
            + (f", replaced {replaced}" if replaced else "")
        )
        return len(self.failures)

    def _is_file(self) -> bool:
        return Path(self.options.output) != self.outputs.folder

    def _print(self, path: Path, sentence: str) -> None:
        self.bar.write(f"{path}: {sentence}", sys.stderr)

    def _print_remarks(self, restoration: Restoration) -> None:
        """Print what is notable about a restoration."""
        self._print_title(restoration.path, restoration.out.tiles)
        for remark in restoration.image.remarks:
            self._print(restoration.path, remark)
        if self.options.format is None and not self._is_file() and restoration.target.suffix != restoration.path.suffix:
            self._print(restoration.path, f"is written as {restoration.target.name}")
        for fault in restoration.faults:
            self._print(restoration.path, fault + ", the prediction is written" * restoration.back)

    def _print_title(self, path: Path, tiles: dict[str, int | None]) -> None:
        """Print the title once, and the tiles of each image that differ from those in the title."""
        sides = ", ".join(f"{name} in tiles of {side}" for name, side in tiles.items() if side) or "whole image"
        if self.title:
            self.bar.write(f"{self.title}{sides}")
            self.title, self.sides = "", sides
        elif sides != self.sides:
            self._print(path, sides)


def _parser(args: list[str]) -> Parser:
    """The parser of the command line; the defaults in its help are those of the checkpoint and preset in `args`."""
    parser = make_parser("sample.py", __doc__, "IMAGE_OR_FOLDER ... --output PATH [--FLAG VALUE ...]")
    parser.add_argument("inputs", nargs="*", help="images, folders of images, patterns such as 'a/**/*.png'")
    parser.add_class_arguments(Options)
    parser.add_class_arguments(SamplingSettings)
    if {"-h", "--help"} & set(args):
        named = dict(word[2:].partition("=")[::2] for word in parser.in_order(args))
        checkpoint, preset = named.get("checkpoint"), named.get("preset")
        source = checkpoint or pretrained()
        index = stored_index(source) or {}
        settings = preset_settings(index.get("presets", {}), preset)
        parser.set_defaults(asdict(settings))
        parser.epilog = f"How to sample: shown are the numbers of {name_of(checkpoint)}, preset {preset or 'balanced'}."
    return parser


def _main(args: list[str]) -> int:
    values = _parser(args).given(args) if args else {}
    inputs = values.pop("inputs", None)
    if not inputs:
        raise UsageError("no image is named: python sample.py photo.jpg --output restored (--help lists the flags)")
    names = {field.name for field in fields(Options)}
    options = Options(**{name: value for name, value in values.items() if name in names})
    return 1 if restore(inputs, options, {name: value for name, value in values.items() if name not in names}) else 0


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code; wrong input is reported in one sentence on stderr."""
    return run_command("sample.py", lambda: _main(sys.argv[1:] if args is None else args), STOPPED.format(0))


if __name__ == "__main__":
    sys.exit(main())
