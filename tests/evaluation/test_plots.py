"""The perception-distortion curve."""

import itertools

import numpy as np
import pytest
from matplotlib.text import Annotation
from PIL import Image

from evaluation.controls import LABELS
from evaluation.plots import curve
from tests.evaluation.document import SAMPLERS, estimate, results


def labels(figure) -> list[Annotation]:
    return [text for text in figure.axes[0].texts if isinstance(text, Annotation)]


@pytest.mark.parametrize("count", [2, 12, 18])
def test_the_labels_of_the_curve_do_not_lie_on_each_other(tmp_path, count):
    figure = curve(results(count))
    figure.savefig(tmp_path / "pareto.png")
    boxes = [text.get_window_extent() for text in labels(figure)]
    boxes.append(figure.axes[0].get_legend().get_window_extent())
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert len(boxes) == count + 3
    with Image.open(tmp_path / "pareto.png") as image:
        assert image.size == (1500, 975)


def test_the_curve_shows_the_rows_their_intervals_and_the_front():
    document = results()
    axes = curve(document).axes[0]
    points = {c.get_label(): c.get_offsets().tolist() for c in axes.collections if not c.get_label().startswith("_")}
    assert set(points) == {*SAMPLERS, "blurry", "predictor"}
    for sampler in SAMPLERS:
        own = [row["metrics"] for row in document["rows"] if row["fields"].get("sampler") == sampler]
        assert points[sampler] == [[m["psnr"]["mean"], m["lpips"]["mean"]] for m in own]
    [line] = [line for line in axes.lines if line.get_label() == "Pareto front"]
    front = sorted(
        (r["metrics"]["psnr"]["mean"], r["metrics"]["lpips"]["mean"]) for r in document["rows"] if r["front"]
    )
    assert line.get_xydata().tolist() == [list(point) for point in front]
    ends = {tuple(np.round(end, 6)) for c in axes.containers for bar in c[2] for s in bar.get_segments() for end in s}
    for row in document["rows"]:
        psnr, lpips = row["metrics"]["psnr"], row["metrics"]["lpips"]
        if row["fields"] or row["setting"] in ("blurry", "predictor"):
            assert (round(psnr["low"], 6), round(lpips["mean"], 6)) in ends
            assert (round(psnr["mean"], 6), round(lpips["high"], 6)) in ends
    for control, labels in LABELS.items():
        [line] = [line for line in axes.lines if line.get_label() == control]
        own = {row["setting"]: row["metrics"] for row in document["rows"]}
        points = [[own[at]["psnr"]["mean"], own[at]["lpips"]["mean"]] for at in ("predictor", *labels)]
        assert line.get_xydata().tolist() == points and line.get_linewidth() < 1
    least = min(x for group in points_of(axes) for x, _ in group)
    assert axes.get_xlim()[0] == pytest.approx(least, abs=0.5), "controls far away do not squeeze what is compared"
    assert axes.yaxis_inverted() and not axes.xaxis_inverted()
    assert "LPIPS (AlexNet): lower is better" in axes.get_ylabel() and "PSNR (dB): higher" in axes.get_xlabel()
    assert any(text.get_text().endswith(" perceptual") for text in axes.texts)


def test_without_lpips_the_curve_takes_ssim_and_says_why():
    document = results()
    document["axes"]["perception"] = "ssim"
    reason = "LPIPS is missing: no network."
    document["metrics"]["lpips"] |= {"reason": reason, "recipe": None}
    document["metrics"]["ssim"] = {"title": "SSIM", "recipe": "SSIM", "reason": None, "higher_is_better": True}
    for row in document["rows"]:
        row["metrics"]["ssim"] = estimate(1 - (row["metrics"]["lpips"]["mean"] or 0), 0.01)
    axes = curve(document).axes[0]
    assert reason in axes.get_title().replace("\n", " ") and axes.get_ylabel().startswith("SSIM: higher")
    assert not axes.yaxis_inverted()


def points_of(axes) -> list[list]:
    return [c.get_offsets().tolist() for c in axes.collections if not c.get_label().startswith("_")]
