"""What an evaluation draws: the perception-distortion curve, and panels of images side by side."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from deblur.cli import number_of
from deblur.evaluation.grid import BLURRY, CONTROLS, LABELS, PREDICTOR
from deblur.evaluation.pixels import eight_bits, psnr
from deblur.storage import replacing

if TYPE_CHECKING:  # pandas, which a panel alone does not need
    from deblur.evaluation.summary import RowSummary, Summary

# The palette of Okabe and Ito, suitable for colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP"
MOST_LABELS = 12
# Where a label may stand: pixels from its point to its edge. The first position that is free is taken.
LABEL_DISTANCES = (12, 33, 58, 88, 120)
LABEL_ANGLES = [math.pi / 8 * k for k in (2, 0, 4, 14, 6, 12, 8, 10, 1, 3, 15, 5, 13, 7, 11, 9)]

IMAGE_WIDTH, GAP, TEXT_HEIGHT = 480, 16, 40  # pixels, of a panel
BRIGHTEST_PERCENTILE = 99.5  # percentile shown in the brightest colour; the maximum would make most of the map black


@dataclass(frozen=True)
class _Point:
    """A row at its PSNR and its perception metric, with the presets that it becomes.

    The `letter` of its evaluation is empty if there is one alone, and for the blurry images, which are the same in all.
    """

    place: tuple[float, float]
    row: "RowSummary"
    letter: str
    preset: str | None
    is_on_front: bool

    @property
    def kind(self) -> str:
        """The sampler; for a row without a sample, its own name."""
        settings = self.row.settings
        return settings.sampler if settings and settings.blend > 0 else self.row.label

    @property
    def label(self) -> str:
        """The row's name without its sampler, which the legend has, and its presets."""
        name = self.row.label.removeprefix(f"{self.kind} ")
        return _of(self.letter, f"{name} ({self.preset})" if self.preset else name)


