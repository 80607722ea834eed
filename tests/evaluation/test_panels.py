"""The panel's columns, lines and colours, read back from the file."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from evaluation.panels import BAR, CAPTION, GAP, NAME, TITLE, WIDTH, _font, panel


def words(pixels, centre, text, size):
    """Whether a text stands at a place, and nothing beside it."""
    expected = Image.new("L", (WIDTH, CAPTION), "white")
    ImageDraw.Draw(expected).text((WIDTH // 2, CAPTION // 2), text, "black", _font(size), "mm")
    x, y = centre[0] - WIDTH // 2, centre[1] - CAPTION // 2
    return (pixels[y : y + CAPTION, x : x + WIDTH, 0] == np.asarray(expected)).all()


def test_panel_shows_each_image_in_its_colours(tmp_path):
    red = torch.zeros(3, 40, 60)
    red[0] = 1
    dark = red * 0.5
    spread = torch.full((3, 40, 60), 10 / 255)
    spread[:, 20:] = 0
    tall = [torch.full((3, 60, 30), level) for level in (0.2, 0.6, 0.1, 0.4)]
    columns = {"blurry": [dark, tall[0]], "unsharp": [red, tall[1]], "std": [spread, tall[2]], "sharp": [red, tall[3]]}
    panel(columns, tmp_path / "panel.png", ["best: clock", "worst: cat"])
    pixels = np.asarray(Image.open(tmp_path / "panel.png"))

    heights = WIDTH * 40 // 60, WIDTH * 60 // 30
    tops = TITLE, TITLE + heights[0] + CAPTION
    lefts = [GAP + NAME + k * (WIDTH + GAP) + (BAR if k == 3 else 0) for k in range(4)]
    assert pixels.shape == (tops[1] + heights[1] + CAPTION, lefts[3] + WIDTH + GAP, 3)
    colours = {(0, 0): (128, 0, 0), (0, 1): (255, 0, 0), (1, 0): (51, 51, 51), (0, 3): (255, 0, 0)}
    for (line, column), colour in colours.items():
        inside = pixels[tops[line] : tops[line] + heights[line], lefts[column] : lefts[column] + WIDTH]
        assert (inside == colour).all(), (line, column)
    heat = pixels[tops[0] : tops[0] + heights[0], lefts[2] : lefts[2] + WIDTH + GAP]
    assert (heat[10, 0] == (252, 254, 164)).all() and (heat[-1, 0] == (0, 0, 3)).all()  # inferno's ends, and its bar's
    assert (heat[0, -1] == heat[10, 0]).all() and (heat[-1, -1] == heat[-1, 0]).all()
    captions = [["10.83 dB", "inf dB", "8-bit levels", ""], ["13.98 dB", "13.98 dB", "8-bit levels", ""]]
    for column, label in enumerate(columns):
        centre = lefts[column] + WIDTH // 2
        assert words(pixels, (centre, TITLE // 2), label, 24)
        for line in range(2):
            assert words(pixels, (centre, tops[line] + heights[line] + CAPTION // 2), captions[line][column], 20)
    for line in range(2):
        assert pixels[tops[line] : tops[line] + heights[line], GAP // 2 : GAP // 2 + NAME].min() < 100  # its name


@pytest.mark.parametrize("level", [2, 10, 60])
def test_the_colour_bar_tells_the_level_of_every_colour(tmp_path, level):
    """Rows of the heat map from 0 to a level: their colours stand in the bar at the height of their numbers."""
    spread = torch.linspace(0, level / 255, 200).view(1, -1, 1).expand(3, -1, 240)
    panel({"std": [spread]}, tmp_path / "panel.png")
    pixels = np.asarray(Image.open(tmp_path / "panel.png")).astype(int)
    heat, bar = pixels[TITLE : TITLE + 400, GAP + WIDTH // 2], pixels[TITLE : TITLE + 400, GAP + WIDTH + GAP // 2 + 9]
    at = np.array([abs(bar - colour).sum(axis=1).argmin() for colour in heat])
    top = np.percentile(spread.mean(0).numpy() * 255, 99.5)
    shown = (1 - at / 399) * top
    assert shown == pytest.approx(np.linspace(0, level, 400).clip(max=top), abs=0.02 * level)
    for share, anchor in ((1.0, "la"), (0.5, "lm"), (0.0, "ld")):
        place = GAP + WIDTH + GAP // 2 + 24, TITLE + (1 - share) * 399
        expected = Image.new("RGB", pixels.shape[1::-1], "white")
        ImageDraw.Draw(expected).text(place, f"{share * top:.3g}", "black", _font(18), anchor)
        inked = np.asarray(expected).min(axis=2) < 255
        assert inked.any() and (pixels[inked] == np.asarray(expected)[inked]).all(), share


def test_panel_of_one_image_without_ground_truth(tmp_path):
    panel({"blurry": torch.rand(1, 3, 32, 32), "std": torch.zeros(1, 3, 32, 32)}, tmp_path / "panel.png")
    pixels = np.asarray(Image.open(tmp_path / "panel.png"))
    assert pixels.shape == (TITLE + WIDTH + CAPTION, 3 * GAP + 2 * WIDTH + BAR, 3)
    assert words(pixels, (GAP + WIDTH // 2, TITLE + WIDTH + CAPTION // 2), "", 20)
    assert words(pixels, (2 * GAP + WIDTH + WIDTH // 2, TITLE + WIDTH + CAPTION // 2), "8-bit levels", 20)
