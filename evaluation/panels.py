"""Panels of images side by side in labelled columns, with PSNR underneath."""

import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from deblur.evaluation.pixels import eight_bits, psnr
from deblur.storage import replacing

WIDTH = 480  # pixels of an image in a panel
GAP = 16  # pixels between columns
TITLE, CAPTION, NAME, BAR = 44, 38, 36, 84  # pixels: height of titles and captions, width of names and colour bars


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
