"""The method on a page, docs/method.py, against the program that runs."""

from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from deblur.data.files import images
from deblur.evaluation import pixels
from deblur.models.diffusion import Estimator, add_noise, residual
from deblur.models.losses import Objective
from deblur.models.networks.mixins import randn_tensor
from deblur.models.networks.unet import Denoiser, UNetPredictor
from deblur.pipeline import DeblurPipeline, load_pipeline, noise_generator
from deblur.settings import SamplingSettings
from tests.tiny import stir, tiny_pipeline

ROOT = Path(__file__).parents[2]
SPEC = spec_from_file_location("method", ROOT / "docs" / "method.py")
method = module_from_spec(SPEC)
SPEC.loader.exec_module(method)


@pytest.fixture(scope="module")
def pair():
    """A blurry and a sharp crop of a photograph, (1, 3, H, W) in [0, 1]."""
    folder = ROOT / "tests" / "assets" / "pairs"
    return [images.read(folder / side / "gopro_test_01.png")[None, :, 100:148, 80:160] for side in ("blur", "sharp")]


def pipelines():
    yield load_pipeline("lite", precision="fp32")
    own = tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True))
    yield DeblurPipeline(own.predictor, own.denoiser, own.scheduler, 1.5, scale_kind="learned")


@pytest.mark.parametrize(("sampler", "eta"), [("ddim", 1.0), ("ddim", 0.5), ("ddpm", 0.0)])
@pytest.mark.parametrize("steps", [1, 4, 10])
def test_the_page_restores_as_the_pipeline_does(pair, sampler, eta, steps):
    step = method.ddpm_step if sampler == "ddpm" else partial(method.ddim_step, eta=eta)
    settings = SamplingSettings(
        sampler, "log_snr", steps, log_snr_max=3.8, log_snr_min=-4.6, eta=eta, blend=0.5, keep_sharp=0.0
    )
    for pipeline in pipelines():
        is_sample = pipeline.denoiser.prediction_type == "sample"
        f = pipeline.denoiser if is_sample else method.denoiser(pipeline.denoiser)
        wanted = pipeline(pair[0], settings, seed=3, names=["p"], output_type="pt").images
        randn = partial(randn_tensor, generator=[noise_generator(3, "p", 0)])
        levels, c = method.log_snr(steps, 3.8, -4.6), pipeline.config.residual_scale
        with torch.no_grad():
            found = method.restore(pipeline.predictor, f, 2 * pair[0] - 1, c, levels, step, randn, settings.blend)
        assert (found.add(1).div(2).clamp(0, 1) - wanted).abs().max() < 1e-6
        assert (wanted - pair[0]).abs().max() > 0.01, "nothing was restored"


def test_the_page_has_the_loss_of_training_and_its_gradient(pair):
    y, x = (torch.cat([2 * image[..., :32] - 1, 1 - 2 * image[..., 32:64]]) for image in pair)
    network = stir(Denoiser(8, (1, 2), 1)).requires_grad_(True)
    x_init, s = 0.9 * y, torch.full_like(y[:, :1], 0.1)
    levels = SamplingSettings("ddpm", "linear", 1000, beta_start=1e-6, beta_end=1e-2).levels(torch.zeros(1))
    generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
    a, eps = Objective(loss="l2").draw(levels, generators, x.shape)
    gradients = []
    f, r_0 = Estimator(network), residual(x, x_init, s)
    error = f(add_noise(r_0, eps, a), y, a, x_init, s) - r_0
    wanted = Objective(loss="l2").losses(error, f.weight(a), s)
    found = method.loss(method.denoiser(network), x, y, x_init, s, a, eps)
    for losses in (wanted, found):
        gradients.append(torch.autograd.grad(losses.mean(), network.unet.head.weight)[0])
    torch.testing.assert_close(found, wanted, atol=0, rtol=1e-6)
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


def test_the_page_has_the_psnr_of_evaluation(pair):
    found = method.psnr(*(2 * image - 1 for image in pair))
    torch.testing.assert_close(found, pixels.psnr(*pair).to(found), atol=1e-6, rtol=0)
