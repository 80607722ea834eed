"""The files of an evaluation: results.csv, per_image.csv and results.json, each whole or not there."""

import csv
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evaluation.grid import METRICS, Row, Score, pareto_front, perception_metric


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of `path` that takes its name at the end, and goes if the writing fails."""
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_results(output: Path, rows: Sequence[Row], scores: Sequence[Score], facts: dict[str, Any]) -> list[Path]:
    """Write the three files into the folder `output` and return their paths.

    Args:
        output: an existing folder.
        rows: the means, from `evaluation.grid.average`.
        scores: one (setting, image) each.
        facts: what the numbers depend on (recipes, seed, checkpoint, data, versions), for results.json.
    """
    fields = list(next((row.settings for row in rows if row.settings), {}))
    front = pareto_front(rows)
    paths = [output / name for name in ("results.csv", "per_image.csv", "results.json")]
    _write_csv(
        paths[0],
        ["label", *fields, "images", *METRICS, "seconds"],
        [
            [row.label, *(row.settings.get(name) for name in fields), row.images, *_cells(row.metrics, row.seconds)]
            for row in rows
        ],
    )
    _write_csv(
        paths[1],
        ["label", "image", *METRICS, "seconds", "missing"],
        [
            [score.label, score.image, *_cells(score.metrics, score.seconds), "; ".join(score.missing.values())]
            for score in scores
        ],
    )
    document = facts | {
        "rows": [
            {"label": row.label, "settings": row.settings, "images": row.images}
            | {metric: _finite(row.metrics.get(metric)) for metric in METRICS}
            | {"seconds": row.seconds, "front": row in front, "missing": row.missing}
            for row in rows
        ]
    }
    with whole_file(paths[2]) as part:
        part.write_text(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return paths


def format_table(rows: Sequence[Row]) -> str:
    """The rows as text, best perception first, those on the Pareto front marked with a star."""
    metric = perception_metric(rows)
    sign = -1 if metric == "ssim" else 1
    front = pareto_front(rows)
    width = max(len(row.label) for row in rows)
    lines = [f"  {'setting':{width}}  {'PSNR':>7}  {'SSIM':>6}  {'LPIPS':>6}  {'s/image':>8}"]
    for row in sorted(rows, key=lambda row: (row.metrics[metric] is None, sign * (row.metrics[metric] or 0))):
        cells = [
            f"{'-' if row.metrics.get(name) is None else format(row.metrics[name], digits):>{size}}"
            for name, digits, size in zip(METRICS, (".2f", ".4f", ".4f"), (7, 6, 6), strict=True)
        ]
        lines.append(f"{'*' if row in front else ' '} {row.label:{width}}  {'  '.join(cells)}  {row.seconds:8.3f}")
    lines.append(f"* on the Pareto front of PSNR and {metric.upper()}; means of {rows[0].images} images")
    return "\n".join(lines)


def _cells(metrics: dict[str, float | None], seconds: float) -> list[str]:
    values = [metrics.get(metric) for metric in METRICS]
    return ["" if value is None else f"{value:.6f}" for value in values] + [f"{seconds:.4f}"]


def _finite(value: float | None) -> float | str | None:
    """JSON has no infinity; equal pictures have an infinite PSNR, written "inf"."""
    return value if value is None or math.isfinite(value) else str(value)


def _write_csv(path: Path, header: list[str], lines: list[list[Any]]) -> None:
    with whole_file(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *lines])
