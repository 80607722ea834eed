"""Bootstrap intervals against distributions whose mean is known, and a grid on a problem with a closed form."""

import math

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler
from scipy.special import digamma
from torch import nn

from evaluation.metrics import make_metrics
from evaluation.scoring import ImagePair, score_images
from evaluation.statistics import estimates
from models.pipeline import DeblurPipeline
from models.schedules import linear
from models.settings import SamplingSettings
from models.untrained import IdentityPredictor
from tests.evaluation.toy import Toy


def test_the_interval_is_the_bootstrap_s_own_expanded_for_small_samples():
    values = np.random.default_rng(0).normal(3, 2, (200, 1))
    (found,) = estimates(values)
    half = 1.96 * values.std() / math.sqrt(200)
    assert found.mean == pytest.approx(values.mean()) and found.n == 200
    assert found.mean - found.low == pytest.approx(half, rel=0.1)
    assert found.high - found.mean == pytest.approx(half, rel=0.1)
    assert estimates(values)[0] == found, "the same seed"
    assert estimates(values, seed=1)[0] != found


def test_all_columns_share_their_resamples_and_infinity_has_no_interval():
    values = np.random.default_rng(0).normal(size=(20, 1))
    one, two, shifted, broken = estimates(np.hstack([values, values, values + 5, values + np.inf]))
    assert one == two
    assert shifted.low == pytest.approx(one.low + 5) and shifted.high == pytest.approx(one.high + 5)
    assert (broken.mean, broken.low, broken.high) == (math.inf, None, None)
    assert estimates(values[:1])[0].low is None


@pytest.mark.parametrize("n", [5, 12, 60])
def test_intervals_cover_the_mean(n):
    random = np.random.default_rng(n)
    found = estimates(random.exponential(size=(n, 2000)))  # skewed, so below 95 % for few images
    covered = np.mean([one.low <= 1 <= one.high for one in found])
    assert 0.85 < covered < 0.97
    found = estimates(random.normal(size=(n, 2000)))
    covered = np.mean([one.low <= 0 <= one.high for one in found])
    assert (0.90 if n == 5 else 0.93) < covered < 0.975  # five images have few distinct resamples


class GaussianResidual(nn.Module):
    """The exact denoiser where r_0 ~ N(0, 1) a pixel, whatever y: E[r_0 | r_t] = sqrt(alpha_bar) r_t."""

    prediction_type, receptive_field, stride = "sample", 0, 1
    device = torch.device("cpu")

    def forward(self, r_t, blurry, alpha_bar, x_init, s):
        return alpha_bar.view(-1, 1, 1, 1).sqrt() * r_t


TRAINING = linear(1000, 1e-4, 0.02)
SIDE, S = 24, 0.02  # of an image, in pixels; and of its residual, the standard deviation
PIXELS = 3 * SIDE**2
SETTINGS = [
    SamplingSettings(steps=2),
    SamplingSettings(steps=5),
    SamplingSettings(schedule="log_snr", steps=10),
    SamplingSettings("ddpm", steps=5),
    SamplingSettings("ddpm", "cosine", steps=20),
    SamplingSettings(steps=5, blend=0.5),
    SamplingSettings("ddpm", steps=5, num_samples=4, average=True),
]


def sample_variance(setting: SamplingSettings) -> float:
    """Of a pixel of r_0 as the sampler draws it with the exact denoiser, in closed form.

    With alpha_bar = cos(angle)^2, a DDIM step from one angle to the next multiplies r_t by the cosine of their
    difference. A DDPM step has the mean of the exact posterior and the variance beta_t (none at the end).
    """
    betas = setting.betas(TRAINING).numpy()
    levels = np.concatenate([[1.0], np.cumprod(1 - betas)])
    variance = 1.0
    for t in range(len(betas), 0, -1):
        if setting.sampler == "ddim":
            variance *= math.cos(math.acos(math.sqrt(levels[t])) - math.acos(math.sqrt(levels[t - 1]))) ** 2
        else:
            own = math.sqrt(levels[t - 1]) * betas[t - 1] / (1 - levels[t])
            kept = math.sqrt(1 - betas[t - 1]) * (1 - levels[t - 1]) / (1 - levels[t])
            variance *= (own * math.sqrt(levels[t]) + kept) ** 2
            variance += betas[t - 1] if t > 1 else 0.0
    return variance


def expected_psnr(setting: SamplingSettings) -> float:
    """Mean PSNR over images.

    The squared error of a pixel is S^2 (1 + blend^2 V / K) (K samples averaged, V from `sample_variance`), with 8-bit
    rounding on both sides 1/6 of a level squared more. The logarithm of its mean over P pixels has the expectation
    log E + digamma(P/2) - log(P/2).
    """
    K = setting.num_samples if setting.average else 1
    error = S**2 * (1 + setting.blend**2 * sample_variance(setting) / K) + 1 / 6 / 255**2
    return -10 * math.log10(error) - 10 / math.log(10) * (digamma(PIXELS / 2) - math.log(PIXELS / 2))


class Gaussian(Toy):
    """y is grey, x = y + S r_0, and the predictor's y is the posterior mean."""

    def __init__(self, count: int):
        scheduler = DDPMScheduler(num_train_timesteps=len(TRAINING), trained_betas=TRAINING.tolist())
        pipeline = DeblurPipeline(IdentityPredictor(), GaussianResidual(), scheduler, 2 * S)
        self.batch_size, self.predict, self.refine_shared = 1, pipeline.predict, pipeline.refine_shared
        self.images = [ImagePair(str(n), (SIDE, SIDE), lambda n=n: self.read(n)) for n in range(count)]

    def read(self, n):
        blurry = torch.full((3, SIDE, SIDE), 0.5)
        drawn = torch.from_numpy(np.random.default_rng([0, n]).normal(size=blurry.shape)).float()
        return blurry, blurry + S * drawn


def test_the_grid_reproduces_a_problem_with_a_closed_form(tmp_path):
    plan = Gaussian(12).plan(tmp_path, SETTINGS, make_metrics(["psnr"]))
    score_images(plan)
    scores = plan.journal.scores()
    table = np.array([[scores[row.key, image.name].metrics["psnr"] for row in plan.settings] for image in plan.images])
    for setting, one in zip(SETTINGS, estimates(table), strict=True):
        assert one.high - one.low < 0.3, "images that are all alike"
        assert one.low - 0.05 < expected_psnr(setting) < one.high + 0.05, setting
    assert len({round(expected_psnr(setting), 1) for setting in SETTINGS}) >= 5, "the settings differ"
