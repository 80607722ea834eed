"""Scores of a refiner by the number of denoiser evaluations, as a table and a plot.

python -m benchmarks.few_steps pretrained/lite --data synthetic=PAIRS frames=OTHER_PAIRS
python -m benchmarks.few_steps runs/refine/checkpoint --data PAIRS --start 2

The checkpoint is sampled with ddim (eta 0 and 1) and dpmsolver++ in 1 to 50 steps. The blurry
images, the prediction, and the prediction sharpened and noised are scored for comparison. Writes few_steps.md, .json
and .png. The scores of each image are stored in --work at once, so the same command resumes a stopped run.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
import yaml
from jsonargparse import ArgumentParser
from matplotlib.figure import Figure
from torch import Tensor

import evaluate
from base.files import replacing, sole_user
from base.stop import run_command
from benchmarks.record import destination, machine, markdown_table, write_json
from evaluation.controls import LABELS, RECIPES, VERDICT_RECIPE, judge
from evaluation.journal import Score
from evaluation.metrics import Metric, MetricError
from evaluation.rows import BLURRY, PREDICTOR, SHARP
from evaluation.scoring import SECONDS_RECIPE, Plan, score_images
from models.settings import SamplingSettings, Schedule

STEPS = (1, 2, 3, 4, 5, 8, 10, 20, 50)
# Rows that are lines in the plot: colour and style.
LINES = {
    PREDICTOR: ("0.5", "--"),
    BLURRY: ("0.5", ":"),
    "sharpened 0.6": ("tab:brown", "-."),
    "noised 2": ("tab:pink", "-."),
}
SEEDS = 3  # samples per image, with different noise
SCORES = {"psnr": ("PSNR, dB", 2), "lpips": ("LPIPS, AlexNet", 4)}
DIVERSITY = "diversity"
RECIPE = (
    f"means over the images, and over {SEEDS} samples of each, ± the standard deviation of the samples' means;"
    " diversity is the standard deviation over an image's samples, in 8-bit levels, its mean over pixels and channels;"
    f" seconds are of one sample with its prediction: {SECONDS_RECIPE}"
)


@dataclass(frozen=True)
class OfSample:
    """A metric applied to one of an image's samples; stands in for `evaluation.metrics.Metric`."""

    metric: Metric
    sample: int

    @property
    def reason(self) -> str | None:
        """Why the metric is missing, if it is."""
        return self.metric.reason

    @property
    def inputs(self) -> Sequence[str]:
        """The arguments that the metric uses."""
        return self.metric.inputs

    def __call__(self, restored: Tensor, sharp: Tensor, names: Sequence[str]) -> Tensor:
        """Score one of the samples (K, 3, H, W)."""
        if self.sample >= len(restored):
            raise MetricError("there is one image and no sample")
        one = slice(self.sample, self.sample + 1)
        return self.metric(restored[one], sharp[one])


class Diversity:
    """Standard deviation over an image's samples, in 8-bit levels, averaged over pixels and channels."""

    inputs, reason = ("restored",), None

    def __call__(self, restored: Tensor, *_: Any, **__: Any) -> Tensor:
        """The diversity of samples (K, 3, H, W) in [0, 1] -> (1,)."""
        if len(restored) == 1:
            raise MetricError("there is one image and no sample")
        return 255 * restored.clamp(0, 1).std(0).mean()[None]


def settings_of(start: float | None, schedule: Schedule, blend: float, max_steps: int) -> list[SamplingSettings]:
    """The settings with which the checkpoint is sampled."""
    kinds = [("ddim", 0.0), ("ddim", 1.0), ("dpmsolver++", 0.0)]
    common = {"schedule": schedule, "start": start, "blend": blend, "num_samples": SEEDS}
    steps = [n for n in STEPS if n <= max_steps]
    return [SamplingSettings(sampler, steps=n, eta=eta, **common) for sampler, eta in kinds for n in steps]


def score(
    checkpoint: str, settings: Sequence[SamplingSettings], name: str, data: str, folder: Path, options: dict[str, Any]
) -> tuple[Plan, dict[tuple[str, str], Score]]:
    """The plan and all scores of a checkpoint on a dataset, (row, image) -> score; stored scores are reused."""
    folder.mkdir(parents=True, exist_ok=True)
    grid = folder / "grid.yaml"
    with replacing(grid) as part:
        part.write_text(yaml.safe_dump({"settings": [asdict(setting) for setting in settings]}))
    asked = evaluate.Evaluation(
        data=data, output=str(folder), checkpoint=checkpoint, grid=str(grid), metrics=",".join(SCORES), **options
    )
    evaluate.check(asked)
    plan = evaluate.prepare(asked, evaluate.find_processes())
    of_samples = {f"{m}/{k}": OfSample(plan.metrics[m], k) for m in SCORES for k in range(SEEDS)}
    plan = replace(plan, metrics=of_samples | {DIVERSITY: Diversity()})
    score_images(plan)
    return plan, plan.journal.scores()


