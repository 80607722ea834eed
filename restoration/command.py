"""Restore blurry photographs: files, folders or patterns in, restored images out.

python sample.py photo.jpg --output restored
python sample.py photo.jpg --output sharp.png --preset perceptual
python sample.py 'photos/**/*.png' --checkpoint runs/demo/checkpoint --output restored --sampler ddpm --steps 50
torchrun --nproc_per_node 2 sample.py photos --output restored
"""

from __future__ import annotations

import sys
from dataclasses import asdict, fields
from typing import Any

from deblur.cli import Parser, UsageError, make_parser, run_command
from deblur.hub import PRETRAINED, name_of, stored_index
from deblur.restoration.options import Options, check_settings
from deblur.restoration.outputs import Outputs, outputs_of
from deblur.settings import SamplingSettings, preset_settings
from deblur.storage import require_writable

NOT_BEGUN = "stopped, 0 done; run again to resume"


def checked(inputs: list[str], options: Options, numbers: dict[str, Any]) -> Outputs:
    """The images and where their restorations go, as far as can be told without the networks.

    ValueError or OSError: nothing can be restored.
    """
    check_settings(options, numbers)
    outputs = outputs_of(inputs, options.output, options.suffix, options.depth == 16)
    if options.mask and len(outputs.work) > 1:
        raise ValueError(f"--mask is for one photograph, and there are {len(outputs.work)}: restore them one by one")
    require_writable(outputs.folder)
    return outputs


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
    numbers = {name: value for name, value in values.items() if name not in names}
    outputs = checked(inputs, options, numbers)
    from deblur.restoration.run import restore  # not at the top: torch takes seconds, and wrong input is said at once

    return 1 if restore(outputs, options, numbers) else 0


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code; wrong input is reported in one sentence on stderr."""
    return run_command("sample.py", lambda: _main(sys.argv[1:] if args is None else args), NOT_BEGUN)


if __name__ == "__main__":
    sys.exit(main())