def curve(summaries: Mapping[str, "Summary"]) -> Figure:
    """The perception-distortion curve: PSNR to the right, better LPIPS upwards, the best top right.

    Every row is a point. Each sampler is one series, and the Pareto front is a line. The presets, the prediction, the
    blurry images and the front are named first, MOST_LABELS points at most and where there is room. The controls are
    thin lines that start at the prediction and may leave the frame. If LPIPS is missing, the vertical axis is SSIM.

    Args:
        summaries: one evaluation, whatever its key; or several of the same images, each in a colour of its own, by the
            letters that stand before their labels.
    """
    first = next(iter(summaries.values()))
    colours = dict(zip(summaries, COLOURS, strict=False)) if len(summaries) > 1 else {"": None}
    figure = Figure(figsize=(10, 6.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    points = []
    for (letter, colour), summary in zip(colours.items(), summaries.values(), strict=True):
        own = _points(summary, letter, first.perception)
        _draw_lines(axes, own, letter, colour)
        points += [point for point in own if point.kind not in CONTROLS and (point.kind != BLURRY or summary is first)]
    _draw_points(axes, points, colours)
    remark = _frame(axes, points) if points else ""
    _name_axes(axes, first, remark)
    if points:
        _place_labels(axes, points)
    return figure


def _points(summary: "Summary", letter: str, perception: str) -> list[_Point]:
    """The rows of an evaluation that have a place; the ground truth has none, since its PSNR is infinite."""
    points = []
    for row in summary.rows:
        place = row.means.get("psnr"), row.means.get(perception)
        if all(value is not None and math.isfinite(value) for value in place):
            own_letter = "" if row.label == BLURRY else letter
            points.append(_Point(place, row, own_letter, summary.preset_names.get(row.label), row in summary.front))
    return points


def _of(letter: str, name: str) -> str:
    """A name, and of which evaluation it is, if there are several."""
    return f"{letter}: {name}" if letter else name


def _draw_points(axes: Axes, points: Sequence[_Point], colours: Mapping[str, str | None]) -> None:
    """Draw one series for each kind and letter; a sampler has its own colour unless its evaluation has one."""
    looks = {BLURRY: ("X", "black", 90), PREDICTOR: ("*", "black", 150)}
    samplers = dict.fromkeys(point.kind for point in points if point.kind not in looks)
    looks |= {sampler: (MARKERS[k % len(MARKERS)], COLOURS[k % len(COLOURS)], 46) for k, sampler in enumerate(samplers)}
    for kind, letter in dict.fromkeys((point.kind, point.letter) for point in points):
        marker, colour, size = looks[kind]
        x, y = zip(*(p.place for p in points if (p.kind, p.letter) == (kind, letter)), strict=True)
        look = {"marker": marker, "edgecolors": "white", "linewidths": 0.6, "zorder": 4}
        axes.scatter(x, y, size, colours.get(letter) or colour, label=_of(letter, kind), **look)


def _draw_lines(axes: Axes, points: Sequence[_Point], letter: str, colour: str | None) -> None:
    places = {point.row.label: point.place for point in points}
    front = sorted(point.place for point in points if point.is_on_front)
    if front:
        look = {"color": colour or "0.6", "linewidth": 1.5, "zorder": 2}
        axes.plot(*zip(*front, strict=True), **look, label=_of(letter, "Pareto front"))
    for (control, labels), style in zip(LABELS.items(), ("--", ":"), strict=True):
        line = [places[label] for label in (PREDICTOR, *labels) if label in places]
        if len(line) > 1:
            look = {"color": colour or "0.3", "linewidth": 0.8, "linestyle": style, "marker": ".", "markersize": 4}
            axes.add_artist(Line2D(*zip(*line, strict=True), **look, zorder=2, label=_of(letter, control)))


def _frame(axes: Axes, points: Sequence[_Point]) -> str:
    """Fit the axes to the points alone: controls may leave the frame.

    So may the blurry images, if they would take more room than all else; it is returned where they are.
    """
    others = [point.place for point in points if point.kind != BLURRY] or [points[0].place]
    ends = np.array([np.min(others, axis=0), np.max(others, axis=0)])
    span = np.where(ends[1] > ends[0], ends[1] - ends[0], 0.1 * abs(ends[0]) + 1e-6)
    remark = ""
    for blurry in (np.array(point.place) for point in points if point.kind == BLURRY):
        if (blurry < ends[0] - span).any() or (blurry > ends[1] + span).any():
            remark = f"the blurry images lie outside, at {blurry[0]:.2f} and {blurry[1]:.4f}"
        else:
            ends = np.array([np.minimum(ends[0], blurry), np.maximum(ends[1], blurry)])
    margin = 0.1 * np.maximum(span, ends[1] - ends[0])
    for limit, low, high in zip((axes.set_xlim, axes.set_ylim), ends[0] - margin, ends[1] + margin, strict=True):
        limit(low, high)
    return remark


def _name_axes(axes: Axes, summary: "Summary", remark: str) -> None:
    for name, axis, arrow in (("psnr", axes.xaxis, "→"), (summary.perception, axes.yaxis, "↑")):
        title, _, higher_is_better = summary.metrics[name].column
        axis.set_label_text(f"{title}: {'higher' if higher_is_better else 'lower'} is better {arrow}")
        axis.set_inverted(not higher_is_better)
    axes.grid(color="0.92", zorder=0)
    axes.set_axisbelow(True)
    title = f"Mean of {number_of(max(row.images for row in summary.rows), 'image')}"
    axes.set_title(f"{title}; {remark}" if remark else title, fontsize=10)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9, title="numbers: steps", title_fontsize=9)


def _place_labels(axes: Axes, points: Sequence[_Point]) -> None:
    """Write the labels of the most important points, with a line to each; one for which no room is free is left out."""
    axes.figure.draw_without_rendering()
    taken = [Bbox.from_extents(*place - 8, *place + 8) for place in axes.transData.transform([p.place for p in points])]
    references = (BLURRY, PREDICTOR)
    ranked = sorted(points, key=lambda point: (not point.preset, point.kind not in references, not point.is_on_front))
    for point in ranked[:MOST_LABELS]:
        look = {"textcoords": "offset pixels", "ha": "center", "va": "center", "fontsize": 8.5, "zorder": 5}
        line = {"arrowstyle": "-", "color": "0.5", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
        label = axes.annotate(point.label, point.place, (0, 0), arrowprops=line, **look)
        label.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
        half = np.array(Text.get_window_extent(label).size) / 2
        for distance, angle in itertools.product(LABEL_DISTANCES, LABEL_ANGLES):
            offset = (half + distance) * (math.cos(angle), math.sin(angle))
            centre = axes.transData.transform(point.place) + offset
            box = Bbox.from_extents(*centre - half, *centre + half)
            is_inside = all(axes.bbox.fully_contains(*corner) for corner in (box.min, box.max))
            if is_inside and not box.count_overlaps(taken):
                label.set_position(offset)
                taken.append(box)
                break
        else:
            label.remove()


def panel(columns: Mapping[str, Sequence[Tensor]], path: Path) -> None:
    """Write a panel of images: one labelled column for each kind, one row for each image.

    A column named `std` is drawn as a heat map of the mean over the channels, whose brightest colour is the 99.5th
    percentile. If a column is named `sharp`, the PSNR of every other image to it is written underneath.

    Args:
        columns: label -> images (3, H, W), all columns of one length; in [0, 1].
        path: the file to write.
    """
    columns = {label: [image.float().cpu() for image in images] for label, images in columns.items()}
    font = ImageFont.load_default(22)
    heights = [round(IMAGE_WIDTH * image.shape[1] / image.shape[2]) for image in next(iter(columns.values()))]
    size = GAP + len(columns) * (IMAGE_WIDTH + GAP), TEXT_HEIGHT + sum(height + TEXT_HEIGHT for height in heights)
    drawn = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(drawn)
    for column, (label, images) in enumerate(columns.items()):
        left, top = GAP + column * (IMAGE_WIDTH + GAP), TEXT_HEIGHT
        centre = left + IMAGE_WIDTH // 2
        draw.text((centre, TEXT_HEIGHT // 2), label, "black", font, "mm")
        for line, (image, height) in enumerate(zip(images, heights, strict=True)):
            if label == "std":
                colours, brightest = heat_map(image)
                shown, caption = eight_bits(colours), f"brightest: {255 * brightest:.3g} of 255 levels"
            else:
                shown, caption = eight_bits(image), ""
                if "sharp" in columns and label != "sharp":
                    caption = f"{psnr(image[None], columns['sharp'][line][None]).item():.2f} dB"
            # Enlarged pixels keep sharp edges.
            kind = Image.Resampling.NEAREST if shown.width < IMAGE_WIDTH else Image.Resampling.LANCZOS
            drawn.paste(shown.resize((IMAGE_WIDTH, height), kind), (left, top))
            draw.text((centre, top + height + TEXT_HEIGHT // 2), caption, "black", font, "mm")
            top += height + TEXT_HEIGHT
    with replacing(path) as part:
        drawn.save(part)


def heat_map(values: Tensor) -> tuple[Tensor, float]:
    """The channel mean of values (C, H, W) as colours (3, H, W) in [0, 1], and the value of the brightest colour."""
    mean = values.cpu().mean(0).numpy()
    brightest = float(np.percentile(mean, BRIGHTEST_PERCENTILE))
    colours = matplotlib.colormaps["inferno"](mean / max(brightest, 1e-6), bytes=True)[..., :3]
    return torch.from_numpy(colours).movedim(-1, 0) / 255, brightest
