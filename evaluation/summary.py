"""Summarise the scores of images in one row per setting: means with intervals, the Pareto front, presets."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from evaluation.controls import LABELS, Verdict, judge
from evaluation.grid import key
from evaluation.scoring import BLURRY, CONTROLS, PREDICTOR, SHARP, Plan
from evaluation.statistics import Estimate, estimates

NOTHING = Estimate(None, None, None, 0)


@dataclass(frozen=True)
class Row:
    """The means of one setting over the images; `settings` is empty for rows that are not settings.

    `estimates` are the means with their intervals, and `differences` the paired differences to the predictor with
    theirs. A metric without values is in neither, and `missing` says why. `verdict` compares a setting with the
    controls.
    """

    label: str
    settings: dict[str, Any]
    images: int
    seconds: float
    estimates: dict[str, Estimate] = field(default_factory=dict)
    differences: dict[str, Estimate] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None

    def mean(self, metric: str) -> float | None:
        """The mean of a metric; None if it has none."""
        return self.estimates.get(metric, NOTHING).mean


def image_table(plan: Plan) -> pd.DataFrame:
    """Every score: setting, image, seconds, a column per metric (nan if missing), and `missing`, metric -> reason.

    The plan's journal is complete.
    """
    scores, metrics = plan.journal.scores(), list(plan.metrics)
    lines = []
    for label, row in row_keys(plan).items():
        for image in plan.images:
            if score := scores.get((row, image.name)):
                values = {metric: score.metrics.get(metric) for metric in metrics}
                own = {"setting": label, "image": score.image, "seconds": score.seconds}
                lines.append(own | values | {"missing": score.missing})
    return pd.DataFrame(lines).astype(dict.fromkeys(metrics, float))


def row_keys(plan: Plan) -> dict[str, str]:
    """Label -> key in the journal for every row, in the order of the results."""
    keys = {label: label for label in plan.fixed_rows}
    return keys | {label: key(setting) for label, setting in plan.by_label.items()}


def summarise(plan: Plan, table: pd.DataFrame) -> list[Row]:
    """One row per setting, after those of blurry, predictor, sharp, controls and baselines.

    A metric's mean is over the images that the metric can score at all, which are those whose blurry image it scored.
    A setting without a score for one of them gets no mean, since a mean over fewer images is not comparable. The table
    is from `image_table`.
    """
    settings = plan.by_label
    by_label = dict(list(table.groupby("setting", sort=False)))
    rows = {
        label: Row(
            label,
            dataclasses.asdict(settings[label]) if label in settings else {},
            len(own),
            own["seconds"].mean().item(),
            verdict=_verdict(table, own, plan.seed) if label in settings else None,
        )
        for label, own in by_label.items()
    }
    for name in plan.computed:
        _summarise_metric(name, table, by_label, rows, plan.seed)
    return list(rows.values())


def _summarise_metric(
    metric: str, table: pd.DataFrame, by_label: Mapping[str, pd.DataFrame], rows: dict[str, Row], seed: int
) -> None:
    """Fill in a metric's estimates, differences and reasons."""
    for label, own in by_label.items():
        lacking = _lacking(own, metric)
        if lacking:
            image, why = lacking[0]
            rows[label].missing[metric] = f"{len(lacking)} of {len(own)} images, first {image}: {why}"
    wide = table.pivot(index="image", columns="setting", values=metric).loc[list(by_label[BLURRY]["image"])]
    scored = wide[wide[BLURRY].notna()].dropna(axis="columns")
    if not scored.size:
        return
    for label, estimate in zip(scored, estimates(scored.to_numpy(), seed), strict=True):
        rows[label].estimates[metric] = estimate
    compared = scored.drop(columns=[PREDICTOR, SHARP], errors="ignore")
    if PREDICTOR in scored and compared.size:
        gaps = compared.sub(scored[PREDICTOR], axis="index")
        for label, estimate in zip(gaps, estimates(gaps.to_numpy(), seed), strict=True):
            rows[label].differences[metric] = estimate


def _lacking(own: pd.DataFrame, metric: str) -> list[tuple[str, str]]:
    """(image, reason) for each image that a metric could not score."""
    return [(image, why[metric]) for image, why in zip(own["image"], own["missing"], strict=True) if metric in why]


def _verdict(table: pd.DataFrame, own: pd.DataFrame, seed: int) -> Verdict:
    """The verdict on a setting with scores `own`, beside the controls, on images whose prediction has an LPIPS."""
    if "lpips" not in table:
        return Verdict(None, {}, "LPIPS is missing")
    places = table.set_index(["setting", "image"])[["psnr", "lpips"]]
    own = own.set_index("image")[["psnr", "lpips"]]
    own = own[places.loc[PREDICTOR].loc[own.index].notna().all(axis="columns").to_numpy()]
    if own.empty:
        return Verdict(None, {}, "LPIPS is missing")
    if own.isna().any(axis=None):
        return Verdict(None, {}, "its LPIPS is missing for an image")
    curves = {
        control: np.stack([places.loc[label].loc[own.index].to_numpy() for label in (PREDICTOR, *labels)], axis=1)
        for control, labels in LABELS.items()
    }
    return judge(own.to_numpy(), curves, seed)


def perception_metric(rows: Sequence[Row]) -> str:
    """The metric of the perception axis: lpips, or ssim if LPIPS is missing."""
    return "lpips" if any(row.mean("lpips") is not None for row in rows) else "ssim"


def pareto_front(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other row beats on both axes, in order of increasing PSNR.

    The axes are PSNR, higher is better, and the perception metric (LPIPS, lower is better, or SSIM, higher is better).
    Controls are never on the front.
    """
    metric = perception_metric(rows)
    sign = 1 if metric == "ssim" else -1
    points = [
        (row.mean("psnr"), sign * row.mean(metric), row)
        for row in rows
        if row.mean("psnr") is not None and row.mean(metric) is not None
        if row.label not in CONTROLS
    ]
    front = [
        (x, y, row) for x, y, row in points if not any(a >= x and b >= y and (a, b) != (x, y) for a, b, _ in points)
    ]
    return [row for _, _, row in sorted(front, key=lambda point: (point[0], -point[1]))]


def best_sample(rows: Sequence[Row]) -> Row | None:
    """The setting with the best LPIPS, or the best PSNR if LPIPS is missing; None if no setting was scored."""
    rows = [row for row in rows if row.settings]
    for metric, best in (("lpips", min), ("psnr", max)):
        scored = [row for row in rows if row.mean(metric) is not None]
        if scored:
            return best(scored, key=lambda row: row.mean(metric))
    return None


def choose_presets(rows: Sequence[Row]) -> dict[str, Row]:
    """fidelity: the setting with the best PSNR; perceptual: the best perception; balanced: the knee between them.

    The knee is the setting on the settings' own front that lies farthest beyond the straight line from fidelity to
    perceptual, with both axes scaled so that these two have distance one. Empty if no setting has both scores.
    """
    front = pareto_front([row for row in rows if row.settings])
    if not front:
        return {}
    perceptual, fidelity = front[0], front[-1]
    metric = perception_metric(rows)

    def beyond(row: Row) -> float:
        def part(name: str) -> float:  # 0 at the worse end, 1 at the better one
            worst, best = (perceptual, fidelity) if name == "psnr" else (fidelity, perceptual)
            gap = best.mean(name) - worst.mean(name)
            return (row.mean(name) - worst.mean(name)) / gap if gap else 1.0

        return part("psnr") + part(metric)

    return {"fidelity": fidelity, "balanced": max(front, key=beyond), "perceptual": perceptual}
