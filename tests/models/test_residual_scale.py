"""The residual's scale as a number and as a map: closed forms, oracles, tiles, checkpoints."""

import json
import math

import pytest
import torch
from torch import nn

from deblur.draft import Prediction
from deblur.models.diffusion import LARGEST_SIZE, SMALLEST_SIZE, add_residual, clip_residual, residual, residual_size
from deblur.models.losses import Residual, laplace_loss
from deblur.models.networks.base import IdentityPredictor
from deblur.models.networks.nafnet import SlimDenoiser
from deblur.models.networks.unet import Denoiser, UNetPredictor
from deblur.pipeline import DeblurPipeline, Limits, load_pipeline
from deblur.settings import SamplingSettings
from deblur.training.module import PredictAndRefine
from tests.tiny import tiny_pipeline


def with_kind(kind, predictor=None, residual_scale=1.5):
    """A pipeline with stirred weights whose residual's scale is of that kind."""
    predictor = predictor or UNetPredictor(8, (1, 2), 1, size_head=kind == "learned")
    own = tiny_pipeline(predictor)
    return DeblurPipeline(own.predictor, own.denoiser, own.scheduler, residual_scale, scale_kind=kind)


def test_global_is_one_everywhere():
    size = residual_size("global", torch.rand(2, 3, 7, 9), torch.rand(2, 3, 7, 9))
    assert size.shape == (2, 1, 7, 9)
    assert (size == 1).all()


def test_local_is_the_mean_change_over_nine_by_nine_pixels():
    blurry = torch.zeros(1, 3, 30, 30)
    x_init = blurry.clone()
    x_init[0, 1, 15, 15] = 0.81  # a third of it in the mean over the channels, an 81st of that in the box
    size = residual_size("local", blurry, x_init)
    inside = torch.zeros(30, 30, dtype=torch.bool)
    inside[11:20, 11:20] = True
    assert torch.allclose(size[0, 0][inside], torch.tensor(0.81 / 3 / 81 + SMALLEST_SIZE), rtol=1e-4)
    assert torch.allclose(size[0, 0][~inside], torch.tensor(SMALLEST_SIZE), rtol=1e-4)


def test_at_the_border_the_mean_is_over_the_pixels_there_are():
    blurry = torch.zeros(1, 3, 20, 20)
    assert torch.allclose(residual_size("local", blurry, blurry + 0.1), torch.tensor(0.1 + SMALLEST_SIZE))


def test_learned_is_the_predictor_s_estimate_within_its_bounds():
    image, log_size = torch.zeros(1, 3, 20, 30), torch.full((1, 1, 20, 30), math.log(0.03))
    log_size[..., :8] = -20.0
    log_size[..., 22:] = 4.0  # such an estimate drew bright speckles
    size = residual_size("learned", image, image, log_size)
    for columns, expected in ((slice(10, 20), 0.03), (slice(6), SMALLEST_SIZE), (slice(24, None), LARGEST_SIZE)):
        assert torch.allclose(size[..., columns], torch.tensor(expected))
    assert Prediction(image, log_size).expected_error.max() == LARGEST_SIZE / 2  # of the range [0, 1]