def table_of(plan: Plan, scores: dict[tuple[str, str], Score]) -> list[dict[str, Any]]:
    """One row for blurry, the prediction and each control, then one for each setting."""
    images = [image.name for image in plan.images]
    settings = {row.label: row.settings for row in plan.settings}
    keys = {row.label: row.key for row in plan.rows if row.label != SHARP}

    def values(row: str, metric: str) -> np.ndarray:
        """(samples, images), nan where a metric is missing."""
        count = SEEDS if row in settings else 1
        each = [[scores[keys[row], image].metrics.get(f"{metric}/{k}") for image in images] for k in range(count)]
        return np.array(each, dtype=float)

    before = np.mean([scores[PREDICTOR, image].seconds for image in images])
    points = {row: np.stack([values(row, "psnr").mean(0), values(row, "lpips").mean(0)], axis=1) for row in keys}
    curves = {c: np.stack([points[row] for row in (PREDICTOR, *own)], axis=1) for c, own in LABELS.items()}
    rows = []
    for row in keys:
        found: dict[str, Any] = {"row": row}
        for metric in SCORES:
            means = values(row, metric).mean(1)
            missing = np.isnan(means).any()
            found[metric] = None if missing else float(means.mean())
            found[f"{metric}_spread"] = None if missing or len(means) == 1 else float(means.std(ddof=1))
        seconds = float(np.mean([scores[keys[row], image].seconds for image in images]))
        found["seconds"] = seconds
        if row in settings:
            setting = settings[row]
            found["seconds"] = float(before + (seconds - before) / SEEDS)
            found[DIVERSITY] = float(np.mean([scores[keys[row], image].metrics[DIVERSITY] for image in images]))
            whole = not np.isnan(points[row]).any() and not np.isnan(points[PREDICTOR]).any()
            verdict = judge(points[row], curves, plan.seed) if whole else None
            found |= {"evaluations": setting.steps, "perceptual": verdict and verdict.perceptual}
            found |= {"verdict": verdict and asdict(verdict), "fields": asdict(setting)}
        rows.append(found)
    return rows


def markdown(results: dict[str, dict[str, Any]]) -> str:
    """The tables, one per dataset."""
    return "\n".join(line for name, result in results.items() for line in _table(name, result))


def _table(name: str, result: dict[str, Any]) -> list[str]:
    head = ["", "evaluations", *(title for title, _ in SCORES.values()), "seconds", DIVERSITY, "perceptual"]
    lines = []
    for row in result["rows"]:
        cells = [row["row"], str(row.get("evaluations", 0))]
        for metric, (_, digits) in SCORES.items():
            spread = row[f"{metric}_spread"]
            shown = "missing" if row[metric] is None else f"{row[metric]:.{digits}f}"
            cells.append(shown + ("" if spread is None else f" ± {spread:.{digits}f}"))
        cells.append(f"{row['seconds']:.2f}" if row["seconds"] else "")
        cells += [f"{row[DIVERSITY]:.2f}" if DIVERSITY in row else "", row.get("perceptual") or ""]
        lines.append(cells)
    return [f"{name}, {result['images']} images:\n", *markdown_table(head, *lines), ""]


