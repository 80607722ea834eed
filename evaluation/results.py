"""Write the tables of an evaluation, or of two that are compared, each atomically, and show them as text."""

import dataclasses
import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from deblur.cli import number_of
from deblur.evaluation import controls, statistics
from deblur.evaluation.grid import BLURRY, CONTROLS, LABELS, SHARP
from deblur.evaluation.journal import Facts
from deblur.evaluation.metrics import Metric
from deblur.evaluation.scoring import SECONDS_RECIPE
from deblur.evaluation.summary import NOTHING, RowSummary, Summary
from deblur.revision import commit, versions
from deblur.settings import SamplingSettings
from deblur.storage import replacing


def provenance() -> Facts:
    """The origin of the numbers, as far as it does not depend on the evaluation: command, commit, versions."""
    return {
        "command": shlex.join(sys.argv),
        "git_commit": commit(),
        "versions": versions("torch", "torchvision", "diffusers", "lpips", "scikit-image", "numpy", "pillow"),
        "statistics": statistics.RECIPE,
        "seconds": SECONDS_RECIPE,
    }


def write_results(folder: Path, summary: Summary) -> None:
    """Write results.csv, per_image.parquet and results.json into an existing folder."""
    _write_csv(folder / "results.csv", [_line(row, summary) for row in summary.rows])
    reasons = [
        "; ".join(f"{metric}: {why}" for metric, why in missing.items()) or None
        for missing in summary.scores["missing"]
    ]
    with replacing(folder / "per_image.parquet") as part:
        summary.scores.assign(missing=pd.array(reasons, dtype="string")).to_parquet(part, index=False)
    write_document(folder, summary)


def _write_csv(file: Path, lines: Sequence[dict[str, Any]]) -> None:
    with replacing(file) as part:
        pd.DataFrame(lines).to_csv(part, index=False, float_format="%.9g", lineterminator="\n")


def write_document(folder: Path, summary: Summary) -> None:
    """Write results.json into an existing folder."""
    document = dict(summary.facts) | {
        "cost": {"denoising_steps": summary.steps},
        "metrics": {
            name: {"title": metric.column.title, "higher_is_better": metric.column.higher_is_better}
            | {"recipe": metric.recipe, "reason": metric.reason}
            for name, metric in summary.metrics.items()
        },
        "controls": {"rows": LABELS, "recipes": controls.RECIPES, "verdict": controls.VERDICT_RECIPE},
        "axes": {"distortion": "psnr", "perception": summary.perception},
        "rows": [
            {
                "setting": row.label,
                "fields": dataclasses.asdict(row.settings) if row.settings else {},
                "images": row.images,
                "front": row in summary.front,
                "preset": summary.preset_names.get(row.label),
                "seconds": row.seconds,
                "metrics": {name: _entry(row, name, summary) for name in summary.metrics},
                "verdict": row.verdict and dataclasses.asdict(row.verdict),
            }
            for row in summary.rows
        ],
        "examples": [
            {"setting": example.row.label, "image": example.image, "rank": example.rank, "files": example.files}
            | {"scores": {name: json_number(value) for name, value in example.scores.items()}}
            for example in summary.examples
        ],
    }
    with replacing(folder / "results.json") as part:
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
        part.write_text(text + "\n", encoding="utf-8")


def format_table(summary: Summary) -> str:
    """The rows as text, best perception first, with every metric that has a value; a star marks the Pareto front."""
    metric = summary.perception
    sign = -1 if metric == "ssim" else 1
    shown = {
        name: metric.column
        for name, metric in summary.metrics.items()
        if any(row.means.get(name) is not None for row in summary.rows)
    }
    rows = [row for row in summary.rows if any(row.means.get(name) is not None for name in shown)]
    rows.sort(key=lambda row: (row.means.get(metric) is None, sign * (row.means.get(metric) or 0)))
    index = [f"{'*' if row in summary.front else ' '} {row.label}" for row in rows]
    table = pd.DataFrame(index=index, columns=pd.Index([], name="  setting"))
    for name, column in shown.items():
        number = f".{column.digits}f"
        estimates = [row.estimates.get(name, NOTHING) for row in rows]
        table[column.short_title] = ["-" if e.mean is None else format(e.mean, number) for e in estimates]
        halves = ["-" if e.low is None else format((e.high - e.low) / 2, number) for e in estimates]
        table.insert(len(table.columns), "± 95 %", halves, allow_duplicates=True)
    table["s/image"] = [f"{row.seconds:.3f}" for row in rows]
    images = number_of(max(row.images for row in rows), "image")
    legend = [f"* on the Pareto front of PSNR and {metric.upper()}; means of {images}"]
    judged = [row.verdict for row in rows if row.verdict]
    if judged:
        table["perceptual"] = [row.verdict.perceptual if row.verdict else "" for row in rows]
        reasons = dict.fromkeys(verdict.missing for verdict in judged if verdict.missing)
        legend = [
            "perceptual: LPIPS below both controls, the prediction sharpened and noised, at equal PSNR",
            *(f"unknown: {reason}" for reason in reasons),
            *legend,
        ]
    return "\n".join([table.to_string(), *legend])


