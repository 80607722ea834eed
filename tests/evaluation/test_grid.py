"""Reading grids, running them on a problem with known scores, averaging, the Pareto front, and the files."""

import csv
import json
import math
from pathlib import Path

import pytest
import torch

from evaluation.grid import (
    GridError,
    Row,
    Score,
    average,
    best_sample,
    label_settings,
    pareto_front,
    perception_metric,
    read_grid,
    run_grid,
)
from evaluation.metrics import MetricError, psnr, ssim
from evaluation.results import format_table, whole_file, write_results
from models.schedules import linear
from models.settings import SamplingSettings

GRIDS = Path(__file__).parents[2] / "configs" / "grid"


def read(tmp_path: Path, text: str) -> list[SamplingSettings]:
    (tmp_path / "grid.yaml").write_text(text)
    return read_grid(tmp_path / "grid.yaml", SamplingSettings)


def row(label: str, psnr: float | None, lpips: float | None = None, ssim: float | None = 0.5) -> Row:
    settings = {} if label in ("blurry", "predictor") else {"sampler": "ddim", "steps": 5}
    return Row(label, settings, 1, 0.0, {"psnr": psnr, "ssim": ssim, "lpips": lpips})


# Reading


def test_a_grid_is_the_product_and_the_listed_settings_each_once(tmp_path):
    settings = read(
        tmp_path,
        "product: {sampler: [ddim, ddpm], steps: [5, 10], schedule: cosine}\n"
        "settings:\n"
        "  - {sampler: unipc, steps: 3, blend: 1}\n"
        "  - {sampler: ddim, steps: 5, schedule: cosine}\n",
    )
    expected = [SamplingSettings(s, "cosine", n) for s in ("ddim", "ddpm") for n in (5, 10)]
    assert settings == [*expected, SamplingSettings("unipc", steps=3)]


def test_several_products_and_yaml_s_textual_exponents(tmp_path):
    settings = read(tmp_path, "product: [{steps: 50, beta_start: 1e-6}, {steps: [20, 30], sampler: ddpm}]")
    assert [s.steps for s in settings] == [50, 20, 30]
    assert settings[0].beta_start == 1e-6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("product: {stepz: [5]}", "unknown field 'stepz'; known are sampler, schedule, steps"),
        ("product: {sampler: [ddim, euler]}", "sampler must be one of ddpm, ddim, dpmsolver++, unipc, got 'euler'"),
        ("product: {steps: [5, 0]}", "steps must be a whole number of 1 or more, got 0"),
        ("product: {steps: 2.5}", "steps must be of type int, got 2.5"),
        ("product: {steps: true}", "steps must be of type int, got True"),
        ("product: {beta_end: much}", "beta_end must be of type float, got 'much'"),
        ("product: {beta_end: .nan}", "beta_end must be of type float, got nan"),
        ("product: {average: 1}", "average must be of type bool, got 1"),
        ("settings: [{steps: [5, 10]}]", "steps must be of type int, got [5, 10]"),
        ("product: [5]", "'product' must hold fields with their values"),
        ("settings: {steps: 5}", "'settings' must hold fields with their values"),
        ("products: {steps: 5}", "must hold the keys 'product' or 'settings' and no others"),
        ("- 5", "must hold the keys 'product' or 'settings' and no others"),
        ("", "must hold the keys 'product' or 'settings' and no others"),
        ("product: {steps: []}", "holds no settings"),
        ("product: {steps: [5", "is not YAML"),
    ],
)
def test_a_wrong_grid_is_one_sentence_with_the_file(tmp_path, text, said):
    with pytest.raises(GridError) as caught:
        read(tmp_path, text)
    assert f"Grid file {tmp_path / 'grid.yaml'}" in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_grid_file_is_named(tmp_path):
    with pytest.raises(GridError, match=r"absent\.yaml cannot be read: No such file"):
        read_grid(tmp_path / "absent.yaml", SamplingSettings)


def test_the_grid_files_of_the_repository():
    demo = read_grid(GRIDS / "demo.yaml", SamplingSettings)
    assert {(s.sampler, s.steps) for s in demo} == {(s, n) for s in ("ddim", "ddpm") for n in (2, 5, 20)}
    paper = read_grid(GRIDS / "paper.yaml", SamplingSettings)
    assert sorted({s.steps for s in paper}) == [10, 20, 30, 50, 100, 200, 300, 500]
    ends = (0.1, 0.01, 0.001, math.exp(-10))
    for number, setting in enumerate(paper):
        assert (setting.sampler, setting.schedule) == ("ddpm", "linear")
        end = (1 - linear(setting.steps, setting.beta_start, setting.beta_end)).prod().item()
        assert end == pytest.approx(ends[number % 4], rel=0.03)


