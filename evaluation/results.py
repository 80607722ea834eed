"""The files of an evaluation: results.csv, .parquet and .json, and per_image.parquet; each whole or not there."""

import csv
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evaluation import controls
from evaluation.grid import Outcome, Row, key, label_settings, pareto_front, perception_metric
from evaluation.journal import whole_file
from evaluation.metrics import Metric
from evaluation.statistics import Estimate

_TABLE = {"psnr": ("PSNR", ".2f"), "ssim": ("SSIM", ".4f"), "lpips": ("LPIPS", ".4f")}
_NOTHING = Estimate(None, None, None, 0)


def write_results(
    output: Path,
    rows: Sequence[Row],
    outcome: Outcome,
    names: Sequence[str],
    settings: Sequence[Any],
    metrics: Mapping[str, Metric],
    presets: Mapping[str, Row],
    facts: Mapping[str, Any],
    pictures: Sequence[Mapping[str, Any]] = (),
) -> list[Path]:
    """Write the four files into the folder `output` and return their paths.

    Args:
        output: an existing folder.
        rows: from `evaluation.grid.summarise`.
        outcome: from `evaluation.grid.run_grid`.
        names: of the pictures.
        settings: the grid.
        metrics: all that were asked for, with those that are missing.
        presets: from `evaluation.grid.choose_presets`.
        facts: what else the numbers depend on, for results.json.
        pictures: the entries of results.json on pictures that were kept.
    """
    paths = [output / name for name in ("results.csv", "results.parquet", "per_image.parquet", "results.json")]
    front = [row.label for row in pareto_front(rows)]
    named = {row.label: [name for name, chosen in presets.items() if chosen is row] for row in rows}
    table = [_flat(row, metrics, row.label in front, named[row.label], settings) for row in rows]
    with whole_file(paths[0]) as part, part.open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        lines.writeheader()
        lines.writerows({name: _cell(value) for name, value in line.items()} for line in table)
    with whole_file(paths[1]) as part:
        pq.write_table(pa.Table.from_pylist(table), part)
    with whole_file(paths[2]) as part:
        pq.write_table(per_image(rows, outcome, names, settings, metrics), part)
    document = dict(facts) | {
        "cost": {"denoising_steps": outcome.steps, "denoising_steps_in_full": outcome.steps_in_full},
        "metrics": {
            name: {
                "title": metric.title,
                "higher_is_better": metric.higher_is_better,
                "recipe": metric.recipe,
                "reason": metric.reason,
            }
            for name, metric in metrics.items()
        },
        "controls": {"rows": controls.LABELS, "recipes": controls.RECIPES, "verdict": controls.VERDICT_RECIPE},
        "axes": {"distortion": "psnr", "perception": perception_metric(rows)},
        "rows": [
            {
                "setting": row.label,
                "fields": row.settings,
                "images": row.images,
                "dropped": row.dropped,
                "front": row.label in front,
                "preset": ", ".join(named[row.label]) or None,
                "seconds": row.seconds,
                "metrics": {name: _entry(row, name, metrics[name]) for name in metrics},
                "verdict": row.verdict and dataclasses.asdict(row.verdict),
            }
            for row in rows
        ],
        "pictures": list(pictures),
    }
    with whole_file(paths[3]) as part:
        part.write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return paths


def per_image(
    rows: Sequence[Row],
    outcome: Outcome,
    names: Sequence[str],
    settings: Sequence[Any],
    metrics: Mapping[str, Metric],
) -> pa.Table:
    """Every score: setting, image, seconds, a column a metric (null where missing), and why it is missing."""
    keys = dict(zip(label_settings(settings), map(key, settings), strict=True))
    scores = [
        (row.label, score)
        for row in rows
        for name in names
        if (score := outcome.scores.get((keys.get(row.label, row.label), name))) is not None
    ]
    columns = {
        "setting": pa.array([label for label, _ in scores], pa.string()),
        "image": pa.array([score.image for _, score in scores], pa.string()),
        "seconds": pa.array([score.seconds for _, score in scores], pa.float64()),
    }
    for name in (name for name, metric in metrics.items() if not metric.is_set):
        columns[name] = pa.array([score.metrics.get(name) for _, score in scores], pa.float64())
    reasons = ["; ".join(f"{name}: {why}" for name, why in score.missing.items()) or None for _, score in scores]
    return pa.table(columns | {"missing": pa.array(reasons, pa.string())})