def json_number(value: float | None) -> float | str | None:
    """A number for JSON, which has no infinity: the infinite PSNR of equal images becomes "inf", nan becomes None."""
    if value is None or math.isnan(value):
        return None
    return value if math.isfinite(value) else str(value)


def _line(row: RowSummary, summary: Summary) -> dict[str, Any]:
    """One line of results.csv, whose numbers are written with nine digits."""
    line = {"setting": row.label}
    if summary.settings:
        line |= {field.name: getattr(row.settings, field.name, None) for field in dataclasses.fields(SamplingSettings)}
    line |= {"images": row.images, "front": row in summary.front, "preset": summary.preset_names.get(row.label)}
    for name in summary.metrics:
        estimate, difference = (estimates.get(name, NOTHING) for estimates in (row.estimates, row.differences))
        line |= _interval(name, estimate) | {f"{name}_n": estimate.n} | _interval(f"{name}_difference", difference)
    line |= {"perceptual": row.verdict.perceptual if row.verdict else None}
    for control in LABELS:
        gaps = row.verdict.differences if row.verdict else {}
        line |= _interval(f"lpips_over_{control}", gaps.get(control, NOTHING))
    return line | {"seconds": row.seconds}


def _entry(row: RowSummary, name: str, summary: Summary) -> dict[str, Any]:
    estimate, difference = row.estimates.get(name, NOTHING), row.differences.get(name, NOTHING)
    numbers = dataclasses.asdict(estimate) | _interval("difference", difference)
    missing = row.missing.get(name, summary.metrics[name].reason if estimate.mean is None else None)
    return {part: json_number(value) for part, value in numbers.items()} | {"missing": missing}


def _interval(name: str, estimate: statistics.Estimate) -> dict[str, float | None]:
    """The mean and the ends of its interval, under a name and with its suffixes."""
    return {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


class Change(NamedTuple):
    """What B differs from A in by one setting and metric: both means, and B - A, paired by image."""

    a: float
    b: float
    estimate: statistics.Estimate


def write_comparison(first: Summary, second: Summary, output: Path, seed: int = 0) -> dict[str, dict[str, Change]]:
    """Write comparison.csv with the means of A and B and B - A for each setting and metric.

    Args:
        first, second: the results of A and of B.
        output: an existing folder.
        seed: of the bootstrap.

    Returns:
        Setting -> metric -> change, in the order of the rows.
    """
    joined = first.scores.merge(second.scores, on=["setting", "image"], suffixes=("_a", "_b"))
    changes: dict[str, dict[str, Change]] = {}
    for setting, of_setting in joined.groupby("setting", sort=False):
        for name in first.metrics:
            pairs = of_setting[[f"{name}_a", f"{name}_b"]].to_numpy()
            pairs = pairs[np.isfinite(pairs).all(axis=1)]
            if len(pairs):
                a, b, change = statistics.estimates(np.column_stack([pairs, pairs[:, 1] - pairs[:, 0]]), seed)
                changes.setdefault(setting, {})[name] = Change(a.mean, b.mean, change)
    lines = [
        {"setting": setting, "metric": name, "images": change.estimate.n, "a": change.a, "b": change.b}
        | {"difference": change.estimate.mean, "low": change.estimate.low, "high": change.estimate.high}
        for setting, row in changes.items()
        for name, change in row.items()
    ]
    _write_csv(output / "comparison.csv", lines)
    return changes


def format_changes(changes: Mapping[str, Mapping[str, Change]], metrics: Mapping[str, Metric]) -> str:
    """B - A as text, one line for each row that depends on the checkpoint, without the controls."""
    rows = {setting: row for setting, row in changes.items() if setting not in (BLURRY, SHARP, *CONTROLS)}
    table = pd.DataFrame(index=rows, columns=pd.Index(["images"], name="B - A"))
    table["images"] = [max(change.estimate.n for change in row.values()) for row in rows.values()]
    for name, metric in metrics.items():
        if any(name in row for row in rows.values()):
            digits = metric.column.digits
            shown = [signed(row[name].estimate, digits) if name in row else "-" for row in rows.values()]
            table[metric.column.short_title] = shown
    return table.to_string()


def signed(difference: statistics.Estimate, digits: int) -> str:
    """A difference and, if there is one, its interval."""
    mean, low, high = (
        None if value is None else f"{value:+.{digits}f}"
        for value in (difference.mean, difference.low, difference.high)
    )
    return mean if low is None else f"{mean} ({low} to {high})"