def test_labels_are_unique_and_tell_what_differs():
    settings = [SamplingSettings("ddim", steps=5, eta=eta) for eta in (0.0, 1.0)]
    assert label_settings(settings) == ["ddim 5 eta=0.0", "ddim 5 eta=1.0"]
    assert label_settings([SamplingSettings("ddpm", "cosine", 9), SamplingSettings()]) == [
        "ddpm 9 cosine",
        "ddim 20 training",
    ]


# Running


class Toy:
    """A restorer whose result is off by `steps` levels everywhere, the prediction by 20, the input by 40."""

    def __init__(self, sizes: list[tuple[int, int]]):
        self.sizes, self.log = sizes, []

    def cases(self):
        for number, (height, width) in enumerate(self.sizes):
            self.log.append(f"case {number}")
            sharp = torch.full((3, height, width), 100 / 255)
            yield f"picture{number}", sharp + 40 / 255, sharp

    def predict(self, blurry):
        self.log.append("predict")
        assert blurry.shape[:2] == (1, 3)
        return blurry - 20 / 255

    def refine(self, blurry, x_init, setting, name, progress):
        self.log.append(f"refine {name}")
        for _ in progress(range(setting.steps)):
            pass
        offsets = torch.arange(setting.num_samples) + setting.steps
        return (x_init - 20 / 255) + offsets.view(-1, 1, 1, 1) / 255


def decibels(offset: int) -> float:
    return 20 * math.log10(255 / offset)


def test_every_setting_gets_its_known_score_and_the_predictor_runs_once_an_image(capsys):
    toy = Toy([(24, 20), (16, 12)])
    settings = [SamplingSettings(steps=2), SamplingSettings(steps=5), SamplingSettings(steps=3, num_samples=2)]
    scores = run_grid(toy.cases(), 2, settings, toy.predict, toy.refine, {"psnr": psnr, "ssim": ssim})
    one_image = ["predict", "refine picture0", "refine picture0", "refine picture0"]
    assert toy.log[:5] == ["case 0", *one_image], "the next picture is read when this one is done"
    assert toy.log[5:] == ["case 1", *[entry.replace("0", "1") for entry in one_image]]
    assert [s.image for s in scores] == ["picture0"] * 5 + ["picture1"] * 5

    rows = average(scores, settings)
    assert [r.label for r in rows] == ["blurry", "predictor", *label_settings(settings)]
    expected = [decibels(40), decibels(20), decibels(2), decibels(5), (decibels(3) + decibels(4)) / 2]
    assert [r.metrics["psnr"] for r in rows] == pytest.approx(expected, abs=1e-4)
    assert [r.images for r in rows] == [2] * 5
    assert rows[0].seconds == 0
    assert 0 < rows[1].seconds < min(r.seconds for r in rows[2:]), "a setting's time holds the predictor's"
    shown = capsys.readouterr().err
    assert "image 2/2, ddim 3" in shown
    assert f"{2 * (2 + 5 + 2 * 3)}/{2 * (2 + 5 + 2 * 3)}" in shown


def test_the_bar_arrives_when_a_setting_skips_its_steps(capsys):
    toy = Toy([(12, 12)])
    settings = [SamplingSettings(steps=7, blend=0.0)]
    run_grid(toy.cases(), 1, settings, toy.predict, lambda blurry, x_init, *rest: x_init, {"psnr": psnr})
    assert "7/7" in capsys.readouterr().err


def test_a_picture_too_small_for_a_metric_is_left_out_of_every_mean():
    toy = Toy([(24, 20), (8, 8)])
    settings = [SamplingSettings(steps=2)]
    scores = run_grid(toy.cases(), 2, settings, toy.predict, toy.refine, {"psnr": psnr, "ssim": ssim})
    small = [s for s in scores if s.image == "picture1"]
    assert all(s.metrics["ssim"] is None and "8x8" in s.missing["ssim"] for s in small)
    for r in average(scores, settings):
        assert r.metrics["ssim"] == next(s for s in scores if s.label == r.label).metrics["ssim"]
        assert r.missing["ssim"].startswith("1 of 2 images, first picture1: SSIM needs 11 pixels")