def test_three_scales_are_of_luma_and_chroma():
    s = torch.tensor([2.0, 0.5, 0.25]).view(1, 3, 1, 1).expand(2, 3, 6, 7) * (0.1 + torch.rand(2, 1, 6, 7))
    grey = torch.rand(2, 1, 6, 7).expand(2, 3, 6, 7)
    r_0 = residual(grey, 0.0, s)
    assert torch.allclose(r_0[:, 0], 3**0.5 * grey[:, 0] / s[:, 0])
    assert r_0[:, 1:].abs().max() < 1e-5
    sharp, x_init = torch.rand(2, 3, 6, 7), torch.rand(2, 3, 6, 7)
    r_0 = residual(sharp, x_init, s)
    assert torch.allclose(add_residual(x_init, r_0, s), sharp, atol=1e-6)
    # Orthonormal: noise of the scales' variance along the axes has the same energy in the image.
    energy = (r_0 * s).square().sum(1)
    assert torch.allclose(energy, (sharp - x_init).square().sum(1), rtol=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
def test_clipping_keeps_the_image_in_its_range_and_what_is_inside(channels):
    x_init, s = 2 * torch.rand(2, 3, 6, 7) - 1, torch.full((2, channels, 6, 7), 0.4)
    r_0 = 3 * torch.randn(2, 3, 6, 7)
    wanted = add_residual(x_init, r_0, s).clamp(-1, 1)
    assert torch.allclose(add_residual(x_init, clip_residual(r_0, x_init, s), s), wanted, atol=1e-6)


def test_a_scale_of_zero_keeps_what_the_prediction_has_along_its_axis():
    s = torch.tensor([0.5, 0.0, 0.0]).view(1, 3, 1, 1).expand(2, 3, 6, 7)
    x_init, sharp, r_0 = torch.rand(2, 3, 6, 7, requires_grad=True), torch.rand(2, 3, 6, 7), torch.randn(2, 3, 6, 7)
    found = residual(sharp, x_init, s)
    assert torch.allclose(found[:, :1], (sharp - x_init).sum(1, keepdim=True) / 3**0.5 / 0.5, atol=1e-5)
    assert (found[:, 1:] == 0).all()
    found.square().sum().backward()
    assert x_init.grad.isfinite().all()
    sample = add_residual(x_init, r_0, s) - x_init
    assert torch.allclose(sample, 0.5 * r_0[:, :1].expand(-1, 3, -1, -1) / 3**0.5, atol=1e-6)
    assert (clip_residual(9 * r_0, x_init, s)[:, 1:] == 0).all()


def test_three_scales_are_measured_stored_and_used(tmp_path):
    predictor = UNetPredictor(8, (1, 2), 1, size_head=True)
    module = PredictAndRefine(
        predictor, SlimDenoiser((8, 16), (1, 1)), residual=Residual(scale_kind="learned", colours="luma")
    )
    module.residual_square[0] = 4.0
    pipeline = module.pipeline()
    assert pipeline.config.residual_scale == [2.0, 0.0, 0.0]
    pipeline.save_pretrained(tmp_path / "made")
    loaded, image = load_pipeline(str(tmp_path / "made")), torch.rand(1, 3, 20, 22)
    prediction = pipeline.predict(image)
    size = residual_size("learned", image, prediction.x_init, prediction.log_size)
    assert torch.allclose(loaded.scale(prediction, image), size * torch.tensor([2.0, 0.0, 0.0]).view(3, 1, 1))
    settings = SamplingSettings(steps=2)
    restored = [one(image, settings, output_type="pt").images for one in (loaded, pipeline)]
    assert torch.equal(*restored)
    for colours in ("luma", "luma_chroma"):
        with pytest.raises(ValueError, match=f"must be null with residual.colours {colours}: it is measured"):
            Residual(colours=colours, scale=1.0)


def test_laplace_loss_is_least_at_the_mean_absolute_error():
    error = 0.05 * torch.randn(1, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    log_size = torch.zeros(1, 1, 1, 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_size], max_iter=50)

    def closure():
        optimizer.zero_grad()
        loss = laplace_loss(log_size.expand(1, 1, 40, 40), error)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert log_size.exp().item() == pytest.approx(error.abs().mean().item(), rel=1e-3)


def test_the_size_loss_trains_the_size_head_alone():
    predictor = UNetPredictor(8, (1, 2), 1, size_head=True)
    x_init, log_size = predictor(torch.rand(1, 3, 16, 16))
    laplace_loss(log_size, torch.rand(1, 3, 16, 16) - x_init).backward()
    trained = {name for name, p in predictor.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained == {"unet.log_size.conv.weight", "unet.log_size.conv.bias"}


@pytest.mark.parametrize("kind", ["global", "local", "learned"])
def test_an_oracle_restores_the_sharp_image_through_every_kind(kind):
    blurry, sharp = torch.rand(2, 2, 3, 21, 30, generator=torch.Generator().manual_seed(3))
    blurry = (blurry + 1) / 3  # so that a random network's prediction stays an image
    pipeline = with_kind(kind)
    prediction = pipeline.predict(blurry)
    s = pipeline.scale(prediction, blurry)

    class Oracle(nn.Module):
        prediction_type, receptive_field, stride, device = "sample", 0, 1, torch.device("cpu")

        def forward(self, r_t, blurry, alpha_bar, x_init, _):
            return (sharp * 2 - 1 - x_init) / s

    pipeline.denoiser = Oracle()
    restored = pipeline(blurry, SamplingSettings(steps=3), output_type="pt").images
    assert torch.allclose(restored, sharp, atol=1e-5)


@pytest.mark.parametrize("kind", ["local", "learned"])
def test_tiles_give_the_same_image_with_a_map(kind):
    pipeline, blurry = with_kind(kind), torch.rand(1, 3, 170, 150, generator=torch.Generator().manual_seed(0))
    settings = SamplingSettings(steps=3, eta=1.0)
    whole = pipeline(blurry, settings, output_type="pt", limits=Limits(1024, 1024))
    tiled = pipeline(blurry, settings, output_type="pt", limits=Limits(64, 64))
    assert (whole.images - tiled.images).abs().max() < 0.1 / 255
    if kind == "learned":
        with torch.no_grad():
            _, log_size = pipeline.predictor(blurry * 2 - 1)  # of [-1, 1], twice as wide as [0, 1]
        assert torch.allclose(whole.expected_error, log_size.exp() / 2, atol=1e-6)
        assert (whole.expected_error - tiled.expected_error).abs().max() < 1e-5


def test_the_kind_is_kept_and_old_checkpoints_are_global(tmp_path):
    pipeline, blurry = with_kind("local"), torch.rand(1, 3, 20, 24)
    pipeline.save_pretrained(tmp_path / "new")
    again = load_pipeline(str(tmp_path / "new"), precision="fp32")
    assert again.config.scale_kind == "local"
    assert again.config.residual_scale == 1.5
    settings = SamplingSettings(steps=2)
    images = [p(blurry, settings, output_type="pt").images for p in (pipeline, again)]
    assert torch.allclose(*images, atol=1e-5)
    index = json.loads((tmp_path / "new" / "model_index.json").read_text())
    del index["scale_kind"]
    (tmp_path / "new" / "model_index.json").write_text(json.dumps(index))
    assert load_pipeline(str(tmp_path / "new")).config.scale_kind == "global"


def test_a_learned_scale_needs_a_size_head():
    with pytest.raises(ValueError, match="needs a predictor with size_head"):
        PredictAndRefine(IdentityPredictor(), Denoiser(4, (1, 2), 1), residual=Residual(scale_kind="learned"))
