"""The perception-distortion curve, and the panel."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.text import Annotation, Text
from PIL import Image, ImageDraw, ImageFont

from deblur.evaluation.grid import LABELS, Row
from deblur.evaluation.plots import GAP, IMAGE_WIDTH, MOST_LABELS, TEXT_HEIGHT, curve, panel
from deblur.evaluation.statistics import Estimate
from deblur.evaluation.summary import RowSummary
from deblur.settings import SamplingSettings
from tests.evaluation.document import SAMPLERS, metric, of_rows, scored, summary_of


def labels(figure) -> list[Annotation]:
    return [text for text in figure.axes[0].texts if isinstance(text, Annotation)]


def place(row) -> list[float]:
    return [row.means["psnr"], row.means["lpips"]]


def series(axes) -> dict[str, list]:
    return {c.get_label(): c.get_offsets().tolist() for c in axes.collections if not c.get_label().startswith("_")}


@pytest.mark.parametrize("count", [2, 12, 100])
@pytest.mark.parametrize("both", [False, True])
def test_the_labels_of_the_curve_lie_in_the_frame_and_on_nothing_else(tmp_path, count, both):
    first = summary_of(count)
    figure = curve({"A": first, "B": moved(first, 0.5, -0.02)} if both else {"": first})
    figure.savefig(tmp_path / "pareto.png")
    found, frame = labels(figure), figure.axes[0].bbox
    boxes = [Text.get_window_extent(text) for text in found]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(frame.x0 < box.x0 and box.x1 < frame.x1 and frame.y0 < box.y0 and box.y1 < frame.y1 for box in boxes)
    for x, y in figure.axes[0].transData.transform([*itertools.chain(*series(figure.axes[0]).values())]):
        assert not any(box.x0 < x < box.x1 and box.y0 < y < box.y1 for box in boxes)
    texts = {text.get_text() for text in found}
    assert len(texts) <= MOST_LABELS
    assert {"blurry", *(["A: predictor", "B: predictor"] if both else ["predictor"])} <= texts
    for name in first.presets:
        assert sum(name in text for text in texts) == 1 + both
    with Image.open(tmp_path / "pareto.png") as image:
        assert image.size == (1500, 975)


def test_the_curve_shows_the_rows_the_front_and_the_controls():
    summary = summary_of()
    axes = curve({"": summary}).axes[0]
    points = series(axes)
    assert set(points) == {*SAMPLERS, "blurry", "predictor"}
    for sampler in SAMPLERS:
        assert points[sampler] == [place(row) for row in summary.settings if row.settings.sampler == sampler]
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines["Pareto front"] == sorted(place(row) for row in summary.front)
    own = {row.label: place(row) for row in summary.rows if row.label != "sharp"}
    for control, names in LABELS.items():
        assert lines[control] == [own[at] for at in ("predictor", *names)]
    least = min(x for group in points.values() for x, _ in group)
    assert axes.get_xlim()[0] == pytest.approx(least, abs=0.5), "controls far away do not squeeze what is compared"
    assert axes.yaxis_inverted()
    assert not axes.xaxis_inverted()
    assert "LPIPS (AlexNet): lower is better" in axes.get_ylabel()
    assert "PSNR (dB): higher" in axes.get_xlabel()


@pytest.mark.parametrize(("psnr", "inside"), [(25.7, True), (40.0, False)])
def test_blurry_images_far_away_do_not_squeeze_what_is_compared(psnr, inside):
    """As where some of them are nearly sharp."""
    rows = [scored(row, psnr, 0.28) if row.label == "blurry" else row for row in summary_of().rows]
    axes = curve({"": of_rows(rows)}).axes[0]
    assert (axes.get_xlim()[0] < psnr < axes.get_xlim()[1]) == inside
    assert ("outside, at 40.00 and 0.2800" in axes.get_title().replace("\n", " ")) != inside


def moved(summary, psnr, lpips):
    """The same rows, but for the blurry images, with other means."""
    rows = []
    for row in summary.rows:
        is_moved = row.label != "blurry" and "lpips" in row.means
        rows.append(scored(row, row.means["psnr"] + psnr, row.means["lpips"] + lpips) if is_moved else row)
    return replace(summary, rows=rows)


def test_two_evaluations_are_drawn_on_one_pair_of_axes_in_two_colours():
    first = summary_of()
    both = {"A": first, "B": moved(first, 0.5, -0.02)}
    [axes] = curve(both).axes
    points = series(axes)
    assert set(points) == {"blurry", *(f"{letter}: {name}" for letter in "AB" for name in (*SAMPLERS, "predictor"))}
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    for letter, summary in both.items():
        for sampler in SAMPLERS:
            own = [place(row) for row in summary.settings if row.settings.sampler == sampler]
            assert points[f"{letter}: {sampler}"] == own
        assert lines[f"{letter}: Pareto front"] == sorted(place(row) for row in summary.front)
    colours = {c.get_label(): tuple(c.get_facecolor()[0][:3]) for c in axes.collections if c.get_label() in points}
    by_letter = [{colour for label, colour in colours.items() if label.startswith(letter)} for letter in "AB"]
    assert [len(own) for own in by_letter] == [1, 1]
    assert by_letter[0] != by_letter[1]


def test_images_equal_to_the_ground_truth_have_no_place_on_the_curve():
    """Their PSNR is infinite: another program's copy of the ground truth, on the front."""
    rows = summary_of().rows
    equal = {"psnr": Estimate(float("inf"), None, None, 6), "lpips": Estimate(0.0, None, None, 6)}
    summary = of_rows([*rows, RowSummary("outputs copy", None, 6, 0.0, equal)])
    assert [row.label for row in summary.front] == ["outputs copy"]
    axes = curve({"": summary}).axes[0]
    assert "Pareto front" not in [line.get_label() for line in axes.lines]
    assert "outputs copy" not in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("field", ["blend", "steps", "sampler"])
