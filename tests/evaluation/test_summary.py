"""From scores to rows: verdicts, the Pareto front and the presets."""

import dataclasses

import pytest

from evaluation.catalogue import METRICS as COLUMNS
from evaluation.controls import NOISED, SHARPENED
from evaluation.journal import Score
from evaluation.rows import CONTROLS, Row
from evaluation.statistics import Estimate
from evaluation.summary import RowSummary
from models.settings import SamplingSettings
from tests.evaluation.document import of_rows
from tests.evaluation.toy import METRICS, Toy, decibels, summary


def row(label: str, psnr: float | None, lpips: float | None = None, ssim: float | None = 0.5) -> RowSummary:
    settings = None if label in ("blurry", "predictor", *CONTROLS) else SamplingSettings(steps=5)
    values = {"psnr": psnr, "ssim": ssim, "lpips": lpips}
    estimates = {name: Estimate(value, None, None, 1) for name, value in values.items() if value is not None}
    return RowSummary(Row(label, settings), 1, 0.0, estimates)


def test_a_setting_is_perceptual_where_it_beats_both_controls(tmp_path):
    """LPIPS is planted: the controls' falls with their strength, and the first setting's is a little lower still."""
    settings = [SamplingSettings(steps=steps) for steps in (22, 23, 24)]
    lpips = dataclasses.replace(METRICS["ssim"], column=COLUMNS["lpips"])
    toy = Toy([(16, 12)] * 6)
    plan = toy.plan(tmp_path, settings, METRICS | {"lpips": lpips})
    names = dict(zip((row.label for row in plan.settings), ("better", "worse", "broken"), strict=True))
    for row in plan.rows:
        for number, image in enumerate(plan.images):
            spread = 0.001 * (number - 2.5)
            planted = {"better": 0.05 + spread, "worse": 0.5 + spread, "broken": None}.get(names.get(row.label), 0.1)
            scores = {"psnr": decibels(20), "ssim": 0.5, "lpips": planted}
            if row.settings:
                scores["psnr"] = decibels(row.settings.steps)
            elif row.label in CONTROLS:
                scores |= {"psnr": decibels(20) - 2 * (CONTROLS.index(row.label) % 5), "lpips": 0.07}
            missing = {} if planted else {"lpips": "not finite"}
            plan.journal.add(Score(row.key, image.name, 0.0, scores, missing))
    rows = summary(plan).rows
    assert not toy.log
    better, worse, broken = (row.verdict for row in rows[-3:])
    assert (better.perceptual, worse.perceptual) == ("yes", "no")
    for control in (SHARPENED, NOISED):
        assert better.differences[control].mean == pytest.approx(-0.02, abs=0.003)
        assert better.differences[control].high < 0 < worse.differences[control].low
    assert broken.perceptual == "unknown" and broken.missing == "its LPIPS is missing for an image"
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
    assert [r.label for r in of_rows(rows).front] == ["front", "twin", "predictor"]


def test_without_lpips_the_front_is_of_psnr_and_ssim():
    rows = [row("blurry", 25.0, ssim=0.9), row("predictor", 27.0, ssim=0.6), row("a", 26.0, ssim=0.7), row("b", 25.5)]
    assert of_rows(rows).perception == "ssim"
    assert [r.label for r in of_rows(rows).front] == ["blurry", "a", "predictor"]


def test_presets_are_the_ends_and_the_knee():
    made = [
        row("predictor", 30.0, 0.05),
        row("plain", 27.0, 0.40),
        row("knee", 26.5, 0.28),
        row("middle", 25.5, 0.26),
        row("sharpest", 25.0, 0.25),
        row("beaten", 24.0, 0.30),
    ]
    assert {name: chosen.label for name, chosen in of_rows(made).presets.items()} == {
        "fidelity": "plain",
        "balanced": "knee",
        "perceptual": "sharpest",
    }
    assert {chosen.label for chosen in of_rows(made[:2]).presets.values()} == {"plain"}
    assert of_rows(made[:1]).presets == {}
