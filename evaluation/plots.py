"""The plot of an evaluation: the perception-distortion curve."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from deblur.cli import number_of
from deblur.evaluation.controls import LABELS
from deblur.evaluation.rows import BLURRY, CONTROLS, PREDICTOR
from deblur.evaluation.statistics import Estimate
from deblur.evaluation.summary import RowSummary, Summary

# The palette of Okabe and Ito, suitable for colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "osD^vP"
_MOST_LABELS = 24  # with more points than this only those on the front are labelled


@dataclass(frozen=True)
class _Point:
    """A row where it is drawn.

    Args:
        place: its PSNR and its perception metric.
        row: what is drawn.
        letter: of its evaluation; empty if there is one alone, and for the blurry images, which are the same in all.
        preset: the presets that it becomes, or None.
        is_on_front: whether no other row of its evaluation is better on both axes.
    """

    place: tuple[float, float]
    row: RowSummary
    letter: str
    preset: str | None
    is_on_front: bool

    @property
    def kind(self) -> str:
        """The sampler; for a row without a sample, its own name."""
        settings = self.row.row.settings
        return settings.sampler if settings and settings.blend > 0 else self.row.label

    @property
    def label(self) -> str:
        """The steps, or the row's own name, and its presets."""
        name = self.row.label if self.kind == self.row.label else str(self.row.row.settings.steps)
        return _of(self.letter, f"{name} {self.preset}" if self.preset else name)


