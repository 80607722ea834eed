"""Two pictures of an evaluation: the perception-distortion plot and the comparison panel."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox
from torch import Tensor

from evaluation.grid import BLURRY, PREDICTOR, Row, pareto_front, perception_metric
from evaluation.metrics import psnr
from evaluation.results import whole_file

_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)  # Okabe and Ito's, for every eye
_MARKERS = "osD^vP"
_MOST_LABELS = 24  # with more points than this only those of the front are labelled


def plot_pareto(rows: Sequence[Row], path: str | Path, lpips_reason: str | None = None) -> Figure:
    """The perception-distortion plot: PSNR to the right, falling LPIPS upwards; the best corner is top right.

    One series a sampler with its steps beside the points, the rows blurry and predictor, the Pareto front as a line.
    Where LPIPS is missing the vertical axis is 1 - SSIM and the title gives `lpips_reason`.

    Args:
        rows: from `evaluation.grid.average`; rows without both values are left out.
        path: the picture to write.
        lpips_reason: why LPIPS is missing.

    Returns:
        The figure that was written.
    """
    metric = perception_metric(rows)

    def point(row: Row) -> tuple[float, float] | None:
        x, y = row.metrics["psnr"], row.metrics[metric]
        if x is None or y is None or not math.isfinite(x):
            return None
        return x, 1 - y if metric == "ssim" else y

    places = {row.label: point(row) for row in rows}
    drawn = [row for row in rows if places[row.label] is not None]
    front = [row for row in pareto_front(rows) if row in drawn]
    figure = Figure(figsize=(9, 6.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [places[row.label][0] for row in front],
        [places[row.label][1] for row in front],
        color="0.6",
        linewidth=1.5,
        marker="o",
        markersize=13,
        markerfacecolor="none",
        zorder=1,
        label="Pareto front",
    )
    samplers = list(dict.fromkeys(row.settings["sampler"] for row in drawn if row.settings))
    for index, sampler in enumerate(samplers):
        own = [places[row.label] for row in drawn if row.settings.get("sampler") == sampler]
        axes.scatter(
            *zip(*own, strict=True),
            s=42,
            marker=_MARKERS[index % len(_MARKERS)],
            color=_COLOURS[index % len(_COLOURS)],
            edgecolors="white",
            linewidths=0.6,
            zorder=3,
            label=sampler,
        )
    for name, marker in ((BLURRY, "X"), (PREDICTOR, "*")):
        if places.get(name) is not None:
            axes.scatter(*places[name], s=130, marker=marker, color="black", edgecolors="white", zorder=4, label=name)
    axes.set_xlabel("PSNR in dB (higher is better →)")
    axes.set_ylabel(f"{'1 - SSIM' if metric == 'ssim' else 'LPIPS'} (lower is better ↑, axis inverted)")
    axes.invert_yaxis()
    axes.margins(0.08)
    axes.grid(color="0.9", zorder=0)
    axes.set_axisbelow(True)
    images = max(row.images for row in rows)
    title = f"Perception and distortion, mean of {images} image{'s' if images > 1 else ''}"
    if metric == "ssim":
        title += "\n" + textwrap.fill(f"1 - SSIM in place of LPIPS. {lpips_reason or 'LPIPS is missing.'}", 105)
    axes.set_title(title, fontsize=10)
    axes.legend(loc="best", fontsize=9, framealpha=0.9, title="numbers: steps", title_fontsize=9)

    many = len(drawn) > _MOST_LABELS
    named = [row for row in drawn if row in front or not many]
    texts = [(str(row.settings["steps"]) if row.settings else row.label, places[row.label]) for row in named]
    _place_labels(axes, texts, [place for place in places.values() if place is not None])
    with whole_file(Path(path)) as part:
        figure.savefig(part)
    return figure


def _place_labels(
    axes: Axes, texts: Sequence[tuple[str, tuple[float, float]]], points: Sequence[tuple[float, float]]
) -> None:
    """Write each text beside its point, at the first of sixteen places around it that is free."""
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


def panel(columns: Mapping[str, Tensor | Sequence[Tensor]], path: str | Path) -> Figure:
    """Pictures side by side, one labelled column each, one line for each picture of a column.

    A column named `std` is drawn as a heat map, the mean over the colours, with its scale in 8-bit levels (up to
    the 99.5th percentile). Where a column is named `sharp`, every other picture has its PSNR to it underneath.

    Args:
        columns: label -> one picture (3, H, W), or a sequence of them (all columns of one length); in [0, 1].
        path: the picture to write.

    Returns:
        The figure that was written.
    """
    columns = {
        label: [pictures] if isinstance(pictures, Tensor) and pictures.ndim == 3 else list(pictures)
        for label, pictures in columns.items()
    }
    columns = {label: [picture.detach().float().cpu() for picture in own] for label, own in columns.items()}
    first = next(iter(columns.values()))
    heights = [picture.shape[1] / picture.shape[2] for picture in first]
    width = 3.0
    figure = Figure(
        figsize=(width * len(columns) + 0.7, sum(width * height + 0.4 for height in heights) + 0.3),
        dpi=160,
        layout="constrained",
    )
    grid = figure.subplots(len(first), len(columns), squeeze=False, gridspec_kw={"height_ratios": heights})
    for column, (label, pictures) in enumerate(columns.items()):
        grid[0, column].set_title(label, fontsize=12)
        for line, picture in enumerate(pictures):
            axes = grid[line, column]
            axes.set_xticks([])
            axes.set_yticks([])
            if label == "std":
                levels = picture.mean(0).numpy() * 255
                top = max(np.percentile(levels, 99.5), 0.1)  # a few bright pixels would leave the rest black
                heat = axes.imshow(levels, cmap="inferno", vmin=0, vmax=top)
                bar = figure.colorbar(heat, cax=axes.inset_axes((1.03, 0, 0.05, 1)), extend="max")
                bar.ax.tick_params(labelsize=8)
                axes.set_xlabel("8-bit levels", fontsize=10)
                continue
            axes.imshow(picture.clamp(0, 1).permute(1, 2, 0).numpy())
            if "sharp" in columns and label != "sharp":
                axes.set_xlabel(f"{psnr(picture[None], columns['sharp'][line][None]).item():.2f} dB", fontsize=10)
    with whole_file(Path(path)) as part:
        figure.savefig(part)
    return figure
