"""Write the files of an evaluation: results.csv, results.json and per_image.parquet, each atomically."""

import dataclasses
import json
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from deblur.evaluation import controls, statistics
from deblur.evaluation.examples import Example
from deblur.evaluation.journal import Facts
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


def write_results(folder: Path, summary: Summary, examples: Sequence[Example] = ()) -> None:
    """Write the three files into an existing folder."""
    with replacing(folder / "results.csv") as part:
        lines = [_line(row, summary) for row in summary.rows]
        pd.DataFrame(lines).to_csv(part, index=False, float_format="%.9g", lineterminator="\n")
    reasons = [
        "; ".join(f"{metric}: {why}" for metric, why in missing.items()) or None
        for missing in summary.scores["missing"]
    ]
    with replacing(folder / "per_image.parquet") as part:
        summary.scores.assign(missing=pd.array(reasons, dtype="string")).to_parquet(part, index=False)
    with replacing(folder / "results.json") as part:
        text = json.dumps(_document(summary, examples), indent=1, ensure_ascii=False, allow_nan=False)
        part.write_text(text + "\n", encoding="utf-8")


def format_table(summary: Summary) -> str:
    """The rows as text, best perception first, with every metric that has a value; a star marks the Pareto front."""
    metric = summary.perception
    sign = -1 if metric == "ssim" else 1
    shown = {
        name: metric.column
        for name, metric in summary.metrics.items()
        if any(row.mean(name) is not None for row in summary.rows)
    }
    rows = [row for row in summary.rows if any(row.mean(name) is not None for name in shown)]
    rows.sort(key=lambda row: (row.mean(metric) is None, sign * (row.mean(metric) or 0)))
    index = [f"{'*' if row in summary.front else ' '} {row.label}" for row in rows]
    table = pd.DataFrame(index=index, columns=pd.Index([], name="  setting"))
    for name, (title, digits, _) in shown.items():
        estimates = [row.estimates.get(name, NOTHING) for row in rows]
        table[title.partition(" (")[0]] = ["-" if e.mean is None else format(e.mean, f".{digits}f") for e in estimates]
        halves = ["-" if e.low is None else format((e.high - e.low) / 2, f".{digits}f") for e in estimates]
        table.insert(len(table.columns), "± 95 %", halves, allow_duplicates=True)
    table["s/image"] = [f"{row.seconds:.3f}" for row in rows]
    images = max(row.images for row in rows)
    legend = [
        f"* on the Pareto front of PSNR and {metric.upper()}; means of {images} {'image' if images == 1 else 'images'}"
    ]
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


def _document(summary: Summary, examples: Sequence[Example]) -> dict:
    """The contents of results.json."""
    return dict(summary.facts) | {
        "cost": {"denoising_steps": summary.steps},
        "metrics": {
            name: {"title": metric.column.title, "higher_is_better": metric.column.higher_is_better}
            | {"recipe": metric.recipe, "reason": metric.reason}
            for name, metric in summary.metrics.items()
        },
        "controls": {"rows": controls.LABELS, "recipes": controls.RECIPES, "verdict": controls.VERDICT_RECIPE},
        "axes": {"distortion": "psnr", "perception": summary.perception},
        "rows": [
            {
                "setting": row.label,
                "fields": dataclasses.asdict(row.row.settings) if row.row.settings else {},
                "images": row.images,
                "front": row in summary.front,
                "preset": summary.preset(row),
                "seconds": row.seconds,
                "metrics": {name: _entry(row, name, summary) for name in summary.metrics},
                "verdict": row.verdict and dataclasses.asdict(row.verdict),
            }
            for row in summary.rows
        ],
        "examples": [
            {"setting": example.row.label, "image": example.image, "rank": example.rank, "files": example.files}
            | {"scores": {name: json_number(value) for name, value in example.scores.items()}}
            for example in examples
        ],
    }


def _line(row: RowSummary, summary: Summary) -> dict[str, Any]:
    """One line of results.csv, whose numbers are written with nine digits."""
    line = {"setting": row.label}
    if summary.settings:
        line |= {
            field.name: getattr(row.row.settings, field.name, None) for field in dataclasses.fields(SamplingSettings)
        }
    line |= {"images": row.images, "front": row in summary.front, "preset": summary.preset(row)}
    for name in summary.metrics:
        estimate, difference = (estimates.get(name, NOTHING) for estimates in (row.estimates, row.differences))
        line |= _interval(name, estimate) | {f"{name}_n": estimate.n} | _interval(f"{name}_difference", difference)
    line |= {"perceptual": row.verdict.perceptual if row.verdict else None}
    for control in controls.LABELS:
        gaps = row.verdict.differences if row.verdict else {}
        line |= _interval(f"lpips_over_{control}", gaps.get(control, NOTHING))
    return line | {"seconds": row.seconds}


def _entry(row: RowSummary, name: str, summary: Summary) -> dict[str, Any]:
    """A row's entry for one metric in results.json."""
    estimate, difference = row.estimates.get(name, NOTHING), row.differences.get(name, NOTHING)
    numbers = dataclasses.asdict(estimate) | _interval("difference", difference)
    missing = row.missing.get(name, summary.metrics[name].reason if estimate.mean is None else None)
    return {part: json_number(value) for part, value in numbers.items()} | {"missing": missing}


def _interval(name: str, estimate: statistics.Estimate) -> dict[str, float | None]:
    """The mean and the ends of its interval, under a name and with its suffixes."""
    return {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
