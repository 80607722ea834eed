import math

import pytest
import torch

from models.schedules import NoiseSchedule, cosine, linear, log_snr, quadratic, respace, shorten, sigmoid

NAMES = ["linear", "quadratic", "cosine", "sigmoid", "log_snr"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 2, 20, 2000])
def test_betas_are_float64_in_the_open_unit_interval(name, steps):
    betas = NoiseSchedule(name, steps, beta_start=1e-4, beta_end=0.02).betas()
    assert betas.shape == (steps,) and betas.dtype == torch.float64
    assert ((betas > 0) & (betas < 1)).all()


def test_linear_is_the_ddpm_form_bit_for_bit():
    # b_0 .. b_T on a line of T + 1 points; alpha_bar_0 = 1, so b_0 is never used.
    T, b_1, b_2 = 500, 1e-4, 0.02
    form = torch.linspace(b_1, b_2, T + 1, dtype=torch.float64)
    assert torch.equal(linear(T, b_1, b_2), form[1:])


def test_quadratic_and_sigmoid_end_points():
    assert quadratic(100, 1e-4, 0.02)[-1].item() == pytest.approx(0.02, rel=1e-12)
    roots = quadratic(100, 1e-4, 0.02).sqrt()
    assert torch.allclose(roots.diff(), roots.diff()[0].expand(99))
    betas = sigmoid(100, 1e-4, 0.02)
    assert (betas.diff() > 0).all()
    assert betas[49].item() == pytest.approx((1e-4 + 0.02) / 2)  # the middle of the logistic curve
    assert betas[-1].item() == pytest.approx(0.02, rel=3e-3)


def test_cosine_is_equation_17():
    alpha_bar = (1 - cosine(1000)).cumprod(0)
    t = torch.arange(1, 1000, dtype=torch.float64) / 1000
    f = torch.cos((t + 0.008) / 1.008 * torch.pi / 2) ** 2
    f0 = torch.cos(torch.tensor(0.008 / 1.008 * torch.pi / 2, dtype=torch.float64)) ** 2
    assert torch.allclose(alpha_bar[:-1], f / f0, rtol=1e-9)


def test_log_snr_is_evenly_spaced():
    alpha_bar = (1 - log_snr(21, 8.0, -12.0)).cumprod(0)
    levels = torch.logit(alpha_bar)
    assert torch.allclose(levels, torch.linspace(8, -12, 21, dtype=torch.float64), atol=1e-8)
    assert torch.logit((1 - log_snr(1, 8.0, -12.0)).cumprod(0)).item() == pytest.approx(-12)


@pytest.mark.parametrize("steps", [1, 2, 7, 30, 1999, 2000])
def test_respace_visits_levels_of_the_longer_schedule_and_always_the_last(steps):
    alphas_cumprod = (1 - linear(2000)).cumprod(0)
    visited = (1 - respace(alphas_cumprod, steps)).cumprod(0)
    nearest = (visited[:, None] - alphas_cumprod).abs().argmin(1)
    assert torch.allclose(visited, alphas_cumprod[nearest], rtol=1e-9)
    assert nearest[-1] == 1999 and len(nearest.unique()) == steps
    strides = torch.cat([nearest.new_tensor([-1]), nearest]).diff()
    assert strides.max() - strides.min() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_shortened_schedule_is_the_same_curve_up_to_its_new_end(name):
    betas = NoiseSchedule(name, 40, beta_start=1e-3, beta_end=0.3).betas()
    curve = [0.0, *(1 - betas).log().cumsum(0).tolist()]  # log alpha_bar at t = 0, 1, ... 40
    end = curve[17] + 0.25 * (curve[18] - curve[17])  # t = 17.25
    shortened = [0.0, *(1 - shorten(betas, math.exp(end))).log().cumsum(0).tolist()]
    assert len(shortened) == 41 and shortened[40] == pytest.approx(end, rel=1e-9)
    assert shortened[20] == pytest.approx(curve[8] + 0.625 * (curve[9] - curve[8]), rel=1e-9)  # t = 8.625
    assert torch.allclose(shorten(betas, math.exp(curve[40])), betas, rtol=1e-6)
    with pytest.raises(ValueError, match="noise ends at sigma"):
        shorten(betas, math.exp(1.01 * curve[40]))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: linear(0), "steps"),
        (lambda: linear(10, 0.02, 0.01), "beta_start"),
        (lambda: linear(10, 0.1, 1.0), "beta_end"),
        (lambda: log_snr(10, -5, 5), "log_snr_max"),
        (lambda: respace(torch.ones(10), 11), "between 1 and 10"),
    ],
)
def test_numbers_out_of_range_are_named(make, word):
    with pytest.raises(ValueError, match=word):
        make()
