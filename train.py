"""Train on blurry/sharp pairs, or on sharp photographs with synthetic blur.

    python train.py fit --config configs/demo.yaml
    python train.py fit --config configs/gopro.yaml --data.train /data/GoPro
    python train.py validate --config configs/demo.yaml --ckpt_path runs/demo/checkpoints/last.ckpt
    python train.py replay runs/demo/faults/step_N.safetensors --config configs/demo.yaml
    python train.py fit --help

Every value of a config file is also a flag. A run writes into trainer.default_root_dir: checkpoints/ (last, the one
before it, best by PSNR, best by LPIPS), checkpoint/ (the averaged weights as a pipeline folder, for sample.py and
evaluate.py), config.yaml and logs/version_N/metrics.csv. A run that was stopped is resumed by the same command.
"""

import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

from data.datamodule import DeblurDataModule
from training.command import Command
from training.guards import replay

COMMANDS = ("fit", "validate", "test")


def cli(args: list[str], run: bool = True) -> Command:
    """Build what a command line describes, and do what its first word names; without `run` there is no first word."""
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")  # on a CPU the same switch slows convolutions down
    name, flags = (args[0], args[1:]) if run else (None, args)
    with ExitStack() as held:
        command = Command(name, DeblurDataModule, flags, held)
        command.run()
    return command


def _replay(args: list[str]) -> None:
    if not args or args[0].startswith("-"):
        raise ValueError("replay wants a file first: python train.py replay FILE --config ... (the run's own flags)")
    run = cli(args[1:], run=False)
    print("\n".join(replay(Path(args[0]), run.model, run.trainer.precision)))


def _context(error: BaseException) -> BaseException | None:
    return None if error.__suppress_context__ else error.__context__


def main(args: list[str] | None = None) -> int:
    """Run the command line; returns the exit code, after one sentence on stderr where the input is at fault."""
    args = sys.argv[1:] if args is None else args
    try:
        if args[:1] == ["replay"]:
            _replay(args[1:])
        else:
            cli(args)
    except (ValueError, OSError, ModuleNotFoundError, MisconfigurationException) as error:
        # jsonargparse wraps what a class says of its arguments in a list of all that it tried: say the first cause.
        while isinstance(cause := error.__cause__ or _context(error), ValueError | OSError):
            error = cause
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    except SIGTERMException:
        return 128 + signal.SIGTERM
    return 0


if __name__ == "__main__":
    sys.exit(main())
