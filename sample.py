"""Restore blurry photographs: files, folders or patterns in, restored images out.

python sample.py photo.jpg --output restored
python sample.py photo.jpg --output sharp.png --preset perceptual
python sample.py 'photos/**/*.png' --checkpoint runs/demo/checkpoint --output restored --sampler ddpm --steps 50
torchrun --nproc_per_node 2 sample.py photos --output restored
"""

import sys
from dataclasses import asdict, fields
from typing import Any

from deblur.cli import Parser, Stopped, UsageError, make_parser, run_command
from deblur.hub import PRETRAINED, name_of, stored_index
from deblur.restoration.options import Options, ways
from deblur.restoration.outputs import outputs_of
from deblur.settings import SamplingSettings, preset_settings
from deblur.storage import require_writable

STOPPED = "stopped, {} done; run again to resume"


def parser_of(args: list[str]) -> Parser:
    """The parser of the command line; the defaults in its help are those of the checkpoint and preset in `args`."""
    parser = make_parser("sample.py", __doc__, "IMAGE_OR_FOLDER ... --output PATH [--FLAG VALUE ...]")
    parser.add_argument("inputs", nargs="*", help="images, folders of images, patterns such as 'a/**/*.png'")
    parser.add_class_arguments(Options)
    parser.add_class_arguments(SamplingSettings)
    if {"-h", "--help"} & set(args):
        named = dict(word[2:].partition("=")[::2] for word in parser.in_order(args))
        checkpoint, preset = named.get("checkpoint"), named.get("preset")
        index = stored_index(checkpoint or PRETRAINED) or {}
        settings = preset_settings(index.get("presets", {}), preset)
        parser.set_defaults(asdict(settings))
        parser.epilog = f"How to sample: shown are the numbers of {name_of(checkpoint)}, preset {preset or 'balanced'}."
    return parser


def restore(inputs: list[str], options: Options, numbers: dict[str, Any]) -> int:
    """Restore images. Returns how many could not be restored; ValueError or OSError if none can be.

    Args:
        inputs: files, folders and patterns.
        options: what is written, and how it is computed.
        numbers: sampling settings by field of `SamplingSettings`; the others come from the preset.
    """
    ways(options, numbers)  # what is wrong is said before torch is imported, which takes seconds
    outputs = outputs_of(inputs, options.output, options.suffix, options.depth == 16)
    if options.mask and len(outputs.work) > 1:
        raise ValueError(f"--mask is for one photograph, and there are {len(outputs.work)}: restore them one by one")
    require_writable(outputs.folder)
    from deblur.restoration.job import Job

    job = Job(outputs, options, numbers)  # chooses the checkpoint by the time it takes
    try:
        for restoration in job.restorations():  # DeblurPipeline: predict, sample, blend, keep what is sharp
            job.write(restoration)
    except Stopped as stopped:  # while an image is restored, or written
        raise Stopped(stopped.signal, STOPPED.format(len(job.written))) from None
    return job.report()


def command(args: list[str]) -> int:
    """Run the command line and return its exit code."""
    values = parser_of(args).given(args) if args else {}
    inputs = values.pop("inputs", None)
    if not inputs:
        raise UsageError("no image is named: python sample.py photo.jpg --output restored (--help lists the flags)")
    names = {field.name for field in fields(Options)}
    options = Options(**{name: value for name, value in values.items() if name in names})
    numbers = {name: value for name, value in values.items() if name not in names}
    return 1 if restore(inputs, options, numbers) else 0


def main(args: list[str] | None = None) -> int:
    """As `command`, by default of this process; wrong input is reported in one sentence on stderr."""
    return run_command("sample.py", lambda: command(sys.argv[1:] if args is None else args), STOPPED.format(0))


if __name__ == "__main__":
    sys.exit(main())
