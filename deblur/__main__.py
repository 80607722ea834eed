"""deblur COMMAND ...: all programs under one name. `deblur COMMAND --help` explains a command."""

import runpy
import sys

from deblur import __version__

COMMANDS = {
    "sample": ("deblur.sample", "restore photographs"),
    "train": ("deblur.train", "train on pairs or on sharp photographs"),
    "evaluate": ("deblur.evaluate", "score settings of a checkpoint"),
    "app": ("deblur.app", "a local page in the browser"),
    "doctor": ("deblur.tools.doctor", "find faults of a dataset"),
    "make-pairs": ("deblur.tools.make_pairs", "blur sharp photographs"),
    "export": ("deblur.tools.export", "a run or a checkpoint as a folder"),
    "batch": ("deblur.tools.batch", "restore a bucket or a folder, on Ray"),
}


def main() -> int:
    """Run the command that is named first, and return its exit code."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(f"usage: deblur COMMAND ...\n\n{__doc__}\n")
        for command, (_, about) in COMMANDS.items():
            print(f"  {command:<12}{about}")
        return 0
    if name == "--version":
        print(f"deblur {__version__}")
        return 0
    if name not in COMMANDS:
        print(f"deblur: error: {name} is no command: it is one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    del sys.argv[1]
    runpy.run_module(COMMANDS[name][0], run_name="__main__", alter_sys=True)  # which ends with sys.exit
    return 0


if __name__ == "__main__":
    sys.exit(main())
