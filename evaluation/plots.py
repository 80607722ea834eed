"""The plot of an evaluation: the perception-distortion curve."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from evaluation.scoring import BLURRY, PREDICTOR

# The palette of Okabe and Ito, suitable for colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "osD^vP"
_MOST_LABELS = 24  # with more points than this only those on the front are labelled


def curve(document: Mapping[str, Any]) -> Figure:
    """The perception-distortion curve of a results.json: PSNR to the right, better LPIPS upwards, the best top right.

    Every row is a point with its 95 % intervals, labelled with its steps and its preset. Each sampler is one series,
    and the Pareto front is a line. The controls are thin lines that start at the prediction and may leave the frame.
    If LPIPS is missing, the vertical axis is SSIM and the title says why.
    """
    names = document["axes"]["distortion"], document["axes"]["perception"]
    places = {row["setting"]: place for row in document["rows"] if (place := _place(row, names)) is not None}
    controls = document["controls"]["rows"]
    of_controls = {label for labels in controls.values() for label in labels}
    drawn = [row for row in document["rows"] if row["setting"] in places.keys() - of_controls]
    front = sorted(places[row["setting"]] for row in drawn if row["front"])
    figure = Figure(figsize=(10, 6.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    if front:
        axes.plot(*zip(*front, strict=True), color="0.6", linewidth=1.5, zorder=2, label="Pareto front")
    _draw_rows(axes, drawn, places, names)
    least = min((places[row["setting"]][0] for row in drawn), default=0.0)
    for (control, labels), style in zip(controls.items(), ("--", ":"), strict=True):
        line = [places[label] for label in (PREDICTOR, *labels) if label in places]
        if line:
            look = {"color": "0.3", "linewidth": 0.8, "linestyle": style, "marker": ".", "markersize": 4}
            axes.add_artist(Line2D(*zip(*line, strict=True), **look, zorder=2, label=control))
            axes.update_datalim([point for point in line if point[0] >= least])
    _name_axes(axes, document, names)
    named = [row for row in drawn if row["front"] or row["preset"] or len(drawn) <= _MOST_LABELS]
    texts = [(_label(row), places[row["setting"]]) for row in named]
    _place_labels(axes, texts, [places[row["setting"]] for row in drawn])
    return figure


def _place(row: Mapping[str, Any], names: tuple[str, str]) -> tuple[float, float] | None:
    values = [(row["metrics"].get(name) or {}).get("mean") for name in names]
    # The ground truth cannot be plotted: its PSNR is infinite, which JSON holds as a string.
    return tuple(values) if all(isinstance(value, int | float) for value in values) else None


def _draw_rows(
    axes: Axes, rows: Sequence[Mapping[str, Any]], places: Mapping[str, tuple[float, float]], names: tuple[str, str]
) -> None:
    """Draw a point with its intervals for each row, in one style per sampler."""
    looks = {BLURRY: ("X", "black", 90), PREDICTOR: ("*", "black", 150)}
    samplers = list(dict.fromkeys(_series(row) for row in rows if _series(row) not in looks))
    for index, sampler in enumerate(samplers):
        looks[sampler] = (_MARKERS[index % len(_MARKERS)], _COLOURS[index % len(_COLOURS)], 46)
    for series in [*samplers, BLURRY, PREDICTOR]:
        own = [row for row in rows if _series(row) == series]
        if not own:
            continue
        marker, colour, size = looks[series]
        for row in own:
            across, up = (_interval(row["metrics"][name]) for name in names)
            look = {"ecolor": colour, "elinewidth": 0.9, "alpha": 0.5}
            axes.errorbar(*places[row["setting"]], up, across, fmt="none", **look, zorder=1)
        axes.scatter(
            *zip(*(places[row["setting"]] for row in own), strict=True),
            s=size,
            marker=marker,
            color=colour,
            edgecolors="white",
            linewidths=0.6,
            zorder=4,
            label=series,
        )


def _name_axes(axes: Axes, document: Mapping[str, Any], names: tuple[str, str]) -> None:
    """Label the axes with their direction, and add title and legend."""
    metrics = document["metrics"]
    for name, axis, set_label in zip(names, (axes.xaxis, axes.yaxis), (axes.set_xlabel, axes.set_ylabel), strict=True):
        arrow = "→" if axis is axes.xaxis else "↑"
        better = "higher" if metrics[name]["higher_is_better"] else "lower"
        set_label(f"{metrics[name]['title']}: {better} is better {arrow}")
        if not metrics[name]["higher_is_better"]:
            axis.set_inverted(True)
    axes.margins(0.08)
    axes.grid(color="0.92", zorder=0)
    axes.set_axisbelow(True)
    images = max(row["images"] for row in document["rows"])
    title = f"Perception and distortion, mean of {images} image{'s' if images > 1 else ''} with 95 % intervals"
    if names[1] == "ssim":
        reason = (metrics.get("lpips") or {}).get("reason") or "LPIPS was not asked for."
        title += "\n" + textwrap.fill(f"SSIM in place of LPIPS. {reason}", 105)
    axes.set_title(title, fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9, title="numbers: steps", title_fontsize=9)


def _series(row: Mapping[str, Any]) -> str:
    return row["fields"].get("sampler", row["setting"])


def _label(row: Mapping[str, Any]) -> str:
    name = str(row["fields"].get("steps", row["setting"]))
    return f"{name} {row['preset']}" if row["preset"] else name


def _interval(entry: Mapping[str, Any]) -> list[list[float]] | None:
    """The distances from the mean to the interval's ends, in matplotlib's format."""
    if not isinstance(entry.get("low"), int | float) or not isinstance(entry.get("high"), int | float):
        return None
    return [[max(0, entry["mean"] - entry["low"])], [max(0, entry["high"] - entry["mean"])]]


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
