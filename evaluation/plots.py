"""The plot of an evaluation: the perception-distortion curve."""

import math
import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from deblur.evaluation.controls import LABELS
from deblur.evaluation.rows import BLURRY, CONTROLS, PREDICTOR
from deblur.evaluation.statistics import Estimate
from deblur.evaluation.summary import RowSummary, Summary

# The palette of Okabe and Ito, suitable for colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "osD^vP"
_MOST_LABELS = 24  # with more points than this only those on the front are labelled


def curve(summary: Summary) -> Figure:
    """The perception-distortion curve: PSNR to the right, better LPIPS upwards, the best top right.

    Every row is a point with its 95 % intervals, labelled with its steps and its preset. Each sampler is one series,
    and the Pareto front is a line. The controls are thin lines that start at the prediction and may leave the frame.
    If LPIPS is missing, the vertical axis is SSIM and the title says why.
    """
    places = {row.label: place for row in summary.rows if (place := _place(row, summary.perception)) is not None}
    drawn = [row for row in summary.rows if row.label in places and row.label not in CONTROLS]
    front = [places[row.label] for row in drawn if row in summary.front]
    figure = Figure(figsize=(10, 6.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    if front:
        axes.plot(*zip(*sorted(front), strict=True), color="0.6", linewidth=1.5, zorder=2, label="Pareto front")
    _draw_rows(axes, drawn, places, summary.perception)
    least = min((places[row.label][0] for row in drawn), default=0.0)
    for (control, labels), style in zip(LABELS.items(), ("--", ":"), strict=True):
        line = [places[label] for label in (PREDICTOR, *labels) if label in places]
        if line:
            look = {"color": "0.3", "linewidth": 0.8, "linestyle": style, "marker": ".", "markersize": 4}
            axes.add_artist(Line2D(*zip(*line, strict=True), **look, zorder=2, label=control))
            axes.update_datalim([point for point in line if point[0] >= least])
    _name_axes(axes, summary)
    named = [row for row in drawn if row in summary.front or summary.preset(row) or len(drawn) <= _MOST_LABELS]
    texts = [(_label(row, summary.preset(row)), places[row.label]) for row in named]
    _place_labels(axes, texts, [places[row.label] for row in drawn])
    return figure


def _place(row: RowSummary, perception: str) -> tuple[float, float] | None:
    """The row's point; None without one. The ground truth has none, since its PSNR is infinite."""
    values = row.mean("psnr"), row.mean(perception)
    return values if all(value is not None and math.isfinite(value) for value in values) else None


def _draw_rows(
    axes: Axes, rows: Sequence[RowSummary], places: Mapping[str, tuple[float, float]], perception: str
) -> None:
    """Draw a point with its intervals for each row, in one style per sampler."""
    looks = {BLURRY: ("X", "black", 90), PREDICTOR: ("*", "black", 150)}
    samplers = list(dict.fromkeys(_series(row) for row in rows if _series(row) not in looks))
    for index, sampler in enumerate(samplers):
        looks[sampler] = (_MARKERS[index % len(_MARKERS)], _COLOURS[index % len(_COLOURS)], 46)
    for series in [*samplers, BLURRY, PREDICTOR]:
        if drawn := [row for row in rows if _series(row) == series]:
            marker, colour, size = looks[series]
            x, y = zip(*(places[row.label] for row in drawn), strict=True)
            intervals = ([_interval(row.estimates[name]) for row in drawn] for name in ("psnr", perception))
            across, up = (list(zip(*ends, strict=True)) for ends in intervals)
            axes.errorbar(x, y, up, across, fmt="none", ecolor=colour, elinewidth=0.9, alpha=0.5, zorder=1)
            axes.scatter(x, y, size, colour, marker=marker, edgecolors="white", linewidths=0.6, zorder=4, label=series)


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
    title = f"Perception and distortion, mean of {images} image{'s' if images > 1 else ''} with 95 % intervals"
    if summary.perception == "ssim":
        reason = "LPIPS has no value." if "lpips" in summary.metrics else "LPIPS was not asked for."
        title += "\n" + textwrap.fill(f"SSIM in place of LPIPS. {reason}", 105)
    axes.set_title(title, fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9, title="numbers: steps", title_fontsize=9)


def _series(row: RowSummary) -> str:
    """The sampler; for a row without a sample, its own name."""
    settings = row.row.settings
    return settings.sampler if settings and settings.blend > 0 else row.label


def _label(row: RowSummary, preset: str | None) -> str:
    name = row.label if _series(row) == row.label else str(row.row.settings.steps)
    return f"{name} {preset}" if preset else name


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
