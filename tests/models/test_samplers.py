"""Samplers against closed forms: a Gaussian problem whose posterior is known, oracles, and the DDPM/DDIM equations."""

import json
import math
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
import torch

from deblur.models.diffusion import PREDICTION_TYPES, Estimator, clip_residual
from deblur.models.networks.mixins import randn_tensor
from deblur.models.networks.unet import Denoiser
from deblur.models.samplers import Multistep, ddpm_step, sample
from deblur.models.schedules import linear
from deblur.pipeline import noise_generator, step_of
from deblur.settings import SamplingSettings
from deblur.tiling import banded
from tests.models.outputs import network_of
from tests.tiny import stir

SAMPLERS = ["ddpm", "ddim", "dpmsolver++", "unipc"]
TRAINING = linear(2000)
SHAPE = (1, 3, 72, 72)


def wide(blurry):
    """A scale of the residual at which nothing is clipped."""
    return torch.full_like(blurry[:, :1], 1e-6)


class GaussianPosterior:
    """The exact denoiser where x ~ N(0, p) a pixel and y = h x + noise of variance q: E[x | r_t, y] in closed form."""

    p, h, q, y = 0.8, 0.7, 0.2, 0.5
    variance = 1 / (1 / p + h**2 / q)
    mean = variance * h * y / q

    def __call__(self, r_t, blurry, a, x_init, s):
        assert (blurry == self.y).all()
        a = a.view(-1, 1, 1, 1)
        gain = self.variance * a.sqrt() / (a * self.variance + 1 - a)
        return self.mean + gain * (r_t - a.sqrt() * self.mean)


POSTERIOR = GaussianPosterior()


def run(f, settings, y=None, seed=0, x_init=None, s=None):
    y = torch.full(SHAPE, GaussianPosterior.y, dtype=torch.float64) if y is None else y
    levels, x_init = settings.levels(TRAINING), torch.zeros_like(y) if x_init is None else x_init
    generators = [noise_generator(seed, str(i), 0) for i in range(len(y))]
    randn = partial(randn_tensor, generator=generators, dtype=y.dtype)
    return sample(f, y, x_init, wide(y) if s is None else s, levels, step_of(settings, levels), randn)


SCHEDULES = ["training", "linear", "cosine", "sigmoid", "log_snr"]
STOCHASTIC = [
    (sampler, eta, schedule, 500) for sampler, eta in (("ddpm", 0.0), ("ddim", 1.0)) for schedule in SCHEDULES
]
DETERMINISTIC = [(sampler, 0.0, "log_snr", 400) for sampler in ("ddim", "dpmsolver++", "unipc")]


@pytest.mark.parametrize(("sampler", "eta", "schedule", "steps"), [*STOCHASTIC, *DETERMINISTIC])
def test_samplers_reproduce_the_posterior(sampler, eta, schedule, steps):
    settings = SamplingSettings(sampler, schedule, steps, beta_start=1e-4, beta_end=0.05, eta=eta)
    r_0 = run(Estimator(network_of(POSTERIOR, "v_prediction")), settings)
    # 15,552 pixels: standard errors are 0.8 % of a standard deviation for the mean, 1.1 % for the variance; the rest of
    # the 5 % is left to discretisation.
    assert r_0.mean().item() == pytest.approx(GaussianPosterior.mean, abs=0.03 * GaussianPosterior.variance**0.5)
    assert r_0.var().item() == pytest.approx(GaussianPosterior.variance, rel=0.05)


@pytest.mark.parametrize("schedule", ["training", "log_snr", "cosine"])
@pytest.mark.parametrize(("sampler", "eta"), [("ddpm", 0.0), ("ddim", 0.0), ("ddim", 1.0), ("dpmsolver++", 0.0)])
def test_a_start_below_pure_noise_is_around_the_prediction(sampler, eta, schedule):
    r_0 = run(POSTERIOR, SamplingSettings(sampler, schedule, steps=250, start=1.5, eta=eta))
    a = 1 / (1 + 1.5**2)
    m, v = GaussianPosterior.mean, GaussianPosterior.variance
    # r_T ~ N(0, 1 - a) where it should be N(sqrt(a) m, a v + 1 - a); both ways down are linear in r_T.
    spread = a * v + 1 - a
    stochastic = sampler == "ddpm" or eta > 0
    gain = v * a**0.5 / spread if stochastic else (v / spread) ** 0.5
    variance = gain**2 * (1 - a) + (v * (1 - a) / spread if stochastic else 0.0)
    assert r_0.mean().item() == pytest.approx(m - gain * a**0.5 * m, abs=0.03 * v**0.5)
    assert r_0.var().item() == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize("steps", [1, 2, 10, 50])
@pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
@pytest.mark.parametrize("schedule", ["training", "cosine", "log_snr"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_oracle_returns_the_true_residual(sampler, schedule, prediction_type, steps):
    ground_truth = torch.randn(2, 3, 8, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    oracle = Estimator(network_of(lambda *_: ground_truth, prediction_type))
    r_0 = run(oracle, SamplingSettings(sampler, schedule, steps=steps), torch.zeros_like(ground_truth))
    assert (r_0 - ground_truth).abs().max() < 1e-5


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 3, 20])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_denoiser_is_told_the_level_the_sampler_is_at(sampler, schedule, steps):
    settings = SamplingSettings(sampler, schedule, steps=steps, beta_start=0.01, beta_end=0.9)
    levels, told = settings.levels(TRAINING), []

    def f(r_t, y, a, x_init, s):
        told.append(a[0].item())
        return torch.zeros_like(r_t)

    run(f, settings, torch.zeros(1, 3, 2, 2, dtype=torch.float64))
    assert told == levels.tolist()
    if sampler in ("dpmsolver++", "unipc"):  # which keep sqrt((1 - alpha_bar) / alpha_bar) of their own
        own = 1 / (1 + Multistep(sampler, levels).solver.sigmas[:-1].double() ** 2)
        assert told == pytest.approx(own.tolist(), rel=1e-5)


@pytest.mark.parametrize(("sampler", "order"), [("ddim", 1), ("dpmsolver++", 2), ("unipc", 3)])
def test_a_solver_converges_at_its_order(sampler, order):
    """Half the step makes the error 2^order times smaller, against the flow's closed form on the Gaussian problem.

    UniPC of order 2 has a corrector, which raises its order by one (Zhao et al. 2023, theorem 3.1).
    """
    problem, least = POSTERIOR, -3.0
    a = 1 / (1 + math.exp(-least))
    eps = torch.randn(SHAPE, generator=noise_generator(0, "0", 0), dtype=torch.float64) * math.sqrt(1 - a)
    gain = math.sqrt(problem.variance / (a * problem.variance + 1 - a))
    exact = problem.mean + gain * (eps - math.sqrt(a) * problem.mean)
    errors = [
        (run(problem, SamplingSettings(sampler, "log_snr", steps, log_snr_max=20.0, log_snr_min=least)) - exact)
        .abs()
        .max()
        .item()
        for steps in (40, 80)
    ]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.05)


@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0])
def test_eta_is_the_share_of_the_posterior_s_deviation(eta):
    """Two steps of `sample` by Song et al. 2021, equations 12 and 16, with its own random numbers."""
    settings = SamplingSettings("ddim", "linear", steps=2, beta_start=0.2, beta_end=0.6, eta=eta)

    found = run(lambda r_t, *_: 0.5 * r_t, settings, torch.zeros(SHAPE, dtype=torch.float64))
    a_1, a_2 = 1 - 0.4, (1 - 0.4) * (1 - 0.6)  # betas 0.4 and 0.6
    generator = noise_generator(0, "0", 0)
    r_2, z = (torch.randn(SHAPE, generator=generator, dtype=torch.float64) for _ in range(2))
    r_2 = r_2 * math.sqrt(1 - a_2)
    sigma = eta * math.sqrt((1 - a_1) / (1 - a_2) * (1 - a_2 / a_1))
    eps = (r_2 - math.sqrt(a_2) * 0.5 * r_2) / math.sqrt(1 - a_2)
    r_1 = math.sqrt(a_1) * 0.5 * r_2 + math.sqrt(1 - a_1 - sigma**2) * eps + sigma * z
    assert (found - 0.5 * r_1).abs().max() < 1e-6


