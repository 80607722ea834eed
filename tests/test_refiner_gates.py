"""The gates of denoisers whose errors are known."""

import pytest
import torch
from diffusers import DDPMScheduler
from torch import nn

from benchmarks.refiner_gates import refiner_gates
from models.diffusion import residual
from models.heads import IdentityPredictor
from models.pipeline import DeblurPipeline
from models.settings import SamplingSettings

SIDE, SIGMAS = 48, (0.5, 4.0)


class Oracle(nn.Module):
    """Puts out `share` of the true r_0, and noise of a size in the left half, where the residual is flat."""

    prediction_type, receptive_field, stride, device = "sample", 0, 1, torch.device("cpu")

    def __init__(self, r_0, share=1.0, grain=0.0):
        super().__init__()
        self.r_0, self.share, self.grain = r_0, share, grain

    def forward(self, r_t, blurry, alpha_bar, x_init, s):
        noise = torch.randn(r_t.shape, generator=torch.Generator().manual_seed(3))
        noise[..., SIDE // 2 :] = 0
        return self.share * self.r_0 + self.grain * noise


@pytest.fixture
def pair():
    """blurry, sharp, and their difference in [-1, 1]: tiny in the left half, large in the right."""
    generator = torch.Generator().manual_seed(0)
    blurry = 0.3 + 0.4 * torch.rand(3, SIDE, SIDE, generator=generator)
    missed = 0.02 * torch.randn(3, SIDE, SIDE, generator=generator)
    missed[..., : SIDE // 2] *= 0.05
    return blurry, blurry + missed, 2 * missed


def gates(pair, share, grain=0.0, blend=1.0, scale=0.04):
    blurry, sharp, missed = pair
    scheduler = DDPMScheduler(num_train_timesteps=10, trained_betas=[0.5] * 10)
    s = torch.tensor(scale).view(1, -1, 1, 1) * torch.ones(1, 1, SIDE, SIDE)
    denoiser = Oracle(residual(missed[None], 0.0, s), share, grain)
    pipeline = DeblurPipeline(IdentityPredictor(), denoiser, scheduler, scale)
    settings = SamplingSettings(steps=2, blend=blend)
    return refiner_gates(pipeline, [("one", blurry, sharp)], SIGMAS, settings)


@pytest.mark.parametrize("scale", [0.04, [0.06, 0.0, 0.0]], ids=["rgb", "luma"])
def test_a_perfect_denoiser_has_no_error_and_all_the_power(pair, scale):
    found = gates(pair, share=1.0, scale=scale)
    for sigma in SIGMAS:
        assert found[f"flat_error/{sigma:g}"] == pytest.approx(0, abs=1e-4)
        assert found[f"edge_error/{sigma:g}"] == pytest.approx(0, abs=1e-6)
        assert found[f"edge_slope/{sigma:g}"] == pytest.approx(1, abs=1e-4)
    assert found["edge_power"] == pytest.approx(1, abs=1e-2)


def test_a_shrunken_estimate_shows_in_slope_error_and_power(pair):
    found = gates(pair, share=0.5)
    assert found["edge_slope/4"] == pytest.approx(2, rel=1e-4)
    assert found["edge_error/4"] == pytest.approx(0.25, rel=1e-4)
    assert found["edge_power"] == pytest.approx(0.25, rel=1e-2)


def test_noise_in_flat_regions_shows_there_alone(pair):
    # The true residual is of size .05 there, in units of s; noise of .1 has four times its power.
    found = gates(pair, share=0.0, grain=0.1)
    assert found["flat_error/4"] == pytest.approx(5, rel=0.1)
    assert found["edge_error/4"] == pytest.approx(1, rel=1e-2)
    assert found["flat_power"] == pytest.approx(4, rel=0.1)


def test_without_refinement_there_is_no_power(pair):
    assert "edge_power" not in gates(pair, share=1.0, blend=0.0)
