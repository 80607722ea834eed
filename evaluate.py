"""Score a checkpoint over a grid of sampling settings: tables, the perception-distortion plot and a report.

python evaluate.py --checkpoint runs/demo/checkpoint --data GoPro --grid configs/grid/paper.yaml --output scores
torchrun --nproc_per_node 4 evaluate.py --checkpoint ... --data ... --grid ... --output scores
python evaluate.py --checkpoints A/checkpoint B/checkpoint --data GoPro --grid configs/grid/quick.yaml --output ab
python evaluate.py --outputs baseline/results --data GoPro --output baseline/scores
python evaluate.py --data GoPro --output scores    # the presets of pretrained/lite
"""

import os
import sys
from pathlib import Path

from deblur.cli import make_parser, run_command
from deblur.evaluation.grid import read_grid
from deblur.evaluation.metrics import make_metrics, require_known
from deblur.evaluation.options import Evaluation
from deblur.hub import stored_index
from deblur.settings import SamplingSettings, require_device
from deblur.storage import require_writable


def evaluate(flags: Evaluation) -> None:
    """Score one checkpoint, or only another program's images, or compare two checkpoints."""
    settings = check(flags)
    # Threads that wait for each other sleep: of small images their spinning took more time than the networks.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Not at the top: torch takes seconds, and wrong input is said at once.
    from deblur.evaluation import run, scoring

    output = Path(flags.output)
    with run.sharing(output) as processes:
        pairs = run.read_pairs(flags, processes)
        metrics = make_metrics(flags.metric_names, pairs.texts, flags.language)
        summaries = {}
        for letter, checkpoint in flags.checkpoints_by_letter.items():
            plan = run.make_plan(flags, output / letter, pairs, checkpoint, metrics, settings, processes)
            scoring.score_images(plan)
            summaries[letter] = run.publish(flags, plan, summaries.get("A"))
        if flags.checkpoints and processes.is_global_zero:
            run.compare(flags, summaries)


def check(flags: Evaluation) -> list[SamplingSettings]:
    """The settings of the grid, none without one.

    Raises:
        ValueError: a wrong name or path, which is said before the libraries and the data are loaded.
    """
    require_known(flags.metric_names)
    require_device(flags.device)
    root = flags.data if Path(flags.data).exists() else flags.data.rpartition(":")[0]  # of ROOT:SPLIT
    if not flags.data.startswith("{") and not Path(root or flags.data).exists():
        raise ValueError(f"--data {flags.data} does not exist: give the root folder of a dataset, or a CSV manifest")
    if flags.outputs is not None and not Path(flags.outputs).exists():
        raise ValueError(f"--outputs {flags.outputs} does not exist")
    for checkpoint in filter(None, flags.checkpoints_by_letter.values()):
        stored_index(checkpoint)
        if flags.save_presets and not Path(checkpoint).is_dir():
            raise ValueError(f"--save_presets needs an exported checkpoint folder to write into, got {checkpoint}")
    settings = [] if flags.grid is None else read_grid(flags.grid)
    if flags.panel:
        require_writable(Path(flags.panel).parent, "--panel")
    require_writable(Path(flags.output))
    return settings


def command(args: list[str]) -> None:
    """Run the command line. Raises ValueError or OSError if something is wrong with it."""
    parser = make_parser("evaluate.py", __doc__, "--data PATH --output PATH [--FLAG VALUE ...]")
    parser.add_class_arguments(Evaluation)
    evaluate(Evaluation(**parser.given(args)))


def main(args: list[str] | None = None) -> int:
    """As `command`, by default of this process, but wrong input is one sentence on stderr; returns the exit code."""
    args = sys.argv[1:] if args is None else args
    return run_command("evaluate.py", lambda: command(args), "stopped; run again to resume")


if __name__ == "__main__":
    sys.exit(main())
