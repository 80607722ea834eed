"""Summarise the scores of images in one row per setting: means with intervals, the Pareto front, presets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from deblur.cli import escaped
from deblur.evaluation.controls import LABELS, Verdict, judge
from deblur.evaluation.journal import Facts
from deblur.evaluation.metrics import Metric
from deblur.evaluation.rows import BLURRY, CONTROLS, PREDICTOR, SHARP, Row
from deblur.evaluation.scoring import Plan
from deblur.evaluation.statistics import Estimate, estimates

NOTHING = Estimate(None, None, None, 0)


@dataclass(frozen=True)
class RowSummary:
    """The means of one row over the images.

    `estimates` are the means with their intervals, and `differences` the paired differences to the predictor with
    theirs. A metric without values is in neither, and `missing` says why. `finite` are the means over the images whose
    value is finite, where some are not. `verdict` compares a setting with the controls.
    """

    row: Row
    images: int
    seconds: float
    estimates: dict[str, Estimate] = field(default_factory=dict)
    differences: dict[str, Estimate] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    finite: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The row's name."""
        return self.row.label

    def mean(self, metric: str) -> float | None:
        """The mean of a metric; None if it has none."""
        return self.estimates.get(metric, NOTHING).mean

    def level(self, metric: str) -> tuple[float, float]:
        """What rows are compared by: the mean, and where images that are equal make it infinite, that of the others."""
        return self.mean(metric), self.finite.get(metric, self.mean(metric))


@dataclass(frozen=True)
class Summary:
    """An evaluation's results.

    Args:
        rows: in the order of the results.
        metrics: all requested metrics.
        scores: every score: setting, image, seconds, a column per metric (nan if missing), and `missing`, metric ->
            reason.
        facts: what the numbers depend on.
        steps: denoising steps of all settings on all images.
    """

    rows: Sequence[RowSummary]
    metrics: Mapping[str, Metric]
    scores: pd.DataFrame
    facts: Facts
    steps: int

    @cached_property
    def perception(self) -> str:
        """The metric of the perception axis: lpips, or ssim if LPIPS is missing."""
        return "lpips" if any(row.mean("lpips") is not None for row in self.rows) else "ssim"

    @property
    def settings(self) -> list[RowSummary]:
        """The rows that are settings."""
        return [row for row in self.rows if row.row.settings]

    @cached_property
    def front(self) -> list[RowSummary]:
        """The rows that no other row beats on both axes, in order of increasing PSNR; never a control.

        The axes are PSNR, higher is better, and the perception metric (LPIPS, lower is better, or SSIM, higher is
        better).
        """
        return _front([row for row in self.rows if row.label not in CONTROLS], self.perception)

    @cached_property
    def settings_front(self) -> list[RowSummary]:
        """The front among the settings alone."""
        return _front(self.settings, self.perception)

    @cached_property
    def presets(self) -> dict[str, RowSummary]:
        """fidelity: the setting with the best PSNR; perceptual: the best perception; balanced: the knee between them.

        The knee is the setting on the settings' front that lies farthest beyond the straight line from fidelity to
        perceptual, with both axes scaled so that these two have distance one. Empty if no setting has both scores.
        """
        if not self.settings_front:
            return {}
        perceptual, fidelity = self.settings_front[0], self.settings_front[-1]

        def beyond(row: RowSummary) -> float:
            def part(name: str) -> float:  # 0 at the worse end, 1 at the better one
                worst, best = (perceptual, fidelity) if name == "psnr" else (fidelity, perceptual)
                at = 0 if np.isfinite([each.mean(name) for each in (row, worst, best)]).all() else 1
                gap = best.level(name)[at] - worst.level(name)[at]
                return (row.level(name)[at] - worst.level(name)[at]) / gap if gap else 1.0

            return part("psnr") + part(self.perception)

        return {"fidelity": fidelity, "balanced": max(self.settings_front, key=beyond), "perceptual": perceptual}

    def preset(self, row: RowSummary) -> str | None:
        """The presets that a row becomes, joined by commas; None if it becomes none."""
        return ", ".join(name for name, chosen in self.presets.items() if chosen is row) or None