def curve(summaries: Mapping[str, Summary]) -> Figure:
    """The perception-distortion curve: PSNR to the right, better LPIPS upwards, the best top right.

    Every row is a point with its 95 % intervals, labelled with its steps and its preset. Each sampler is one series,
    and the Pareto front is a line. The controls are thin lines that start at the prediction and may leave the frame.
    If LPIPS is missing, the vertical axis is SSIM and the title says why.

    Args:
        summaries: one evaluation, whatever its key; or several of the same images, each in a colour of its own, by the
            letters that stand before their labels.
    """
    first = next(iter(summaries.values()))
    colours = dict(zip(summaries, _COLOURS, strict=False)) if len(summaries) > 1 else {"": None}
    figure = Figure(figsize=(10, 6.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    groups, drawn = [], []
    for summary, letter in zip(summaries.values(), colours, strict=True):
        group = _points(summary, letter, first.perception)
        groups.append(group)
        drawn += [point for point in group if point.kind not in CONTROLS and (point.kind != BLURRY or summary is first)]
    _draw_points(axes, drawn, colours, first.perception)
    least = min((point.place[0] for point in drawn), default=0.0)
    for group, (letter, colour) in zip(groups, colours.items(), strict=True):
        _draw_lines(axes, group, letter, colour, least)
    _name_axes(axes, first)
    named = [point for point in drawn if point.is_on_front or point.preset or len(drawn) <= _MOST_LABELS]
    _place_labels(axes, [(point.label, point.place) for point in named], [point.place for point in drawn])
    return figure


def _points(summary: Summary, letter: str, perception: str) -> list[_Point]:
    """The rows of an evaluation that have a place."""
    points = []
    for row in summary.rows:
        place = _place(row, perception)
        if place is not None:
            mark = "" if row.label == BLURRY else letter
            points.append(_Point(place, row, mark, summary.preset(row), row in summary.front))
    return points


def _of(letter: str, name: str) -> str:
    """A name, and of which evaluation it is, if there are several."""
    return f"{letter}: {name}" if letter else name


def _place(row: RowSummary, perception: str) -> tuple[float, float] | None:
    """The row's point; None without one. The ground truth has none, since its PSNR is infinite."""
    values = row.mean("psnr"), row.mean(perception)
    return values if all(value is not None and math.isfinite(value) for value in values) else None


def _draw_points(axes: Axes, points: Sequence[_Point], colours: Mapping[str, str | None], perception: str) -> None:
    """Draw the points with their intervals, in one series for each kind and letter.

    A sampler has its own marker, and its own colour unless its evaluation has one.
    """
    looks = {BLURRY: ("X", "black", 90), PREDICTOR: ("*", "black", 150)}
    samplers = list(dict.fromkeys(point.kind for point in points if point.kind not in looks))
    for index, sampler in enumerate(samplers):
        looks[sampler] = (_MARKERS[index % len(_MARKERS)], _COLOURS[index % len(_COLOURS)], 46)
    for kind in [*samplers, BLURRY, PREDICTOR]:
        for letter in dict.fromkeys(["", *colours]):
            series = [point for point in points if point.kind == kind and point.letter == letter]
            if series:
                marker, colour, size = looks[kind]
                look = {"s": size, "c": colours.get(letter) or colour, "marker": marker, "label": _of(letter, kind)}
                _draw_series(axes, series, look, perception)


def _draw_series(axes: Axes, points: Sequence[_Point], look: dict[str, Any], perception: str) -> None:
    """Draw points of one look, and their intervals."""
    x, y = zip(*(point.place for point in points), strict=True)
    intervals = ([_interval(point.row.estimates[name]) for point in points] for name in ("psnr", perception))
    across, up = (list(zip(*ends, strict=True)) for ends in intervals)
    axes.errorbar(x, y, up, across, fmt="none", ecolor=look["c"], elinewidth=0.9, alpha=0.5, zorder=1)
    axes.scatter(x, y, edgecolors="white", linewidths=0.6, zorder=4, **look)


def _draw_lines(axes: Axes, points: Sequence[_Point], letter: str, colour: str | None, least: float) -> None:
    """Draw an evaluation's front and its controls, which do not widen the frame below a PSNR of `least`."""
    places = {point.row.label: point.place for point in points}
    front = sorted(point.place for point in points if point.is_on_front)
    if front:
        look = {"color": colour or "0.6", "linewidth": 1.5, "zorder": 2}
        axes.plot(*zip(*front, strict=True), **look, label=_of(letter, "Pareto front"))
    for (control, labels), style in zip(LABELS.items(), ("--", ":"), strict=True):
        line = [places[label] for label in (PREDICTOR, *labels) if label in places]
        if line:
            look = {"color": colour or "0.3", "linewidth": 0.8, "linestyle": style, "marker": ".", "markersize": 4}
            axes.add_artist(Line2D(*zip(*line, strict=True), **look, zorder=2, label=_of(letter, control)))
            axes.update_datalim([place for place in line if place[0] >= least])


def _name_axes(axes: Axes, summary: Summary) -> None:
    """Label the axes with their direction, and add title and legend."""
    for name, axis, arrow in (("psnr", axes.xaxis, "→"), (summary.perception, axes.yaxis, "↑")):
        title, _, higher_is_better = summary.metrics[name].column
        axis.set_label_text(f"{title}: {'higher' if higher_is_better else 'lower'} is better {arrow}")
        axis.set_inverted(not higher_is_better)
    axes.margins(0.08)
    axes.grid(color="0.92", zorder=0)
    axes.set_axisbelow(True)
    images = max(row.images for row in summary.rows)
    title = f"Perception and distortion, mean of {number_of(images, 'image')} with 95 % intervals"
    if summary.perception == "ssim":
        reason = "LPIPS has no value." if "lpips" in summary.metrics else "LPIPS was not asked for."
        title += "\n" + textwrap.fill(f"SSIM in place of LPIPS. {reason}", 105)
    axes.set_title(title, fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9, title="numbers: steps", title_fontsize=9)


def _interval(estimate: Estimate) -> tuple[float, float]:
    """The distances from the mean to the interval's ends; 0 without an interval."""
    if estimate.low is None:
        return 0.0, 0.0
    return max(0.0, estimate.mean - estimate.low), max(0.0, estimate.high - estimate.mean)


def _place_labels(
    axes: Axes, texts: Sequence[tuple[str, tuple[float, float]]], points: Sequence[tuple[float, float]]
) -> None:
    """Write each text beside its point, at the first free one of sixteen positions around it."""
    figure = axes.figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    taken = [axes.get_legend().get_window_extent(renderer)]
    around = axes.transData.transform(points)
    radius = 4 * figure.dpi / 72
    taken += [Bbox.from_bounds(x - radius, y - radius, 2 * radius, 2 * radius) for x, y in around]
    for text, place in texts:
        label = axes.annotate(text, place, (0, 0), textcoords="offset points", ha="center", va="center", fontsize=8.5)
        label.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
        size = label.get_window_extent(renderer)
        half = size.width / 2 * 72 / figure.dpi, size.height / 2 * 72 / figure.dpi
        choices = [
            ((half[0] + gap) * math.cos(angle), (half[1] + gap) * math.sin(angle))
            for gap in (8, 15)
            for angle in (math.pi / 4 * k for k in (1, 0, 2, 7, 3, 6, 4, 5))
        ]
        for choice in choices:
            label.set_position(choice)
            box = label.get_window_extent(renderer)
            inside = axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1 and axes.bbox.y0 < box.y0 and box.y1 < axes.bbox.y1
            if inside and not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)
