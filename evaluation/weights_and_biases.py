"""Log an evaluation to Weights & Biases."""

import os
from collections.abc import Callable
from pathlib import Path

import wandb

from evaluation.summary import Summary


def offline_without_key(say: Callable[[str], None]) -> None:
    """Make Weights & Biases log to disk if it has no API key; it would otherwise stop and ask for one."""
    if "WANDB_MODE" not in os.environ and not wandb.login(prompt=False):
        wandb.setup(wandb.Settings(mode="offline", silent=True))
        say("Weights & Biases: no API key, so the run is logged offline; `wandb sync` uploads it later")


def log(project: str, folder: Path, summary: Summary) -> None:
    """Log the table, the curve and the panels in `folder` to a project; offline if there is no API key."""
    offline_without_key(print)
    names = list(summary.metrics)
    lines = [[row.label, *(row.mean(name) for name in names)] for row in summary.rows]
    table = wandb.Table(columns=["setting", *names], data=lines)
    curve = wandb.plot.scatter(table, "psnr", summary.perception, title="Perception and distortion")
    files = {f"panels/{file.stem}": file for file in sorted((folder / "panels").glob("*.png"))}
    files["pareto"] = folder / "pareto.png"
    with wandb.init(project=project, config=dict(summary.facts), dir=folder, job_type="evaluate") as run:
        shown = {name: wandb.Image(str(file)) for name, file in files.items()}
        run.log({"results": table, "curve": curve} | shown)
