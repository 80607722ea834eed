"""The plot's points, labels and words; the panel's columns and colours, read back from the file."""

import itertools
import random

import numpy as np
import pytest
import torch
from matplotlib.text import Annotation
from PIL import Image

from evaluation.grid import Row, pareto_front
from evaluation.plots import panel, plot_pareto

SAMPLERS = ("ddim", "ddpm", "dpmsolver++", "unipc")


def rows(count: int, lpips: bool = True) -> list[Row]:
    """A cloud around a falling curve, after the rows blurry and predictor."""
    numbers = random.Random(0)
    made = [("blurry", {}, 25.7, 0.28), ("predictor", {}, 26.0, 0.32)]
    for k in range(count):
        steps = (5, 10, 20, 50, 100, 200, 300, 500)[k // 4 % 8]
        x, y = 25.9 - steps / 1000 + numbers.gauss(0, 0.05), 0.31 - steps / 25000 + numbers.gauss(0, 0.004)
        made.append((f"{k}", {"sampler": SAMPLERS[k % 4], "steps": steps}, x, y))
    return [
        Row(label, settings, 12, 1.0, {"psnr": x, "ssim": 1 - y, "lpips": y if lpips else None})
        for label, settings, x, y in made
    ]


def labels(figure) -> list[Annotation]:
    return [text for text in figure.axes[0].texts if isinstance(text, Annotation)]


@pytest.mark.parametrize("count", [1, 8, 100])
def test_labels_do_not_lie_on_each_other(tmp_path, count):
    figure = plot_pareto(rows(count), tmp_path / "pareto.png")
    with Image.open(tmp_path / "pareto.png") as picture:
        assert picture.size == (1350, 975)
    boxes = [text.get_window_extent() for text in labels(figure)]
    boxes.append(figure.axes[0].get_legend().get_window_extent())
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_few_points_are_all_labelled_and_many_only_on_the_front(tmp_path):
    few = labels(plot_pareto(rows(8), tmp_path / "pareto.png"))
    assert sorted(text.get_text() for text in few) == sorted(["blurry", "predictor", *["5"] * 4, *["10"] * 4])
    many = rows(100)
    assert len(labels(plot_pareto(many, tmp_path / "pareto.png"))) == len(pareto_front(many))


def test_the_points_are_the_rows_one_series_a_sampler(tmp_path):
    made = rows(8)
    axes = plot_pareto(made, tmp_path / "pareto.png").axes[0]
    series = {s.get_label(): s.get_offsets().tolist() for s in axes.collections}
    assert list(series) == [*SAMPLERS, "blurry", "predictor"]
    for sampler in SAMPLERS:
        own = [[r.metrics["psnr"], r.metrics["lpips"]] for r in made if r.settings.get("sampler") == sampler]
        assert series[sampler] == own
    front = [[r.metrics["psnr"], r.metrics["lpips"]] for r in pareto_front(made)]
    assert axes.lines[0].get_xydata().tolist() == front
    assert axes.yaxis_inverted() and "LPIPS" in axes.get_ylabel()


def test_without_lpips_ssim_stands_in_and_the_title_says_why(tmp_path):
    reason = "LPIPS is missing: no network; give the weights with --lpips_backbone FILE."
    axes = plot_pareto(rows(8, lpips=False), tmp_path / "pareto.png", reason).axes[0]
    assert axes.get_ylabel().startswith("1 - SSIM")
    assert reason in axes.get_title().replace("\n", " ")
    blurry = next(s for s in axes.collections if s.get_label() == "blurry")
    assert blurry.get_offsets().tolist() == [[25.7, pytest.approx(0.28)]]


def test_rows_without_a_place_are_left_out(tmp_path):
    made = rows(4)
    made[0] = Row("blurry", {}, 12, 0.0, {"psnr": float("inf"), "ssim": 1.0, "lpips": 0.0})
    made[2] = Row("0", made[2].settings, 12, 0.0, {"psnr": None, "ssim": None, "lpips": None})
    figure = plot_pareto(made, tmp_path / "pareto.png")
    assert len(labels(figure)) == 4


def test_panel_shows_each_picture_in_its_colours(tmp_path):
    red = torch.zeros(3, 40, 60)
    red[0] = 1
    dark = red * 0.5
    spread = torch.full((3, 40, 60), 10 / 255)
    tall = [torch.full((3, 60, 30), level) for level in (0.2, 0.3, 0.1, 0.4)]
    columns = {"blurry": [dark, tall[0]], "sample": [red, tall[1]], "std": [spread, tall[2]], "sharp": [red, tall[3]]}
    figure = panel(columns, tmp_path / "panel.png")

    grid = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in grid[:4]] == ["blurry", "sample", "std", "sharp"]
    assert [axes.get_xlabel() for axes in grid[:4]] == ["10.83 dB", "inf dB", "8-bit levels", ""]
    assert grid[4].get_xlabel() == "13.98 dB"
    assert np.allclose(grid[2].images[0].get_array(), 10)

    pixels = np.asarray(Image.open(tmp_path / "panel.png").convert("RGB"))
    for axes, colour in ((grid[0], (128, 0, 0)), (grid[1], (255, 0, 0)), (grid[4], (51, 51, 51))):
        box = axes.get_window_extent()
        x, y = round((box.x0 + box.x1) / 2), pixels.shape[0] - round((box.y0 + box.y1) / 2)
        assert np.abs(pixels[y, x].astype(int) - colour).max() <= 1
    words = [axes.title.get_window_extent() for axes in grid[:4]]
    words += [axes.xaxis.label.get_window_extent() for axes in grid if axes.get_xlabel()]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(words, 2))


def test_panel_of_one_picture_without_truth(tmp_path):
    figure = panel({"blurry": torch.rand(3, 32, 32), "std": torch.zeros(3, 32, 32)}, tmp_path / "panel.png")
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "8-bit levels"]