def test_a_ddpm_step_is_that_of_the_paper():
    """Ho et al. 2020, algorithm 2, with variance b_t."""
    T, b_1, b_2 = 200, 1e-4, 0.05
    b = torch.linspace(b_1, b_2, T + 1, dtype=torch.float64)
    ab = torch.cat([torch.ones(1, dtype=torch.float64), (1 - b[1:]).cumprod(0)])
    generator = torch.Generator().manual_seed(0)
    for t in (T, T // 2, 2):
        x, eps = torch.randn(2, 1, 3, 5, 5, generator=generator, dtype=torch.float64)
        r_0 = (x - (1 - ab[t]).sqrt() * eps) / ab[t].sqrt()
        z = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        expected = (x - b[t] / (1 - ab[t]).sqrt() * eps) / (1 - b[t]).sqrt() + b[t].sqrt() * z
        assert (ddpm_step(x, r_0, ab[t].item(), ab[t - 1].item(), lambda shape, z=z: z) - expected).abs().max() < 1e-12


@pytest.mark.parametrize(("estimate", "clipped"), [(9.0, 3.0), (-9.0, -1.0)])
def test_estimates_are_clipped_to_the_range_of_images(estimate, clipped):
    x_init, s = torch.full((1, 3, 4, 4), -0.5), torch.full((1, 1, 4, 4), 0.5)
    r_0 = run(lambda r_t, *_: torch.full_like(r_t, estimate), SamplingSettings(steps=3), x_init, x_init=x_init, s=s)
    assert (r_0 == clipped).all()  # x = x_init + s r_0 is 1 or -1


def test_noise_comes_from_seed_name_and_sample_number():
    def draw(*key):
        return torch.randn(8, generator=noise_generator(*key))

    assert torch.equal(draw(0, "a", 0), draw(0, "a", 0))
    others = [draw(0, "a", 1), draw(0, "b", 0), draw(1, "a", 0)]
    assert all(not torch.equal(draw(0, "a", 0), other) for other in others)
    # As they were when the published results were made.
    assert draw(0, "photo", 0)[:3].tolist() == pytest.approx([0.2627748, -1.7348121, 0.0748765], abs=1e-6)
    assert draw(7, "a/b", 2)[:3].tolist() == pytest.approx([1.0400506, -0.1945968, 0.2516857], abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"sampler": "euler"}, "sampler"),
        ({"schedule": "sqrt"}, "schedule"),
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"num_samples": 0}, "num_samples"),
        ({"eta": 1.5}, "eta"),
        ({"blend": -0.1}, "blend"),
        ({"sampler": "ddpm", "eta": 1.0}, "eta belongs"),
        ({"log_snr_max": 31.0}, "log_snr_max must be between -30 and 30"),
        ({"log_snr_min": float("nan")}, "log_snr_min must be between -30 and 30"),
        ({"start": 0.0}, "start must be"),
        ({"start": float("inf")}, "start must be"),
        ({"schedule": "linear", "steps": 10, "beta_end": 0.02, "start": 5.0}, "start must not be above"),
        ({"schedule": "linear", "steps": 10, "beta_end": 2.0}, "beta_end"),
    ],
)
def test_wrong_settings_are_named(wrong, word):
    with pytest.raises(ValueError, match=word):
        SamplingSettings(**wrong)


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({"start": 0.01, "steps": 5}, "change start"),
        ({"schedule": "log_snr", "log_snr_min": -10.0, "log_snr_max": -6.0}, "change log_snr_min or log_snr_max"),
        ({"schedule": "linear", "steps": 5, "beta_start": 1e-7, "beta_end": 1e-6}, "change beta_start or beta_end"),
    ],
)
def test_levels_that_training_never_saw_are_refused_by_the_setting_that_asks_for_them(numbers, named):
    with pytest.raises(ValueError, match=rf"training, 0.05 to 12: {named}"):
        SamplingSettings(**numbers).levels(TRAINING, 0.05, 12.0)


@pytest.mark.parametrize("steps", [1, 2, 30])
def test_a_start_too_low_for_the_steps_is_named_with_the_least(steps):
    level = TRAINING[-steps]
    lowest = ((1 - level) / level).sqrt().item()
    with pytest.raises(ValueError, match=rf"start is 1e-05, and {steps} steps? of the") as caught:
        SamplingSettings(steps=steps, start=1e-5).levels(TRAINING)
    told = float(str(caught.value).split("need ")[1].split(" or")[0])
    assert lowest <= told < 1.02 * lowest
    assert len(SamplingSettings(steps=steps, start=told).levels(TRAINING)) == steps
    with pytest.raises(ValueError, match="steps must be between 1 and 2000"):
        SamplingSettings(steps=2001, start=1.0).levels(TRAINING)


def test_whole_numbers_of_numpy_are_taken_as_such():
    settings = SamplingSettings(steps=np.int64(2), num_samples=np.int32(3), stages=np.int64(1))
    assert settings == SamplingSettings(steps=2, num_samples=3, stages=1)
    json.dumps(asdict(settings))


@pytest.mark.parametrize("sampler", ["ddpm", "ddim"])
@pytest.mark.parametrize("axes", [1, 3], ids=["rgb", "luma and chroma"])
def test_bands_of_a_large_photo_take_the_steps_of_the_whole(monkeypatch, sampler, axes):
    y, network, s = torch.rand(2, 3, 41, 30), stir(Denoiser(8, (1, 2), 1)), torch.rand(2, axes, 41, 30) + 0.1
    settings = SamplingSettings(sampler, steps=6)
    noise = torch.randn(6, *y.shape, generator=torch.Generator().manual_seed(0))

    def sampled(clip):
        """The noise of a row is the same in any band."""
        rows, levels = [0], settings.levels(TRAINING)

        def randn(shape):
            step, first = divmod(rows[0], 41)
            rows[0] += shape[-2]
            return noise[step, ..., first : first + shape[-2], :]

        return sample(Estimator(network), y, -y, s, levels, step_of(settings, levels), randn, clip=clip)

    at_once = sampled(clip_residual)
    monkeypatch.setattr("deblur.tiling.PIXELS_OF_BAND", 300)  # ten rows
    assert torch.equal(sampled(banded(clip_residual)), at_once)
    assert at_once.std() > 0.1
