"""Summarise the scores of images in one row per setting: means with intervals, the Pareto front, presets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np
import pandas as pd

from deblur.cli import escaped
from deblur.evaluation.controls import Verdict, judge
from deblur.evaluation.grid import BLURRY, CONTROLS, LABELS, PREDICTOR, SHARP, Row
from deblur.evaluation.journal import Facts
from deblur.evaluation.metrics import Metric
from deblur.evaluation.scoring import Plan
from deblur.evaluation.statistics import Estimate, estimates

NOTHING = Estimate(None, None, None, 0)
MOST_DECIBELS = 100.0  # that the PSNR of equal images counts where rows are compared


@dataclass(frozen=True)
class RowSummary(Row):
    """A row with its means over the images.

    `estimates` are the means with their intervals, and `differences` the paired differences to the predictor with
    theirs. A metric without values is in neither, and `missing` says why. `verdict` compares a setting with the
    controls. `levels` are the means that rows are compared by: no score counts more than MOST_DECIBELS.
    """

    images: int = 0
    seconds: float = 0.0
    estimates: dict[str, Estimate] = field(default_factory=dict)
    differences: dict[str, Estimate] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    levels: dict[str, float] = field(default_factory=dict)

    @cached_property
    def means(self) -> dict[str, float]:
        """The mean of each metric that has one."""
        return {metric: estimate.mean for metric, estimate in self.estimates.items() if estimate.mean is not None}

    def level(self, metric: str) -> float:
        """What rows are compared by."""
        return self.levels.get(metric, self.means.get(metric))


@dataclass(frozen=True)
class Example:
    """An image of a row, with its scores.

    Attributes:
        row: whose image it is.
        image: its name.
        rank: best, median or worst among the images of the row.
        scores: metric -> score, without those that are missing.
        files: kind of image (blurry, predictor, sharp, restored) -> path within the evaluation's folder.
    """

    row: Row
    image: str
    rank: str
    scores: dict[str, float]
    files: dict[str, str] = field(default_factory=dict)


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
        examples: images for the report, once they are written.
    """

    rows: Sequence[RowSummary]
    metrics: Mapping[str, Metric]
    scores: pd.DataFrame
    facts: Facts
    steps: int
    examples: list[Example] = field(default_factory=list)

    @cached_property
    def perception(self) -> str:
        """The metric of the perception axis: lpips, or ssim if LPIPS has no value."""
        has_lpips = "ssim" not in self.metrics or any(row.means.get("lpips") is not None for row in self.rows)
        return "lpips" if has_lpips else "ssim"

    @cached_property
    def has_verdicts(self) -> bool:
        """Whether settings were judged beside the controls."""
        return any(row.verdict for row in self.rows)

    @cached_property
    def settings(self) -> list[RowSummary]:
        """The rows that are settings."""
        return [row for row in self.rows if row.settings]

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
                gap = best.level(name) - worst.level(name)
                return (row.level(name) - worst.level(name)) / gap if gap else 1.0

            return part("psnr") + part(self.perception)

        return {"fidelity": fidelity, "balanced": max(self.settings_front, key=beyond), "perceptual": perceptual}

    @cached_property
    def best(self) -> dict[str, RowSummary]:
        """The best row by PSNR and the best by perception, of all but the blurry and sharp ones and the controls."""
        others = (BLURRY, SHARP, *CONTROLS)
        best = {}
        for name in ("psnr", self.perception):
            rows = [row for row in self.rows if row.label not in others and row.means.get(name) is not None]
            sign = 1 if self.metrics[name].column.higher_is_better else -1
            if rows:
                best[name] = max(rows, key=lambda row: sign * row.means.get(name))
        return best

    @cached_property
    def typical(self) -> str | None:
        """The median image of the row with the best perception; None without one."""
        if self.perception not in self.best:
            return None
        ranked = _ranked(self, self.best[self.perception])
        return ranked["image"].iloc[(len(ranked) - 1) // 2]

    def scores_of(self, label: str, image: str) -> dict[str, float]:
        """The scores of one image in the row with this label, without those that are missing."""
        [(_, line)] = self.scores[(self.scores["setting"] == label) & (self.scores["image"] == image)].iterrows()
        return line[list(self.metrics)].dropna().to_dict()

    @property
    def worsened(self) -> pd.DataFrame:
        """The images whose prediction has a lower PSNR than the blurry one, and both, the largest loss first."""
        psnr = self.scores.pivot(index="image", columns="setting", values="psnr")
        psnr = psnr.reindex(columns=[BLURRY, PREDICTOR])
        loss = psnr[BLURRY] - psnr[PREDICTOR]
        return psnr.loc[loss[loss > 0].sort_values(ascending=False, kind="stable").index]

    @cached_property
    def preset_names(self) -> dict[str, str]:
        """The presets that rows become, joined by commas, by their labels."""
        labels = {name: row.label for name, row in self.presets.items()}
        return {own: ", ".join(name for name in labels if labels[name] == own) for own in labels.values()}


def summarise(plan: Plan) -> Summary:
    """The results of a plan whose journal is complete.

    A metric's mean is over the images that the metric can score at all, which are those whose blurry image it scored.
    A setting without a score for one of them gets no mean, since a mean over fewer images is not comparable.
    """
    table = _table(plan)
    labels, images = [row.label for row in plan.rows], [escaped(image.name) for image in plan.images]
    wide = {name: table.pivot(index="image", columns="setting", values=name) for name in ("seconds", *plan.computed)}
    wide = {name: scores.loc[images, labels] for name, scores in wide.items()}
    means, differences, levels = {}, {}, {}
    for name in plan.computed:
        scores = wide[name][wide[name][BLURRY].notna()].dropna(axis="columns")
        if not scores.size:
            continue
        means[name] = _estimates(scores, plan.seed)
        levels[name] = scores.clip(upper=MOST_DECIBELS).mean().to_dict()
        compared = scores.drop(columns=[PREDICTOR, SHARP], errors="ignore")
        if PREDICTOR in scores and compared.size:
            differences[name] = _estimates(compared.sub(scores[PREDICTOR], axis="index"), plan.seed)
    missing = table.groupby("setting")["missing"].agg(list)
    verdicts = _verdicts(plan, wide)
    rows = [
        RowSummary(
            label=row.label,
            settings=row.settings,
            images=len(images),
            seconds=wide["seconds"][row.label].mean().item(),
            estimates={name: own[row.label] for name, own in means.items() if row.label in own},
            differences={name: own[row.label] for name, own in differences.items() if row.label in own},
            missing=_reasons(images, missing[row.label]),
            verdict=verdicts.get(row.label),
            levels={name: own[row.label] for name, own in levels.items() if row.label in own},
        )
        for row in plan.rows
    ]
    return Summary(rows, plan.metrics, table, plan.facts, plan.steps)


def choose_examples(summary: Summary, typical: Iterable[str]) -> list[Example]:
    """The images for the report, without their files.

    They are the best, the median and the worst image of each setting on the front, by LPIPS, or by SSIM if LPIPS is
    missing; and the images that are typical as the best rows have them. If no setting is on the front,
    because blurry or the prediction beats them all, the front among the settings is used.
    """
    chosen = {}
    for row in [row for row in summary.front if row.settings] or summary.settings_front:
        ranked = list(_ranked(summary, row)["image"])
        for rank, at in {"best": 0, "median": (len(ranked) - 1) // 2, "worst": len(ranked) - 1}.items():
            chosen.setdefault((row.label, ranked[at]), (row, rank))
    for row, image in product(summary.best.values(), typical):
        chosen.setdefault((row.label, image), (row, "typical"))
    return [
        Example(row, image, rank, summary.scores_of(row.label, image)) for (_, image), (row, rank) in chosen.items()
    ]


def _ranked(summary: Summary, row: RowSummary) -> pd.DataFrame:
    """A row's scores by image, the best perception first."""
    metric = summary.perception
    scores = summary.scores[summary.scores["setting"] == row.label].dropna(subset=[metric])
    return scores.sort_values(metric, ascending=metric == "lpips", kind="stable")


def _table(plan: Plan) -> pd.DataFrame:
    scores, lines = plan.journal.scores(), []
    names = {image.name: escaped(image.name) for image in plan.images}
    for row in plan.rows:
        for name, shown in names.items():
            score = scores[row.key, name]
            values = {metric: score.metrics.get(metric) for metric in plan.metrics}
            place = {"setting": row.label, "image": shown, "seconds": score.seconds}
            lines.append(place | values | {"missing": score.missing})
    return pd.DataFrame(lines).astype(dict.fromkeys(plan.metrics, float))


def _estimates(scores: pd.DataFrame, seed: int) -> dict[str, Estimate]:
    return dict(zip(scores, estimates(scores.to_numpy(), seed), strict=True))


def _reasons(images: Sequence[str], missing: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Why a row lacks a metric, in how many of its images."""
    reasons = {}
    for metric in dict.fromkeys(name for why in missing for name in why):
        lacking = [(image, why[metric]) for image, why in zip(images, missing, strict=True) if metric in why]
        image, reason = lacking[0]
        reasons[metric] = f"{len(lacking)} of {len(images)} images, first {image}: {reason}"
    return reasons


def _verdicts(plan: Plan, wide: Mapping[str, pd.DataFrame]) -> dict[str, Verdict]:
    """The verdicts on the settings beside the controls, on images whose prediction has an LPIPS."""
    labels = [row.label for row in plan.settings] if plan.with_controls else []
    if "lpips" not in wide:
        why = "LPIPS is missing" if "lpips" in plan.metrics else "LPIPS was not asked for"
        return dict.fromkeys(labels, Verdict("unknown", {}, why))
    if not labels:
        return {}
    places = np.stack([wide["psnr"], wide["lpips"]], axis=-1)  # images, rows, (PSNR, LPIPS)
    columns = list(wide["psnr"])
    places = places[~np.isnan(places[:, columns.index(PREDICTOR)]).any(axis=1)]
    curves = {
        control: places[:, [columns.index(label) for label in (PREDICTOR, *strengths)]]
        for control, strengths in LABELS.items()
    }
    verdicts = {}
    for label in labels:
        scores = places[:, columns.index(label)]
        if not len(scores):
            verdicts[label] = Verdict("unknown", {}, "LPIPS is missing")
        elif np.isnan(scores).any():
            verdicts[label] = Verdict("unknown", {}, "its LPIPS is missing for an image")
        else:
            verdicts[label] = judge(scores, curves, plan.seed)
    return verdicts


def _front(rows: Sequence[RowSummary], perception: str) -> list[RowSummary]:
    """The rows that none of them beats on both axes, in order of increasing PSNR."""
    sign = 1 if perception == "ssim" else -1
    scored = [row for row in rows if row.means.get("psnr") is not None and row.means.get(perception) is not None]
    places = {row.label: (row.level("psnr"), sign * row.means.get(perception)) for row in scored}

    def is_beaten(x: tuple[float, float], y: float) -> bool:
        return any(a >= x and b >= y and (a, b) != (x, y) for a, b in places.values())

    front = [row for row in scored if not is_beaten(*places[row.label])]
    return sorted(front, key=lambda row: (places[row.label][0], -places[row.label][1]))
