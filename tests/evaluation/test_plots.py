"""The panel's columns, lines and colours, read back from the file."""

import itertools

import numpy as np
import torch
from PIL import Image

from evaluation.plots import panel


def test_panel_shows_each_image_in_its_colours(tmp_path):
    red = torch.zeros(3, 40, 60)
    red[0] = 1
    dark = red * 0.5
    spread = torch.full((3, 40, 60), 10 / 255)
    tall = [torch.full((3, 60, 30), level) for level in (0.2, 0.3, 0.1, 0.4)]
    columns = {"blurry": [dark, tall[0]], "sample": [red, tall[1]], "std": [spread, tall[2]], "sharp": [red, tall[3]]}
    figure = panel(columns, tmp_path / "panel.png", ["best: clock", "worst: cat"])

    grid = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in grid[:4]] == ["blurry", "sample", "std", "sharp"]
    assert [axes.get_xlabel() for axes in grid[:4]] == ["10.83 dB", "inf dB", "8-bit levels", ""]
    assert grid[4].get_xlabel() == "13.98 dB"
    assert [axes.get_ylabel() for axes in grid] == ["best: clock", "", "", "", "worst: cat", "", "", ""]
    assert np.allclose(grid[2].images[0].get_array(), 10)

    pixels = np.asarray(Image.open(tmp_path / "panel.png").convert("RGB"))
    for axes, colour in ((grid[0], (128, 0, 0)), (grid[1], (255, 0, 0)), (grid[4], (51, 51, 51))):
        box = axes.get_window_extent()
        x, y = round((box.x0 + box.x1) / 2), pixels.shape[0] - round((box.y0 + box.y1) / 2)
        assert np.abs(pixels[y, x].astype(int) - colour).max() <= 1
    words = [axes.title.get_window_extent() for axes in grid[:4]]
    words += [axes.xaxis.label.get_window_extent() for axes in grid if axes.get_xlabel()]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(words, 2))


def test_panel_of_one_image_without_truth(tmp_path):
    figure = panel({"blurry": torch.rand(3, 32, 32), "std": torch.zeros(3, 32, 32)}, tmp_path / "panel.png")
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "8-bit levels"]