def summarise(plan: Plan) -> Summary:
    """The results of a plan whose journal is complete.

    A metric's mean is over the images that the metric can score at all, which are those whose blurry image it scored.
    A setting without a score for one of them gets no mean, since a mean over fewer images is not comparable.
    """
    table = _table(plan)
    by_label = dict(list(table.groupby("setting", sort=False)))
    rows = {}
    for row in plan.rows:
        scores = by_label[row.label]
        verdict = _verdict(table, scores, plan.seed) if row.settings else None
        rows[row.label] = RowSummary(row, len(scores), scores["seconds"].mean().item(), verdict=verdict)
    for name in plan.computed:
        _summarise_metric(name, table, by_label, rows, plan.seed)
    return Summary(list(rows.values()), plan.metrics, table, plan.facts, plan.steps)


def _table(plan: Plan) -> pd.DataFrame:
    """`Summary.scores`."""
    scores, lines = plan.journal.scores(), []
    for row in plan.rows:
        for image in plan.images:
            score = scores[row.key, image.name]
            values = {metric: score.metrics.get(metric) for metric in plan.metrics}
            place = {"setting": row.label, "image": escaped(image.name), "seconds": score.seconds}
            lines.append(place | values | {"missing": score.missing})
    return pd.DataFrame(lines).astype(dict.fromkeys(plan.metrics, float))


def _summarise_metric(
    metric: str, table: pd.DataFrame, by_label: Mapping[str, pd.DataFrame], rows: dict[str, RowSummary], seed: int
) -> None:
    """Fill in a metric's estimates, differences and reasons."""
    for label, scores in by_label.items():
        lacking = [
            (name, why[metric]) for name, why in zip(scores["image"], scores["missing"], strict=True) if metric in why
        ]
        if lacking:
            image, why = lacking[0]
            rows[label].missing[metric] = f"{len(lacking)} of {len(scores)} images, first {image}: {why}"
    wide = table.pivot(index="image", columns="setting", values=metric).loc[list(by_label[BLURRY]["image"]), list(rows)]
    scored = wide[wide[BLURRY].notna()].dropna(axis="columns")
    if not scored.size:
        return
    for label, estimate in zip(scored, estimates(scored.to_numpy(), seed), strict=True):
        rows[label].estimates[metric] = estimate
        values = scored[label][np.isfinite(scored[label])]
        if 0 < len(values) < len(scored):
            rows[label].finite[metric] = values.mean().item()
    compared = scored.drop(columns=[PREDICTOR, SHARP], errors="ignore")
    if PREDICTOR in scored and compared.size:
        gaps = compared.sub(scored[PREDICTOR], axis="index")
        for label, estimate in zip(gaps, estimates(gaps.to_numpy(), seed), strict=True):
            rows[label].differences[metric] = estimate


def _verdict(table: pd.DataFrame, scores: pd.DataFrame, seed: int) -> Verdict:
    """The verdict on a setting with these scores, beside the controls, on images whose prediction has an LPIPS."""
    if "lpips" not in table:
        return Verdict("unknown", {}, "LPIPS was not asked for")
    places = table.set_index(["setting", "image"])[["psnr", "lpips"]]
    scores = scores.set_index("image")[["psnr", "lpips"]]
    scores = scores[places.loc[PREDICTOR].loc[scores.index].notna().all(axis="columns").to_numpy()]
    if scores.empty:
        return Verdict("unknown", {}, "LPIPS is missing")
    if scores.isna().any(axis=None):
        return Verdict("unknown", {}, "its LPIPS is missing for an image")
    curves = {
        control: np.stack([places.loc[label].loc[scores.index].to_numpy() for label in (PREDICTOR, *labels)], axis=1)
        for control, labels in LABELS.items()
    }
    return judge(scores.to_numpy(), curves, seed)


def _front(rows: Sequence[RowSummary], perception: str) -> list[RowSummary]:
    """The rows that none of them beats on both axes, in order of increasing PSNR."""
    sign = 1 if perception == "ssim" else -1
    scored = [row for row in rows if row.mean("psnr") is not None and row.mean(perception) is not None]
    places = {row.label: (row.level("psnr"), sign * row.mean(perception)) for row in scored}

    def is_beaten(x: tuple[float, float], y: float) -> bool:
        return any(a >= x and b >= y and (a, b) != (x, y) for a, b in places.values())

    front = [row for row in scored if not is_beaten(*places[row.label])]
    return sorted(front, key=lambda row: (places[row.label][0], -places[row.label][1]))
