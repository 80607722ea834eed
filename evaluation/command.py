"""Score a checkpoint over a grid of sampling settings: tables, the perception-distortion plot and a report.

python evaluate.py --checkpoint runs/demo/checkpoint --data GoPro --grid configs/grid/paper.yaml --output scores
torchrun --nproc_per_node 4 evaluate.py --checkpoint ... --data ... --grid ... --output scores
python evaluate.py --checkpoints A/checkpoint B/checkpoint --data GoPro --grid configs/grid/quick.yaml --output ab
python evaluate.py --outputs baseline/results --data GoPro --output baseline/scores
python evaluate.py --data GoPro --output scores    # the presets of pretrained/lite
"""

import sys

from deblur.cli import make_parser, run_command
from deblur.evaluation.options import Evaluation, check


def score(evaluation: Evaluation) -> None:
    """Check the options, then evaluate as they say."""
    check(evaluation)
    from deblur.evaluation import run  # not at the top: torch takes seconds, and wrong input is said at once

    run.score(evaluation)


def cli(args: list[str] | None = None) -> None:
    """Run the command line. Raises ValueError or OSError if something is wrong with it."""
    parser = make_parser("evaluate.py", __doc__, "--data PATH --output PATH [--FLAG VALUE ...]")
    parser.add_class_arguments(Evaluation)
    score(Evaluation(**parser.given(sys.argv[1:] if args is None else args)))


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code; wrong input is reported in one sentence on stderr."""
    return run_command("evaluate.py", lambda: cli(args), "stopped; run again to resume")


if __name__ == "__main__":
    sys.exit(main())
