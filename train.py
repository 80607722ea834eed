"""Train on blurry/sharp pairs, or on sharp photographs with synthetic blur.

python train.py fit --config configs/demo.yaml
python train.py fit --config configs/gopro.yaml --data.train /data/GoPro
python train.py validate --config configs/demo.yaml --ckpt_path runs/demo/checkpoints/last.ckpt

Every value of a config file is also a flag. A run writes to trainer.default_root_dir: checkpoints/ (last, the previous
one, best by PSNR, best by LPIPS), checkpoint/ (the averaged weights as a pipeline folder, for sample.py and
evaluate.py), config.yaml and logs/version_N/metrics.csv. The same command resumes a stopped run.
"""

import sys
from contextlib import ExitStack
from typing import Any

from deblur.cli import UsageError, error_in_words, run_command

COMMANDS = {
    "fit": "train, or resume the run in trainer.default_root_dir",
    "validate": "score a checkpoint on data.val",
    "test": "score a checkpoint on data.test, whole images",
}


def cli(args: list[str]) -> Any:
    """Build a run (`training.run.Run`) from a command line and execute its command."""
    from deblur.training.run import Run  # not at the top: lightning takes seconds to import

    name, *flags = args
    with ExitStack() as held:  # the run's folder, while this process writes to it
        built = Run(name, flags, held)  # networks with their losses, data and trainer
        if name == "fit" and not built.is_finished():
            built.train()  # each step is training_step of training/module.py, the paper's algorithm 1
            built.export()
        elif name != "fit":
            built.score()
    return built


def command(args: list[str]) -> None:
    """Run the command line. Raises ValueError or OSError if something is wrong with it."""
    name = args[0] if args else ""
    if name in ("-h", "--help"):
        print(f"usage: python train.py COMMAND --config FILE [--FLAG VALUE ...]\n\n{__doc__}\ncommands:")
        print("\n".join(f"  {name:<10}{text}" for name, text in COMMANDS.items()))
        print("\npython train.py fit --help lists all flags")
    elif name in COMMANDS:
        cli(args)
    else:
        given = f"{name} is no command" if name else "no command is given"
        raise UsageError(f"{given}: it is one of {', '.join(COMMANDS)} (python train.py --help)")


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code; wrong input is reported in one sentence on stderr."""
    # The message is for Ctrl-C until training begins, which handles it itself; Lightning would exit with code 1.
    stopped = "stopped before the first step; nothing was changed"
    return run_command("train.py", lambda: command(sys.argv[1:] if args is None else args), stopped, _root_cause)


def _root_cause(error: BaseException) -> str:
    # jsonargparse wraps a class's error in a list of everything it tried: report the original cause.
    while isinstance(
        cause := error.__cause__ if error.__suppress_context__ else error.__context__, ValueError | OSError
    ):
        error = cause
    return " ".join(error_in_words(error).split())


if __name__ == "__main__":
    sys.exit(main())