def test_every_label_of_the_curve_stands_at_its_own_row(field):
    """Two settings that differ in one field, the better one first and last."""
    others = {"blend": 0.5, "steps": 7, "sampler": "unipc"}
    settings = [SamplingSettings(), SamplingSettings(**{field: others[field]})]
    for first, second in ((0, 1), (1, 0)):
        places = [(25.0, 0.2), (26.0, 0.3), (25.5, 0.25)]
        own = [Row("a", settings[first]), Row("b", settings[second]), Row("c", SamplingSettings(blend=0.0))]
        rows = [scored(row, *place) for row, place in zip(own, places, strict=True)]
        summary = of_rows(rows)
        found = {label.xy: label.get_text() for label in labels(curve({"": summary}))}
        for row, place in zip(rows, places, strict=True):
            preset = summary.preset_names.get(row.label)
            assert found[place] == (f"{row.label} ({preset})" if preset else row.label)
        assert found[places[0]].endswith("perceptual)")
        assert "(fidelity" in found[places[1]]


def test_without_lpips_the_curve_takes_ssim():
    scored = [row for row in summary_of().rows if "lpips" in row.estimates]
    rows = [replace(r, estimates={"psnr": r.estimates["psnr"], "ssim": r.estimates["lpips"]}) for r in scored]
    axes = curve({"": of_rows(rows, metrics={name: metric(name) for name in ("psnr", "ssim")})}).axes[0]
    assert axes.get_ylabel().startswith("SSIM: higher")
    assert not axes.yaxis_inverted()


def says(column, top, text):
    """Whether a text, and nothing else, is written in a line below an image or above a column."""
    expected = Image.new("RGB", (IMAGE_WIDTH, TEXT_HEIGHT), "white")
    place = IMAGE_WIDTH // 2, TEXT_HEIGHT // 2
    ImageDraw.Draw(expected).text(place, text, "black", ImageFont.load_default(22), "mm")
    return (column[top : top + TEXT_HEIGHT] == np.asarray(expected)).all()


def test_panel_shows_each_image_in_its_colours_and_its_number(tmp_path):
    """A row of wide images and one of tall ones; of the heat map one bright pixel does not make the rest black."""
    red = torch.zeros(3, 40, 60)
    red[0] = 1
    spread = torch.zeros(3, 40, 60)
    spread[:, :, 30:] = 12 / 255
    spread[:, 0, 0] = 1
    tall = [torch.full((3, 60, 30), level) for level in (0.2, 0.1, 0.4)]
    columns = {"blurry": [red * 0.5, tall[0]], "std": [spread, tall[1]], "sharp": [red, tall[2]]}
    panel(columns, tmp_path / "panel.png")
    pixels = np.asarray(Image.open(tmp_path / "panel.png"))
    heights = IMAGE_WIDTH * 40 // 60, IMAGE_WIDTH * 60 // 30
    tops = TEXT_HEIGHT, 2 * TEXT_HEIGHT + heights[0]
    assert pixels.shape[:2] == (tops[1] + heights[1] + TEXT_HEIGHT, GAP + 3 * (IMAGE_WIDTH + GAP))
    shown = [pixels[:, left : left + IMAGE_WIDTH] for left in range(GAP, pixels.shape[1], IMAGE_WIDTH + GAP)]
    for (line, column), colour in {(0, 0): (128, 0, 0), (1, 0): (51, 51, 51), (0, 2): (255, 0, 0)}.items():
        assert (shown[column][tops[line] : tops[line] + heights[line]] == colour).all(), (line, column)
    heat = shown[1][tops[0] + 20]
    assert (heat[0] == (0, 0, 3)).all() and (heat[-1] == (252, 254, 164)).all()  # inferno's ends
    words = ["10.83 dB", "13.98 dB"], ["brightest: 12 of 255 levels", "brightest: 25.5 of 255 levels"], ["", ""]
    for column, label, captions in zip(shown, columns, words, strict=True):
        assert says(column, 0, label)
        for top, height, caption in zip(tops, heights, captions, strict=True):
            assert says(column, top + height, caption), caption


def test_panel_of_one_image_without_ground_truth(tmp_path):
    panel({"blurry": torch.rand(1, 3, 32, 32)}, tmp_path / "panel.png")
    pixels = np.asarray(Image.open(tmp_path / "panel.png"))
    assert pixels.shape == (2 * TEXT_HEIGHT + IMAGE_WIDTH, 2 * GAP + IMAGE_WIDTH, 3)
    assert says(pixels[:, GAP:-GAP], TEXT_HEIGHT + IMAGE_WIDTH, "")
