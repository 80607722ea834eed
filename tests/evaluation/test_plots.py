"""The perception-distortion curve."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Annotation
from PIL import Image

from evaluation.controls import LABELS
from evaluation.plots import curve
from evaluation.rows import Row
from evaluation.statistics import Estimate
from evaluation.summary import RowSummary
from models.settings import SamplingSettings
from tests.evaluation.document import SAMPLERS, metric, of_rows, scored, summary_of


def labels(figure) -> list[Annotation]:
    return [text for text in figure.axes[0].texts if isinstance(text, Annotation)]


@pytest.mark.parametrize("count", [2, 12, 18])
def test_the_labels_of_the_curve_do_not_lie_on_each_other(tmp_path, count):
    figure = curve(summary_of(count))
    figure.savefig(tmp_path / "pareto.png")
    boxes = [text.get_window_extent() for text in labels(figure)]
    boxes.append(figure.axes[0].get_legend().get_window_extent())
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    for text in labels(figure):  # in one of eight directions, near its point
        box, (right, up) = text.get_window_extent(), text.get_position()
        points = 72 / figure.dpi
        ways = [(right / (box.width / 2 * points + gap), up / (box.height / 2 * points + gap)) for gap in (8, 15)]
        angle, radius = min(((math.atan2(y, x), math.hypot(x, y)) for x, y in ways), key=lambda way: abs(way[1] - 1))
        eighths = angle / (math.pi / 4)
        assert radius == pytest.approx(1, abs=1e-6) and eighths == pytest.approx(round(eighths), abs=1e-6)
    assert len(boxes) == count + 3
    with Image.open(tmp_path / "pareto.png") as image:
        assert image.size == (1500, 975)


def test_the_curve_shows_the_rows_their_intervals_and_the_front():
    summary = summary_of()
    axes = curve(summary).axes[0]
    points = {c.get_label(): c.get_offsets().tolist() for c in axes.collections if not c.get_label().startswith("_")}
    assert set(points) == {*SAMPLERS, "blurry", "predictor"}
    for sampler in SAMPLERS:
        own = [row for row in summary.settings if row.row.settings.sampler == sampler]
        assert points[sampler] == [[row.mean("psnr"), row.mean("lpips")] for row in own]
    [line] = [line for line in axes.lines if line.get_label() == "Pareto front"]
    assert line.get_xydata().tolist() == sorted([row.mean("psnr"), row.mean("lpips")] for row in summary.front)
    ends = {tuple(np.round(end, 6)) for c in axes.containers for bar in c[2] for s in bar.get_segments() for end in s}
    for row in summary.rows:
        if row.row.settings or row.label in ("blurry", "predictor"):
            psnr, lpips = row.estimates["psnr"], row.estimates["lpips"]
            assert (round(psnr.low, 6), round(lpips.mean, 6)) in ends
            assert (round(psnr.mean, 6), round(lpips.high, 6)) in ends
    own = {row.label: [row.mean("psnr"), row.mean("lpips")] for row in summary.rows}
    for control, labels in LABELS.items():
        [line] = [line for line in axes.lines if line.get_label() == control]
        assert line.get_xydata().tolist() == [own[at] for at in ("predictor", *labels)] and line.get_linewidth() < 1
    least = min(x for group in points_of(axes) for x, _ in group)
    assert axes.get_xlim()[0] == pytest.approx(least, abs=0.5), "controls far away do not squeeze what is compared"
    assert axes.yaxis_inverted() and not axes.xaxis_inverted()
    assert "LPIPS (AlexNet): lower is better" in axes.get_ylabel() and "PSNR (dB): higher" in axes.get_xlabel()


def test_images_equal_to_the_ground_truth_have_no_place_on_the_curve():
    """Their PSNR is infinite: another program's copy of the ground truth, on the front."""
    rows = summary_of().rows
    equal = {"psnr": Estimate(float("inf"), None, None, 6), "lpips": Estimate(0.0, None, None, 6)}
    summary = of_rows([*rows, RowSummary(Row("outputs copy"), 6, 0.0, equal)])
    assert [row.label for row in summary.front] == ["outputs copy"]
    axes = curve(summary).axes[0]
    assert "Pareto front" not in [line.get_label() for line in axes.lines]
    assert "outputs copy" not in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("field", ["blend", "steps", "sampler"])
def test_every_label_of_the_curve_stands_at_its_own_row(field):
    """Two settings that differ in one field, the better one first and last."""
    others = {"blend": 0.5, "steps": 7, "sampler": "unipc"}
    settings = [SamplingSettings(), SamplingSettings(**{field: others[field]})]
    for first, second in ((0, 1), (1, 0)):
        places = [(25.0, 0.2), (26.0, 0.3)]
        rows = [
            scored(Row("a", settings[first]), *places[0]),
            scored(Row("b", settings[second]), *places[1]),
            scored(Row("c", SamplingSettings(blend=0.0)), 25.5, 0.25),
        ]
        summary = of_rows(rows)
        found = {label.xy: label.get_text() for label in labels(curve(summary))}
        for row, place in zip(rows, [*places, (25.5, 0.25)], strict=True):
            words = [str(row.row.settings.steps)] if row.row.settings.blend else [row.label]
            assert found[place] == " ".join([*words, *filter(None, [summary.preset(row)])])
        assert found[places[0]].endswith(" perceptual") and " fidelity" in found[places[1]]


@pytest.mark.parametrize(("names", "said"), [(("lpips",), "LPIPS has no value."), ((), "not asked for")])
def test_without_lpips_the_curve_takes_ssim_and_says_why(names, said):
    rows = [
        replace(row, estimates={"psnr": row.estimates["psnr"], "ssim": row.estimates["lpips"]})
        for row in summary_of().rows
        if "lpips" in row.estimates
    ]
    metrics = {name: metric(name) for name in ("psnr", "ssim", *names)}
    axes = curve(of_rows(rows, metrics=metrics)).axes[0]
    assert said in axes.get_title().replace("\n", " ") and axes.get_ylabel().startswith("SSIM: higher")
    assert not axes.yaxis_inverted()


def points_of(axes) -> list[list]:
    return [c.get_offsets().tolist() for c in axes.collections if not c.get_label().startswith("_")]