def test_a_setting_that_breaks_on_one_picture_has_no_mean():
    toy = Toy([(24, 20), (24, 20)])
    settings = [SamplingSettings(steps=2), SamplingSettings(steps=5)]

    def refine(blurry, x_init, setting, name, progress):
        restored = toy.refine(blurry, x_init, setting, name, progress)
        return restored * float("nan") if (setting.steps, name) == (5, "picture1") else restored

    rows = average(run_grid(toy.cases(), 2, settings, toy.predict, refine, {"psnr": psnr}), settings)
    assert rows[2].metrics["psnr"] == pytest.approx(decibels(2), abs=1e-4)
    assert rows[3].metrics["psnr"] is None
    assert "picture1" in rows[3].missing["psnr"] and "not finite" in rows[3].missing["psnr"]


def test_other_errors_of_a_metric_are_not_swallowed():
    toy = Toy([(12, 12)])

    def broken(restored, sharp):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_grid(toy.cases(), 1, [SamplingSettings()], toy.predict, toy.refine, {"psnr": broken})


# The front


def test_pareto_front_is_what_nothing_beats():
    rows = [
        row("blurry", 25.0, 0.30),
        row("predictor", 27.0, 0.40),
        row("front", 26.0, 0.25),
        row("beaten", 25.9, 0.26),
        row("equal on one axis", 26.0, 0.27),
        row("twin", 26.0, 0.25),
        row("unscored", None, None),
    ]
    assert [r.label for r in pareto_front(rows)] == ["front", "twin", "predictor"]
    assert best_sample(rows).label == "front"


def test_without_lpips_the_front_is_of_psnr_and_ssim():
    rows = [row("blurry", 25.0, ssim=0.9), row("predictor", 27.0, ssim=0.6), row("a", 26.0, ssim=0.7), row("b", 25.5)]
    assert perception_metric(rows) == "ssim"
    assert [r.label for r in pareto_front(rows)] == ["blurry", "a", "predictor"]
    assert best_sample(rows).label == "a"
    assert best_sample(rows[:2]) is None


# The files


def test_files_hold_the_rows(tmp_path):
    settings = [SamplingSettings("ddim", steps=5), SamplingSettings("ddpm", steps=5)]
    labels = ["blurry", "predictor", "ddim 5", "ddpm 5"]
    numbers = [(25.0, 0.5), (float("inf"), 1.0), (26.0, 0.7), (24.0, 0.4)]
    scores = [
        Score(label, "a/1", 0.25, {"psnr": p, "ssim": s, "lpips": None}, {"lpips": "too small"})
        for label, (p, s) in zip(labels, numbers, strict=True)
    ]
    rows = average(scores, settings)
    paths = write_results(tmp_path, rows, scores, {"seed": 3})
    assert sorted(tmp_path.iterdir()) == sorted(paths)

    table = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [line["label"] for line in table] == labels
    assert list(table[0])[-5:] == ["images", "psnr", "ssim", "lpips", "seconds"]
    assert (table[0]["sampler"], table[0]["steps"]) == ("", "")
    assert (table[3]["sampler"], table[3]["steps"], table[3]["psnr"]) == ("ddpm", "5", "24.000000")
    assert {line["lpips"] for line in table} == {""}
    each = list(csv.DictReader((tmp_path / "per_image.csv").open()))
    assert each[2] == {
        "label": "ddim 5",
        "image": "a/1",
        "psnr": "26.000000",
        "ssim": "0.700000",
        "lpips": "",
        "seconds": "0.2500",
        "missing": "too small",
    }
    document = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert document["seed"] == 3
    assert [r["psnr"] for r in document["rows"]] == [25.0, "inf", 26.0, 24.0]
    assert [r["front"] for r in document["rows"]] == [False, True, False, False]
    assert document["rows"][2]["settings"]["steps"] == 5
    assert "too small" in document["rows"][2]["missing"]["lpips"]


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("earlier")
    with pytest.raises(MetricError), whole_file(path) as part:
        part.write_text("half")
        raise MetricError("stopped")
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_the_table_is_sorted_and_marks_the_front():
    lines = format_table(
        [row("blurry", 25.0, 0.3), row("predictor", 27.0, 0.4), row("ddim 5", 24.0, None)]
    ).splitlines()
    assert [line[:11].strip() for line in lines[1:4]] == ["* blurry", "* predictor", "ddim 5"]
    assert lines[3].split()[2:5] == ["24.00", "0.5000", "-"]