def plot(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Plot PSNR and LPIPS by the number of evaluations for each dataset, with spread; `LINES` are horizontal."""
    figure = Figure(figsize=(4.2 * len(SCORES), 3.4 * len(results)), dpi=150, layout="constrained")
    panels = figure.subplots(len(results), len(SCORES), squeeze=False)
    for line, (name, result) in zip(panels, results.items(), strict=True):
        for axes, (metric, (title, _)) in zip(line, SCORES.items(), strict=True):
            for sampler, rows in _curves(result["rows"], metric).items():
                y = [row[metric] for row in rows]
                spread = [row[f"{metric}_spread"] for row in rows]
                x = [row["evaluations"] for row in rows]
                axes.errorbar(x, y, spread, marker="o", markersize=3, linewidth=1, capsize=2, label=sampler)
            for row, (color, style) in LINES.items():
                value = next(own[metric] for own in result["rows"] if own["row"] == row)
                if value is not None:
                    axes.axhline(value, color=color, linestyle=style, linewidth=1, label=row)
            axes.set_xscale("log")
            axes.set_xticks(STEPS, [str(n) for n in STEPS], minor=False)
            axes.minorticks_off()
            axes.set_title(f"{name}: {title}", fontsize=9)
            axes.set_xlabel("denoiser evaluations", fontsize=8)
            axes.tick_params(labelsize=7)
    panels[0][0].legend(fontsize=7)
    with replacing(path) as part:
        figure.savefig(part, format="png")


def _curves(rows: Sequence[dict[str, Any]], metric: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of each sampler that have this metric, by the number of evaluations."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "fields" in row and row[metric] is not None:
            sampler, eta = row["fields"]["sampler"], row["fields"]["eta"]
            found.setdefault(f"{sampler}, eta {eta:g}" if sampler == "ddim" else sampler, []).append(row)
    return found


def main(
    checkpoint: str,
    data: list[str],
    start: float | None = None,
    schedule: Schedule = "training",
    blend: float = 1.0,
    max_steps: int = STEPS[-1],
    limit: int | None = None,
    split: str = "test",
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    work: str = "runs/few_steps",
    output: str = "runs/benchmarks",
    publish: bool = False,
) -> None:
    """Score the checkpoint, and write the table, its numbers and the plot.

    Args:
        checkpoint: as sample.py's --checkpoint.
        data: datasets as for evaluate.py; NAME=FOLDER names one in the table.
        start: noise level that the samplers start from, as sample.py's --start.
        schedule: noise levels that the samplers visit.
        blend: of prediction and sample.
        max_steps: leave out the settings with more steps.
        limit: score at most this many pairs of each dataset, spread evenly over the list.
        split: which split of the datasets.
        seed: of the noise.
        device: as for evaluate.py.
        precision: as for evaluate.py.
        work: folder for the scores of each image.
        output: folder for few_steps.md, .json and .png.
        publish: write into benchmarks/results, under the name of the output.
    """
    output = destination(output, publish)
    named = {}
    for given in data:
        name, _, folder = given.rpartition("=")
        name = name or Path(folder).resolve().name
        if name in named:
            raise ValueError(f"two datasets are called {name}: name them, as --data NAME={folder}")
        named[name] = folder
    options = {"limit": limit, "split": split, "seed": seed, "device": device, "precision": precision}
    results: dict[str, dict[str, Any]] = {}
    with sole_user(Path(work)):
        for name, folder in named.items():
            settings = settings_of(start, schedule, blend, max_steps)
            plan, scores = score(checkpoint, settings, name, folder, Path(work) / name, options)
            subject = {"checkpoint": plan.facts["checkpoint"], "data": plan.facts["data"] | {"root": name}}
            results[name] = {"images": len(plan.images), "subject": subject, "rows": table_of(plan, scores)}
    folder, place = Path(output), plan.device
    folder.mkdir(parents=True, exist_ok=True)
    recipes = {name: metric.recipe or metric.reason for name, metric in _metrics(plan).items()}
    asked = {"start": start, "schedule": schedule, "blend": blend, "seed": seed, "precision": plan.facts["precision"]}
    controls = RECIPES | {"perceptual": VERDICT_RECIPE}
    write_json(
        folder / "few_steps.json",
        asked | {"recipe": RECIPE, "metrics": recipes, "controls": controls, "data": results} | machine(str(place)),
    )
    with replacing(folder / "few_steps.md") as part:
        recipe = fill(f"{RECIPE[0].upper()}{RECIPE[1:]}.", 120, break_on_hyphens=False)
        part.write_text(f"{markdown(results)}\n{recipe}\n")
    plot(results, folder / "few_steps.png")
    print(markdown(results))
    print(f"wrote {folder}/few_steps.md, .json and .png")


def _metrics(plan: Plan) -> dict[str, Metric]:
    return {name: plan.metrics[f"{name}/0"].metric for name in SCORES}


def cli(args: list[str] | None = None) -> None:
    """The command line."""
    parser = ArgumentParser(description=__doc__, prog="benchmarks.few_steps", allow_abbrev=False)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="as sample.py's --checkpoint")
    parser.add_argument("--data", nargs="+", required=True, help="datasets; NAME=FOLDER names one in the table")
    parser.add_function_arguments(main, skip={"checkpoint", "data"})
    main(**parser.parse_args(args).as_dict())


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    sys.exit(run_command("benchmarks.few_steps", cli, "stopped; run again to resume"))
