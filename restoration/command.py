"""Restore blurry photographs: files, folders or patterns in, restored images out.

python sample.py photo.jpg --output restored
python sample.py photo.jpg --output sharp.png --preset perceptual
python sample.py 'photos/**/*.png' --checkpoint runs/demo/checkpoint --output restored --sampler ddpm --steps 50
torchrun --nproc_per_node 2 sample.py photos --output restored
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, fields, replace
from typing import Any

from deblur.cli import Parser, Stopped, UsageError, make_parser, run_command
from deblur.data.search import ADVICE
from deblur.files import require_writable
from deblur.models.hub import PRETRAINED, name_of, stored_index
from deblur.models.settings import SamplingSettings, preset_settings
from deblur.restoration.manifest import Manifest
from deblur.restoration.options import Options, check_settings
from deblur.restoration.outputs import Outputs, outputs_of

LONG = 20.0  # seconds: a job that takes longer says so before it begins
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
    if options.mask and len(outputs.work) > 1:
        raise ValueError(f"--mask is for one photograph, and there are {len(outputs.work)}: restore them one by one")
    require_writable(outputs.folder)
    # Not at the top: these take seconds to import, and checks of the command line do not need them.
    from deblur.models import devices, tiling
    from deblur.progress import ProgressBar
    from deblur.restoration import choice
    from deblur.restoration import restorer as restoring

    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    several_gpus = processes > 1 and str(devices.choose_device(options.device)) == "cuda"
    if options.checkpoint is None:
        device = devices.choose_device(options.device)
        files = [path for path, _ in outputs.work]
        chosen, remark = choice.default_checkpoint(files, device.type, options.scale, options.max_side)
        options = replace(options, checkpoint=chosen)
        if remark and rank == 0:
            print(f"sample.py: {remark}", file=sys.stderr)
    restorer = restoring.Restorer(options, numbers, f"cuda:{os.environ['LOCAL_RANK']}" if several_gpus else None)
    for remark in restorer.remarks:
        print(f"sample.py: {remark}", file=sys.stderr)
    manifest = Manifest(outputs.folder, restorer.facts)
    names = outputs.plan(restorer.extras, manifest)
    share = list(names.items())[rank::processes]
    work = [
        (path, own) for path, own in share if options.overwrite or not manifest.has(path, own.files(restorer.extras))
    ]
    if rank == 0:
        seconds, longest = restorer.expected(list(choice.sizes(path for path, _ in work)))
        if seconds > LONG:
            length = f"{seconds / 60:.0f} min" if seconds > 100 else f"{seconds:.0f} s"
            print(f"sample.py: this takes about {length}; faster: {restorer.faster(longest)}", file=sys.stderr)
    failures, written, replaced = list(outputs.missing), 0, 0
    try:
        with ProgressBar(total=len(work) * restorer.steps, unit="step", disable=rank > 0) as bar:
            for restoration in restorer.restore(work, bar):
                if restoration.failure:
                    failures.append(restoration.failure)
                    continue
                if not written:
                    bar.write(restorer.title + tiling.sides_in_words(restoration.out.tiles))
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
        raise Stopped(stopped.signal, STOPPED.format(written)) from None
    for failure in sorted(failures):
        print(f"sample.py: error: {failure}", file=sys.stderr)
    for suffix, count in sorted(outputs.skipped.items()):
        why = ADVICE.get(suffix, "a format that is not read")
        print(f"sample.py: skipped {count} {suffix}, {why}", file=sys.stderr)
    print(_in_words(outputs, written, len(work), len(share) - len(work), replaced))
    return len(failures)


def _in_words(outputs: Outputs, written: int, wanted: int, skipped: int, replaced: int) -> str:
    """The last line: what was written, skipped and replaced."""
    where = outputs.work[0][1] if outputs.is_file else outputs.folder
    if skipped and not wanted:
        return f"all {skipped} done before, in {where}"
    parts = [f"wrote {written} of {wanted} restored images to {where}"]
    parts += [f"{skipped} done before"] if skipped else []
    parts += [f"replaced {replaced}"] if replaced else []
    return ", ".join(parts)


def _parser(args: list[str]) -> Parser:
    """The parser of the command line; the defaults in its help are those of the checkpoint and preset in `args`."""
    parser = make_parser("sample.py", __doc__, "IMAGE_OR_FOLDER ... --output PATH [--FLAG VALUE ...]")
    parser.add_argument("inputs", nargs="*", help="images, folders of images, patterns such as 'a/**/*.png'")
    parser.add_class_arguments(Options)
    parser.add_class_arguments(SamplingSettings)
    if {"-h", "--help"} & set(args):
        named = dict(word[2:].partition("=")[::2] for word in parser.in_order(args))
        checkpoint, preset = named.get("checkpoint"), named.get("preset")
        source = checkpoint or PRETRAINED
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