def format_table(rows: Sequence[Row]) -> str:
    """The rows as text, best perception first, those on the Pareto front marked with a star."""
    metric = perception_metric(rows)
    sign = -1 if metric == "ssim" else 1
    front = pareto_front(rows)
    shown = [name for name in _TABLE if any(row.metrics.get(name) is not None for row in rows)]
    width = max(len(row.label) for row in rows)
    lines = [f"  {'setting':{width}}  " + "  ".join(f"{_TABLE[name][0]:>8} {'± 95 %':>8}" for name in shown)]
    judged = any(row.verdict for row in rows)
    lines[0] += f"  {'s/image':>8}" + ("  perceptual" if judged else "")
    for row in sorted(rows, key=lambda row: (row.metrics.get(metric) is None, sign * (row.metrics.get(metric) or 0))):
        if not any(row.metrics.get(name) is not None for name in shown):
            continue
        cells = []
        for name in shown:
            estimate, digits = row.estimates.get(name, _NOTHING), _TABLE[name][1]
            value = "-" if row.metrics[name] is None else format(row.metrics[name], digits)
            half = "-" if estimate.low is None else format((estimate.high - estimate.low) / 2, digits)
            cells.append(f"{value:>8} {half:>8}")
        note = f"  {(row.verdict and row.verdict.perceptual) or '-':10}" if judged else ""
        note += f"  ({row.images} images)" if row.dropped else ""
        star = "*" if row in front else " "
        lines.append(f"{star} {row.label:{width}}  {'  '.join(cells)}  {row.seconds:8.3f}{note}".rstrip())
    images = max(row.images for row in rows)
    if judged:
        lines.append("perceptual: LPIPS below both controls, the prediction sharpened and noised, at equal PSNR")
    lines.append(f"* on the Pareto front of PSNR and {metric.upper()}; means of {images} images")
    return "\n".join(lines)


def _flat(row: Row, metrics: Mapping[str, Metric], front: bool, presets: list[str], settings: Sequence[Any]) -> dict:
    """One line of the table, its numbers as they are."""
    fields = [field.name for field in dataclasses.fields(settings[0])] if settings else []
    line = {"setting": row.label} | {name: row.settings.get(name) for name in fields}
    line |= {"images": row.images, "dropped": row.dropped, "front": front, "preset": ", ".join(presets) or None}
    for name in metrics:
        line |= {name: row.metrics.get(name)}
        estimate, difference = (found.get(name, _NOTHING) for found in (row.estimates, row.differences))
        line |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high, f"{name}_n": estimate.n}
        line |= {f"{name}_difference": difference.mean}
        line |= {f"{name}_difference_low": difference.low, f"{name}_difference_high": difference.high}
    verdict = row.verdict or controls.Verdict(None, {})
    line |= {"perceptual": verdict.perceptual}
    for control in controls.LABELS:
        difference = verdict.differences.get(control, _NOTHING)
        line |= {f"lpips_over_{control}": difference.mean}
        line |= {f"lpips_over_{control}_low": difference.low, f"lpips_over_{control}_high": difference.high}
    return line | {"seconds": row.seconds}


def _entry(row: Row, name: str, metric: Metric) -> dict:
    """One metric of a row, for results.json."""
    estimate, difference = row.estimates.get(name, _NOTHING), row.differences.get(name, _NOTHING)
    return {
        **{part: _finite(getattr(estimate, part)) for part in ("mean", "low", "high", "n")},
        "difference": _finite(difference.mean),
        "difference_low": _finite(difference.low),
        "difference_high": _finite(difference.high),
        "missing": row.missing.get(name, metric.reason if estimate.mean is None else None),
    }


def _cell(value: Any) -> Any:
    return format(value, ".9g") if isinstance(value, float) else value


def _finite(value: float | None) -> float | str | None:
    """JSON has no infinity; equal pictures have an infinite PSNR, written "inf". A difference of two is nothing."""
    if value is None or math.isnan(value):
        return None
    return value if math.isfinite(value) else str(value)
