"""What an evaluation draws: the perception-distortion curve, and panels of images side by side."""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Affine2D, Bbox
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
LARGEST_LABELLED = 12  # points: of more only presets, the prediction, the blurry images and some of the front are named
WIDEST_BAR = 0.4  # of the points' span: intervals whose median is longer are left out, since they would cover the plot
# Where a label may stand: points from its own point to its edge. The first position that is free is taken.
DISTANCES = (6, 16, 28, 42, 58)
ANGLES = [math.pi / 8 * k for k in (2, 0, 4, 14, 6, 12, 8, 10, 1, 3, 15, 5, 13, 7, 11, 9)]

LABEL = {"ha": "center", "va": "center", "fontsize": 8.5, "zorder": 5}
LEADER = {"arrowstyle": "-", "color": "0.5", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}

WIDTH = 480  # pixels of an image in a panel
GAP = 16  # pixels between columns
TITLE, CAPTION, NAME, BAR = 44, 38, 36, 84  # pixels: height of titles and captions, width of names and colour bars


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

    @property
    def is_marked(self) -> bool:
        """Whether it is named and has its intervals however many points there are."""
        return self.is_on_front or bool(self.preset) or self.kind in (BLURRY, PREDICTOR)


def curve(summaries: Mapping[str, "Summary"]) -> Figure:
    """The perception-distortion curve: PSNR to the right, better LPIPS upwards, the best top right.

    Every row is a point. Each sampler is one series, and the Pareto front is a line. Its points, the presets, the
    prediction and the blurry images are named, all points if they are few, where there is room. Bars are the 95 %
    intervals of the paired differences to the prediction, unless they would cover the plot. The controls are thin lines
    that start at the prediction and may leave the frame. If LPIPS is missing, the vertical axis is SSIM and the title
    says why.

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
    remarks = []
    if points:
        remarks = [_frame(axes, points), _draw_intervals(axes, points, first.perception)]
    _name_axes(axes, first, [remark for remark in remarks if remark])
    if points:
        _place_labels(axes, _named(points), points)
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
    size = 46 if len(points) <= LARGEST_LABELLED else 30
    samplers = list(dict.fromkeys(point.kind for point in points if point.kind not in looks))
    for index, sampler in enumerate(samplers):
        looks[sampler] = (MARKERS[index % len(MARKERS)], COLOURS[index % len(COLOURS)], size)
    for kind in [*samplers, BLURRY, PREDICTOR]:
        for letter in dict.fromkeys(["", *colours]):
            series = [point for point in points if point.kind == kind and point.letter == letter]
            if series:
                marker, colour, size = looks[kind]
                look = {"s": size, "c": colours.get(letter) or colour, "marker": marker, "label": _of(letter, kind)}
                x, y = zip(*(point.place for point in series), strict=True)
                shades = [1.0 if point.is_marked or len(points) <= LARGEST_LABELLED else 0.4 for point in series]
                axes.scatter(x, y, edgecolors="white", linewidths=0.6, zorder=4, alpha=shades, **look)


def _draw_lines(axes: Axes, points: Sequence[_Point], letter: str, colour: str | None) -> None:
    """Draw an evaluation's front and its controls."""
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
    """Fit the axes to the points alone: intervals and controls may leave the frame.

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


def _named(points: Sequence[_Point]) -> list[_Point]:
    """The points that get a label, the most important first: of many only some of the front."""
    if len(points) <= LARGEST_LABELLED:
        first, others = points, []
    else:
        first = [point for point in points if point.preset or point.kind in (BLURRY, PREDICTOR)]
        others = sorted((point for point in points if point.is_on_front and point not in first), key=lambda p: p.place)
    count = min(len(others), max(0, LARGEST_LABELLED - len(first)))
    spread = [others[k * len(others) // count] for k in range(count)]
    return [*sorted(first, key=lambda point: not point.preset), *spread]


def _draw_intervals(axes: Axes, points: Sequence[_Point], perception: str) -> str:
    """Draw the intervals of marked points along each axis, unless they would cover the plot; what is said of them."""
    marked = [point for point in points if point.is_marked and point.kind != BLURRY]
    too_wide = []
    for at, name in enumerate(("psnr", perception)):
        bars = [(point, *ends) for point in marked if (ends := _interval(point.row, name)) is not None]
        span = np.ptp([point.place[at] for point in points])
        if not bars:
            continue
        if np.median([low + high for _, low, high in bars]) > WIDEST_BAR * span:
            too_wide.append(name.upper())
            continue
        x, y = zip(*(point.place for point, _, _ in bars), strict=True)
        ends = np.array([[low, high] for _, low, high in bars]).T
        look = {"fmt": "none", "ecolor": "0.35", "elinewidth": 0.9, "alpha": 0.6, "zorder": 3}
        axes.errorbar(x, y, **{"xerr" if at == 0 else "yerr": ends}, **look)
    if too_wide:
        return f"the 95 % intervals of {' and '.join(too_wide)} are too wide to be drawn: see the table"
    return "bars: 95 % intervals of the differences to the predictor" if marked else ""


def _interval(row: "RowSummary", name: str) -> tuple[float, float] | None:
    """The distances from the mean to the ends of the interval of the difference to the predictor, or of the mean."""
    estimate = row.differences.get(name) or row.estimates[name]
    if row.label == PREDICTOR or estimate.low is None:
        return None
    return max(0.0, estimate.mean - estimate.low), max(0.0, estimate.high - estimate.mean)


def _name_axes(axes: Axes, summary: "Summary", remarks: Sequence[str]) -> None:
    """Label the axes with their direction, and add title and legend."""
    for name, axis, arrow in (("psnr", axes.xaxis, "→"), (summary.perception, axes.yaxis, "↑")):
        title, _, higher_is_better = summary.metrics[name].column
        axis.set_label_text(f"{title}: {'higher' if higher_is_better else 'lower'} is better {arrow}")
        axis.set_inverted(not higher_is_better)
    axes.grid(color="0.92", zorder=0)
    axes.set_axisbelow(True)
    if summary.perception == "ssim":
        reason = "LPIPS has no value" if "lpips" in summary.metrics else "LPIPS was not asked for"
        remarks = [*remarks, f"SSIM in place of LPIPS: {reason}"]
    title = f"Mean of {number_of(max(row.images for row in summary.rows), 'image')}"
    axes.set_title("\n".join(textwrap.wrap("; ".join([title, *remarks]), 105)), fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9, title="numbers: steps", title_fontsize=9)


def _place_labels(axes: Axes, named: Sequence[_Point], points: Sequence[_Point]) -> None:
    """Write labels beside their points, farther ones with a line to them; one for which no room is free is left out."""
    figure = axes.figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()
    to_points = 72 / figure.dpi
    centres = axes.transData.transform([point.place for point in points]) * to_points
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in centres]
    frame = axes.bbox.frozen().transformed(Affine2D().scale(to_points))
    for point in named:
        text = axes.text(0, 0, point.label, **LABEL)
        extent = text.get_window_extent(renderer)
        text.remove()
        half = extent.width / 2 * to_points, extent.height / 2 * to_points
        x, y = axes.transData.transform(point.place) * to_points
        for distance, angle in itertools.product(DISTANCES, ANGLES):
            right, up = (half[0] + distance) * math.cos(angle), (half[1] + distance) * math.sin(angle)
            box = Bbox.from_bounds(x + right - half[0], y + up - half[1], 2 * half[0], 2 * half[1])
            inside = frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                line = LEADER if distance > DISTANCES[0] else None
                where = {"xytext": (right, up), "textcoords": "offset points"}
                label = axes.annotate(point.label, point.place, **where, **LABEL, arrowprops=line)
                label.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
                break


def panel(columns: Mapping[str, Sequence[Tensor]], path: Path, lines: Sequence[str] | None = None) -> None:
    """Write a panel of images: one labelled column for each kind, one row for each image.

    A column named `std` is drawn as a heat map of the mean over the channels, with a colour bar in 8-bit levels (up to
    the 99.5th percentile). If a column is named `sharp`, the PSNR of every other image to it is written underneath.

    Args:
        columns: label -> images (3, H, W), all columns of one length; in [0, 1].
        path: the file to write.
        lines: a name for each row.
    """
    columns = {label: [image.detach().float().cpu() for image in column] for label, column in columns.items()}
    heights = [round(WIDTH * image.shape[1] / image.shape[2]) for image in next(iter(columns.values()))]
    left = GAP + (NAME if lines else 0)
    widths = [WIDTH + (BAR if label == "std" else 0) for label in columns]
    size = left + sum(width + GAP for width in widths), TITLE + sum(height + CAPTION for height in heights)
    drawn = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(drawn)
    for (label, images), width in zip(columns.items(), widths, strict=True):
        centre, top = left + WIDTH // 2, TITLE
        draw.text((centre, TITLE // 2), label, "black", _font(24), "mm")
        for line, (image, height) in enumerate(zip(images, heights, strict=True)):
            caption = ""
            if label == "std":
                caption = "8-bit levels"
                _draw_heat(drawn, image, (left, top), height)
            else:
                drawn.paste(_resized(eight_bits(image), height), (left, top))
                if "sharp" in columns and label != "sharp":
                    caption = f"{psnr(image[None], columns['sharp'][line][None]).item():.2f} dB"
            draw.text((centre, top + height + CAPTION // 2), caption, "black", _font(20), "mm")
            top += height + CAPTION
        left += width + GAP
    top = TITLE
    for name, height in zip(lines or [], heights, strict=False):
        upright = Image.new("RGB", (height + CAPTION, NAME), "white")
        short = textwrap.shorten(name, max(8, height // 12), placeholder=" …")
        ImageDraw.Draw(upright).text((height // 2, NAME // 2), short, "black", _font(20), "mm")
        drawn.paste(upright.transpose(Image.Transpose.ROTATE_90), (GAP // 2, top - CAPTION))
        top += height + CAPTION
    with replacing(path) as part:
        drawn.save(part)


def _draw_heat(drawn: Image.Image, std: Tensor, place: tuple[int, int], height: int) -> None:
    """Draw a standard deviation (3, H, W) as a heat map at a position of a panel, with its colour bar on the right."""
    levels = std.mean(0).numpy() * 255
    top = max(np.percentile(levels, 99.5), 0.1)  # a few bright pixels would make the rest black
    colours = matplotlib.colormaps["inferno"]
    heat = Image.fromarray(colours(levels / top, bytes=True)[..., :3])
    drawn.paste(_resized(heat, height), place)
    x, y = place[0] + WIDTH + GAP // 2, place[1]
    ramp = np.linspace(1, 0, height)[:, None].repeat(18, 1)
    drawn.paste(Image.fromarray(colours(ramp, bytes=True)[..., :3]), (x, y))
    draw = ImageDraw.Draw(drawn)
    for share, anchor in ((1.0, "la"), (0.5, "lm"), (0.0, "ld")):
        draw.text((x + 24, y + (1 - share) * (height - 1)), f"{share * top:.3g}", "black", _font(18), anchor)


def _resized(image: Image.Image, height: int) -> Image.Image:
    """Resize to the width of a panel's images; enlarged pixels keep sharp edges."""
    filter_ = Image.Resampling.NEAREST if image.width < WIDTH else Image.Resampling.LANCZOS
    return image.resize((WIDTH, height), filter_)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib and has Latin, Greek and Cyrillic letters."""
    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", size)
