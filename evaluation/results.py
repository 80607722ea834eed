"""Write the files of an evaluation: results.csv, results.json and per_image.parquet, each atomically."""

import dataclasses
import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from base.files import replacing
from base.revision import commit, versions
from evaluation import controls, statistics
from evaluation.metrics import Metric
from evaluation.scoring import SECONDS_RECIPE, Plan, steps_of
from evaluation.summary import (
    NOTHING,
    Row,
    choose_presets,
    image_table,
    pareto_front,
    perception_metric,
    summarise,
)

_TABLE = {"psnr": ("PSNR", ".2f"), "ssim": ("SSIM", ".4f"), "lpips": ("LPIPS", ".4f")}


@dataclass(frozen=True)
class Results:
    """The results of an evaluation.

    Args:
        table: every score, from `evaluation.summary.image_table`.
        rows: from `evaluation.summary.summarise`.
        presets: name -> row, from `evaluation.summary.choose_presets`.
        steps: denoising steps of all settings on all images.
    """

    table: pd.DataFrame
    rows: list[Row]
    presets: dict[str, Row]
    steps: int


def results_of(plan: Plan) -> Results:
    """Compute means with intervals, the front and the presets from a complete journal."""
    table = image_table(plan)
    rows = summarise(plan, table)
    steps = len(plan.images) * sum(map(steps_of, plan.groups))
    return Results(table, rows, choose_presets(rows), steps)


def provenance() -> dict[str, Any]:
    """The origin of the numbers, as far as it does not depend on the evaluation: command, commit, versions."""
    return {
        "command": shlex.join(sys.argv),
        "git_commit": commit(),
        "versions": versions("torch", "torchvision", "diffusers", "lpips", "scikit-image", "numpy", "pillow"),
        "statistics": statistics.RECIPE,
        "seconds": SECONDS_RECIPE,
    }


def write_results(folder: Path, plan: Plan, results: Results, examples: Sequence[Mapping[str, Any]] = ()) -> list[Path]:
    """Write the three files into an existing folder and return their paths.

    `examples` are the entries for results.json from `evaluation.examples.keep_examples`.
    """
    paths = [folder / name for name in ("results.csv", "per_image.parquet", "results.json")]
    front = [row.label for row in pareto_front(results.rows)]
    named = {row.label: ", ".join(n for n, chosen in results.presets.items() if chosen is row) for row in results.rows}
    lines = [_line(row, plan, row.label in front, named[row.label] or None) for row in results.rows]
    with replacing(paths[0]) as part:
        pd.DataFrame(lines, dtype=object).to_csv(part, index=False, lineterminator="\n")
    reasons = ["; ".join(f"{metric}: {why}" for metric, why in own.items()) or None for own in results.table["missing"]]
    with replacing(paths[1]) as part:
        results.table.assign(missing=pd.array(reasons, dtype="string")).to_parquet(part, index=False)
    document = dict(plan.facts) | {
        "cost": {"denoising_steps": results.steps},
        "metrics": {
            name: {part: getattr(metric, part) for part in ("title", "higher_is_better", "recipe", "reason")}
            for name, metric in plan.metrics.items()
        },
        "controls": {"rows": controls.LABELS, "recipes": controls.RECIPES, "verdict": controls.VERDICT_RECIPE},
        "axes": {"distortion": "psnr", "perception": perception_metric(results.rows)},
        "rows": [
            {
                "setting": row.label,
                "fields": row.settings,
                "images": row.images,
                "front": row.label in front,
                "preset": named[row.label] or None,
                "seconds": row.seconds,
                "metrics": {name: _entry(row, name, metric) for name, metric in plan.metrics.items()},
                "verdict": row.verdict and dataclasses.asdict(row.verdict),
            }
            for row in results.rows
        ],
        "examples": list(examples),
    }
    with replacing(paths[2]) as part:
        part.write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return paths


def format_table(rows: Sequence[Row]) -> str:
    """The rows as text, best perception first; a star marks those on the Pareto front."""
    metric, front = perception_metric(rows), pareto_front(rows)
    sign = -1 if metric == "ssim" else 1
    legend = f"* on the Pareto front of PSNR and {metric.upper()}; means of {max(row.images for row in rows)} images"
    shown = {name: look for name, look in _TABLE.items() if any(row.mean(name) is not None for row in rows)}
    rows = [row for row in rows if any(row.mean(name) is not None for name in shown)]
    rows.sort(key=lambda row: (row.mean(metric) is None, sign * (row.mean(metric) or 0)))
    index = [f"{'*' if row in front else ' '} {row.label}" for row in rows]
    table = pd.DataFrame(index=index, columns=pd.Index([], name="  setting"))
    for name, (title, digits) in shown.items():
        own = [row.estimates.get(name, NOTHING) for row in rows]
        table[title] = ["-" if one.mean is None else format(one.mean, digits) for one in own]
        halves = ["-" if one.low is None else format((one.high - one.low) / 2, digits) for one in own]
        table.insert(len(table.columns), "± 95 %", halves, allow_duplicates=True)
    table["s/image"] = [f"{row.seconds:.3f}" for row in rows]
    if any(row.verdict for row in rows):
        table["perceptual"] = [(row.verdict and row.verdict.perceptual) or "-" for row in rows]
        legend = f"perceptual: LPIPS below both controls, the prediction sharpened and noised, at equal PSNR\n{legend}"
    return f"{table.to_string()}\n{legend}"


def _line(row: Row, plan: Plan, front: bool, preset: str | None) -> dict[str, Any]:
    """One line of results.csv; numbers have nine digits."""
    fields = dataclasses.asdict(plan.settings[0]) if plan.settings else {}
    line = {"setting": row.label} | {field: row.settings.get(field) for field in fields}
    line |= {"images": row.images, "front": front, "preset": preset}
    for name in plan.metrics:
        estimate, difference = (found.get(name, NOTHING) for found in (row.estimates, row.differences))
        line |= _interval(name, estimate) | {f"{name}_n": estimate.n} | _interval(f"{name}_difference", difference)
    verdict = row.verdict or controls.Verdict(None, {})
    line |= {"perceptual": verdict.perceptual}
    for control in controls.LABELS:
        line |= _interval(f"lpips_over_{control}", verdict.differences.get(control, NOTHING))
    line |= {"seconds": row.seconds}
    return {name: _cell(value) for name, value in line.items()}


def _entry(row: Row, name: str, metric: Metric) -> dict[str, Any]:
    """A row's entry for one metric in results.json."""
    estimate, difference = row.estimates.get(name, NOTHING), row.differences.get(name, NOTHING)
    numbers = dataclasses.asdict(estimate) | _interval("difference", difference)
    missing = row.missing.get(name, metric.reason if estimate.mean is None else None)
    return {part: json_number(value) for part, value in numbers.items()} | {"missing": missing}


def _interval(name: str, estimate: statistics.Estimate) -> dict[str, float | None]:
    """The mean and the ends of its interval, under a name and with its suffixes."""
    return {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else format(value, ".9g")


def json_number(value: float | None) -> float | str | None:
    """A number for JSON, which has no infinity: the infinite PSNR of equal images becomes "inf", nan becomes None."""
    if value is None or math.isnan(value):
        return None
    return value if math.isfinite(value) else str(value)
