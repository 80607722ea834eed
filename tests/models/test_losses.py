"""Each objective against its closed form."""

import math

import pytest
import torch

from deblur.models.diffusion import PREDICTION_TYPES, sample_alpha_bar
from deblur.models.losses import Crops, Objective, axis_weights, sample_log_normal
from deblur.models.schedules import cosine, linear

SCHEDULE = (1 - linear(2000)).cumprod(0)
LEVELS = torch.tensor([0.999, 0.9, 0.5, 0.1, 0.001])  # SNR 999, 9, 1, 0.111, 0.001


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def uniform(count):
    return torch.rand(count, generator=seeded(), dtype=torch.float64)


def log_snr(alpha_bar):
    return alpha_bar.double().logit()


class TestDraws:
    def test_log_normal_has_edm_s_moments(self):
        log_sigma = -log_snr(sample_log_normal(-1.2, 1.2, None, uniform(40_000))) / 2
        assert log_sigma.mean().item() == pytest.approx(-1.2, abs=0.02)
        assert log_sigma.std().item() == pytest.approx(1.2, rel=0.02)
        for deviations in (-1, 0, 1):
            below = (log_sigma < -1.2 + 1.2 * deviations).double().mean().item()
            assert below == pytest.approx(0.5 * (1 + math.erf(deviations / 2**0.5)), abs=0.01)

    def test_bounds_cut_the_normal_off(self):
        log_sigma = -log_snr(sample_log_normal(0.3, 1.1, (0.5, 2.0), uniform(40_000))) / 2
        assert log_sigma.min() >= math.log(0.5) - 1e-3
        assert log_sigma.max() <= math.log(2) + 1e-3
        whole = -log_snr(sample_log_normal(0.3, 1.1, None, uniform(400_000))) / 2
        inside = whole[(whole > math.log(0.5)) & (whole < math.log(2))]
        assert log_sigma.mean().item() == pytest.approx(inside.mean().item(), abs=0.01)
        assert log_sigma.std().item() == pytest.approx(inside.std().item(), rel=0.02)

    def test_the_config_s_word_chooses_the_draw(self):
        assert torch.equal(Objective().draw(SCHEDULE, uniform(5)), sample_alpha_bar(SCHEDULE, uniform(5)))
        other = Objective(levels="log_normal", log_normal=(0.5, 0.1)).draw(SCHEDULE, uniform(2000))
        assert (-log_snr(other) / 2).mean().item() == pytest.approx(0.5, abs=0.02)
        bounded = Objective(levels="log_normal", sigma_range=(0.5, 2.0)).draw(SCHEDULE, uniform(2000))
        sigma = ((1 - bounded) / bounded).sqrt()
        assert sigma.min() >= 0.4999
        assert sigma.max() <= 2.0001
        assert sigma.min() < 0.51
        assert sigma.max() > 1.9
        assert Objective(levels="log_normal", sigma_range=(0.5, 2.0)).bounds == (0.5, 2.0)
        assert Objective(levels="alpha_bar", sigma_range=(0.5, 2.0)).bounds == (None, None)
        assert Objective(levels="log_normal").bounds == (None, None)
        for levels in ("alpha_bar", "log_normal"):
            draw = Objective(levels=levels).draw((1 - cosine(100)).cumprod(0), uniform(1000))
            assert draw.dtype == torch.float32
            assert draw.shape == (1000,)
            assert (draw > 0).all()
            assert (draw <= 1).all()


@pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
def test_l1_and_l2_of_each_parameterisation(prediction_type):
    r_0, eps, output = (torch.randn(5, 3, 4, 4, generator=seeded(i)) for i in range(3))
    a = LEVELS.view(-1, 1, 1, 1)
    wanted = {"epsilon": eps, "sample": r_0, "v_prediction": a.sqrt() * eps - (1 - a).sqrt() * r_0}[prediction_type]

    def denoiser(r_t, blurry, alpha_bar, x_init, s):
        assert torch.allclose(r_t, a.sqrt() * r_0 + (1 - a).sqrt() * eps)
        assert torch.equal(alpha_bar, LEVELS)
        return output

    denoiser.prediction_type = prediction_type
    image = torch.zeros_like(r_0)
    crops = Crops(image, image, image, image[:, :1] + 1, r_0)
    for loss, power in (("l1", 1), ("l2", 2)):
        losses, perceptual = Objective(loss=loss).losses(denoiser, crops, LEVELS, eps)
        assert perceptual is None
        assert torch.allclose(losses, (output - wanted).abs().pow(power).mean((1, 2, 3)))


def test_an_axis_counts_by_its_scale_and_one_without_a_residual_in_full():
    sizes = torch.rand(5, 1, 4, 4, generator=seeded(3)) + 0.1
    for scales, weights in (([4.0, 1.0, 2.0], [1.0, 0.25, 0.5]), ([3.0, 0.0, 0.0], [1.0, 1.0, 1.0])):
        s = torch.tensor(scales).view(1, 3, 1, 1) * sizes
        assert torch.allclose(axis_weights(s), torch.tensor(weights).view(1, 3, 1, 1))
        r_0, eps = (torch.randn(5, 3, 4, 4, generator=seeded(i)) for i in range(2))
        denoiser = lambda r_t, *_: torch.zeros_like(r_t)  # noqa: E731
        denoiser.prediction_type = "sample"
        losses, _ = Objective(loss="l2").losses(denoiser, Crops(r_0, r_0, r_0, s, r_0), LEVELS, eps)
        wanted = sum(weight * r_0[:, k].square().mean((1, 2)) for k, weight in enumerate(weights)) / 3
        assert torch.allclose(losses, wanted)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sigma_range": (2.0, 0.5)}, "sigma_range must be two numbers, 0 < least < largest"),
        ({"log_normal": (-1.2, 0.0)}, "must be above 0"),
        ({"noises": 0}, "noises must be at least 1"),
    ],
)
def test_impossible_numbers_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Objective(levels="log_normal", **wrong)
