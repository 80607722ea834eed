"""From scores to rows: verdicts, the Pareto front and the presets."""

import dataclasses

import pytest

from evaluation.controls import NOISED, SHARPENED
from evaluation.grid import key
from evaluation.journal import Score
from evaluation.scoring import CONTROLS
from evaluation.statistics import Estimate
from evaluation.summary import Row, best_sample, choose_presets, pareto_front, perception_metric
from models.settings import SamplingSettings
from tests.evaluation.toy import METRICS, Toy, decibels, results


def row(label: str, psnr: float | None, lpips: float | None = None, ssim: float | None = 0.5) -> Row:
    settings = {} if label in ("blurry", "predictor", *CONTROLS) else {"sampler": "ddim", "steps": 5}
    values = {"psnr": psnr, "ssim": ssim, "lpips": lpips}
    estimates = {name: Estimate(value, None, None, 1) for name, value in values.items() if value is not None}
    return Row(label, settings, 1, 0.0, estimates)


def test_a_setting_is_perceptual_where_it_beats_both_controls(tmp_path):
    """LPIPS is planted: the controls' falls with their strength, and the first setting's is a little lower still."""
    settings = [SamplingSettings(steps=steps) for steps in (22, 23, 24)]
    lpips = dataclasses.replace(METRICS["ssim"], higher_is_better=False)
    toy = Toy([(16, 12)] * 6)
    plan = toy.plan(tmp_path, settings, METRICS | {"lpips": lpips})
    labels = dict(zip(map(key, settings), ("better", "worse", "broken"), strict=True))
    for row in [*plan.fixed_rows, *labels]:
        for number, image in enumerate(plan.images):
            spread = 0.001 * (number - 2.5)
            planted = {"better": 0.05 + spread, "worse": 0.5 + spread, "broken": None}.get(labels.get(row), 0.1)
            scores = {"psnr": decibels(20), "ssim": 0.5, "lpips": planted}
            if row in labels:
                scores["psnr"] = decibels(settings[list(labels).index(row)].steps)
            elif row in CONTROLS:
                scores |= {"psnr": decibels(20) - 2 * (CONTROLS.index(row) % 5), "lpips": 0.07}
            missing = {} if planted else {"lpips": "not finite"}
            plan.journal.add(Score(row, image.name, 0.0, scores, missing))
    rows = results(plan).rows
    assert not toy.log
    better, worse, broken = (row.verdict for row in rows[-3:])
    assert (better.perceptual, worse.perceptual) == ("yes", "no")
    for control in (SHARPENED, NOISED):
        assert better.differences[control].mean == pytest.approx(-0.02, abs=0.003)
        assert better.differences[control].high < 0 < worse.differences[control].low
    assert broken.perceptual is None and broken.missing == "its LPIPS is missing for an image"
    assert all(row.verdict is None for row in rows[:-3])


def test_pareto_front_is_what_nothing_beats():
    rows = [
        row("blurry", 25.0, 0.30),
        row("predictor", 27.0, 0.40),
        row("front", 26.0, 0.25),
        row("beaten", 25.9, 0.26),
        row("equal on one axis", 26.0, 0.27),
        row("twin", 26.0, 0.25),
        row("unscored", None, None),
        row("sharpened 0.6", 26.5, 0.2),
    ]
    assert [r.label for r in pareto_front(rows)] == ["front", "twin", "predictor"]
    assert best_sample(rows).label == "front"


def test_without_lpips_the_front_is_of_psnr_and_ssim():
    rows = [row("blurry", 25.0, ssim=0.9), row("predictor", 27.0, ssim=0.6), row("a", 26.0, ssim=0.7), row("b", 25.5)]
    assert perception_metric(rows) == "ssim"
    assert [r.label for r in pareto_front(rows)] == ["blurry", "a", "predictor"]
    assert best_sample(rows).label == "a"
    assert best_sample(rows[:2]) is None


def test_presets_are_the_ends_and_the_knee():
    made = [
        row("predictor", 30.0, 0.05),
        row("plain", 27.0, 0.40),
        row("knee", 26.5, 0.28),
        row("middle", 25.5, 0.26),
        row("sharpest", 25.0, 0.25),
        row("beaten", 24.0, 0.30),
    ]
    assert {name: chosen.label for name, chosen in choose_presets(made).items()} == {
        "fidelity": "plain",
        "balanced": "knee",
        "perceptual": "sharpest",
    }
    assert {chosen.label for chosen in choose_presets(made[:2]).values()} == {"plain"}
    assert choose_presets(made[:1]) == {}
