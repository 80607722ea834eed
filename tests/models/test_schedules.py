import math

import pytest
import torch

from deblur.models.schedules import (
    NoiseSchedule,
    betas_of,
    level_of,
    levels_of,
    linear,
    log_snr,
    narrow,
    respace,
    shorten,
)
from deblur.settings import SamplingSettings, preset_settings

NAMES = ["linear", "cosine", "sigmoid", "log_snr"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 2, 20, 2000])
def test_levels_are_float64_and_rise_from_the_noisiest(name, steps):
    levels = NoiseSchedule(name, steps, beta_start=1e-4, beta_end=0.02).levels()
    assert levels.shape == (steps,)
    assert levels.dtype == torch.float64
    assert ((levels > 0) & (levels < 1)).all()
    assert (levels.diff() > 0).all()
    betas = betas_of(levels)
    assert ((betas > 0) & (betas < 1)).all()
    assert torch.allclose(levels_of(betas), levels, rtol=1e-12)


T, B_1, B_T = 7, 1e-3, 0.3


def by_hand(name: str) -> list[float]:
    """Betas in Python's own floats, from the formulas of the papers."""
    if name == "linear":  # b_0 .. b_T on a line of T + 1 points, of which b_0 is the clean residual's
        return [B_1 + (B_T - B_1) * t / T for t in range(1, T + 1)]
    if name == "sigmoid":  # the logistic curve from -6 to 6
        return [B_1 + (B_T - B_1) / (1 + math.exp(6 - 12 * t / T)) for t in range(1, T + 1)]
    if name == "cosine":  # Nichol & Dhariwal 2021, equation 17, with s = 0.008 and betas of at most 0.999
        f = [math.cos((t / T + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(T + 1)]
        return [min(1 - f[t] / f[t - 1], 0.999) for t in range(1, T + 1)]
    levels = [1.0, *(1 / (1 + math.exp(-(10 - 20 * t / (T - 1)))) for t in range(T))]  # log-SNR from 10 to -10
    return [1 - levels[t] / levels[t - 1] for t in range(1, T + 1)]


@pytest.mark.parametrize("name", NAMES)
def test_betas_are_those_of_the_formula_from_end_to_end(name):
    betas = betas_of(NoiseSchedule(name, T, beta_start=B_1, beta_end=B_T).levels())
    assert betas.tolist() == pytest.approx(by_hand(name), rel=1e-9, abs=1e-15)
    if name == "cosine":
        assert betas[-1].item() == pytest.approx(0.999, rel=1e-12)
        assert betas[-2].item() < 0.99
    if name == "log_snr":  # one step has the last level
        assert log_snr(1, 8.0, -12.0).logit().item() == pytest.approx(-12)


@pytest.mark.parametrize(("steps", "visited"), [(3, [3, 7, 10]), (4, [2, 5, 8, 10]), (1, [10]), (10, range(1, 11))])
def test_respaced_levels_are_the_nearest_to_even_strides(steps, visited):
    levels = linear(10, 0.01, 0.2)
    assert respace(levels, steps).tolist() == [levels[-t].item() for t in reversed(visited)]


@pytest.mark.parametrize("name", NAMES)
def test_a_shortened_schedule_is_the_same_curve_up_to_its_new_end(name):
    levels = NoiseSchedule(name, 40, beta_start=1e-3, beta_end=0.3).levels()
    curve = [0.0, *levels.log().flip(0).tolist()]  # log alpha_bar at t = 0, 1, ... 40
    end = curve[17] + 0.25 * (curve[18] - curve[17])  # t = 17.25
    shortened = [0.0, *shorten(levels, math.exp(end)).log().flip(0).tolist()]
    assert len(shortened) == 41
    assert shortened[40] == pytest.approx(end, rel=1e-9)
    assert shortened[20] == pytest.approx(curve[8] + 0.625 * (curve[9] - curve[8]), rel=1e-9)  # t = 8.625
    assert torch.allclose(shorten(levels, math.exp(curve[40])), levels, rtol=1e-6)
    with pytest.raises(ValueError, match="noise ends at sigma"):
        shorten(levels, math.exp(1.01 * curve[40]))


def sigmas(levels: torch.Tensor) -> torch.Tensor:
    """sigma of each level, the least noisy first."""
    return ((1 - levels) / levels).sqrt().flip(0)


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_within_the_trained_levels_stays_as_it_is(name):
    levels = NoiseSchedule(name, 20, beta_start=1e-4, beta_end=0.3).levels()
    first, last = sigmas(levels)[[0, -1]].tolist()
    assert narrow(levels, 0.999 * first, 1.001 * last) is levels
    assert narrow(levels, 0.0, math.inf) is levels


@pytest.mark.parametrize("name", ["linear", "cosine", "sigmoid"])
@pytest.mark.parametrize("steps", [2, 5, 200])
def test_a_schedule_beyond_the_trained_levels_ends_at_them(name, steps):
    levels = NoiseSchedule(name, steps, beta_start=1e-6, beta_end=0.9).levels()
    before, after = sigmas(levels).log(), sigmas(narrow(levels, 0.05, 2.0)).log()
    assert len(after) == steps
    assert after[-1].exp().item() == pytest.approx(2.0)
    assert after[0].exp().item() == pytest.approx(max(0.05, before[0].exp().item()))
    # Even strides in t along the old curve.
    t = torch.tensor([_place(before, level) for level in after.tolist()], dtype=torch.float64)
    assert t.diff().min().item() == pytest.approx(t.diff().max().item(), rel=1e-6)
    assert t.diff().min() > 0


def _place(curve: torch.Tensor, level: float) -> float:
    """Where a rising polyline through (0, curve[0]), (1, curve[1]) ... reaches a level."""
    after = int((curve < level - 1e-12).sum().clamp(1, len(curve) - 1))
    return after - 1 + (level - curve[after - 1].item()) / (curve[after] - curve[after - 1]).item()


def test_even_steps_in_log_snr_stay_even():
    narrowed = narrow(log_snr(7, 10.0, -10.0), 0.05, 12.0)
    assert narrowed.tolist() == pytest.approx(log_snr(7, -2 * math.log(0.05), -2 * math.log(12)).tolist(), rel=1e-9)


def test_one_step_starts_at_the_noisiest_trained_level():
    assert narrow(log_snr(1, 10.0, -10.0), 0.05, 12.0).tolist() == [pytest.approx(level_of(12.0))]


@pytest.mark.parametrize(("ends", "steps"), [((10, 7), 5), ((10, 7), 1), ((-6, -10), 5)])
def test_a_schedule_without_a_trained_level_is_refused(ends, steps):
    with pytest.raises(ValueError, match=r"lie outside those of the checkpoint's training, 0.05 to 12"):
        narrow(log_snr(steps, *ends), 0.05, 12.0)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (NoiseSchedule(steps=0).levels, "steps"),
        (NoiseSchedule(steps=10, beta_start=0.02, beta_end=0.01).levels, "beta_start"),
        (NoiseSchedule(steps=10, beta_start=0.1, beta_end=1.0).levels, "beta_end"),
        (NoiseSchedule("log_snr", 10, log_snr_max=-5, log_snr_min=5).levels, "log_snr_max"),
        (lambda: respace(torch.ones(10), 11), "between 1 and 10"),
        (NoiseSchedule("sqrt").levels, "schedule 'sqrt' is unknown: it is one of linear, cosine, sigmoid, log_snr, or"),
        (NoiseSchedule("nowhere.sqrt").levels, r"nowhere.sqrt cannot be imported \(No module named 'nowhere'\)"),
        (NoiseSchedule("math.sqrt", 4).levels, "math.sqrt must give 4 levels alpha_bar between 0 and 1 for 4 steps"),
        (NoiseSchedule("numpy.arange", 4).levels, "numpy.arange must give 4 levels"),
    ],
)
def test_numbers_out_of_range_are_named(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_a_schedule_of_one_s_own_gives_levels_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "myschedules.py").write_text(
        "def even(steps):\n    return [(k + 1) / (steps + 1) for k in range(steps)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    wanted = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64)
    assert torch.allclose(NoiseSchedule("myschedules.even", 4).levels(), wanted)
    settings = SamplingSettings(schedule="myschedules.even", steps=4)
    assert torch.allclose(settings.levels(linear(10)), wanted)
    assert settings.levels(linear(10), 0.6, 2.0).tolist()[0] == pytest.approx(0.2)
    half = SamplingSettings(schedule="myschedules.even", steps=4, start=1.0).levels(linear(10))
    assert half[0].item() == pytest.approx(0.5)
    assert "schedule myschedules.even" in str(settings)


def test_no_preset_of_a_checkpoint_has_a_schedule_imported(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nfast = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    presets = {"balanced": {"steps": 3}, "fast": {"schedule": "stranger.fast"}}
    assert preset_settings(presets).steps == 3
    with pytest.raises(ValueError, match=r"preset fast names the schedule stranger\.fast, which is somebody's"):
        preset_settings(presets, "fast")
    with pytest.raises(ValueError, match=r"preset balanced names the schedule stranger\.fast"):
        preset_settings({"balanced": presets["fast"]})
    assert not (tmp_path / "ran").exists()
