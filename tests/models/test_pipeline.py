import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from diffusers import DDPMScheduler
from torch import nn

from models.checkpoints import from_folder
from models.pipeline import DeblurPipeline
from models.settings import SamplingSettings, sharing_samples
from models.unet import UNetPredictor
from models.untrained import IdentityPredictor, ZeroPredictor
from tests.tiny import tiny_pipeline

ROOT = Path(__file__).parents[2]


@pytest.fixture
def blurry():
    return torch.rand(2, 3, 21, 30, generator=torch.Generator().manual_seed(3))


def test_a_saved_pipeline_gives_the_same_image_to_the_bit(tmp_path, blurry):
    pipeline = tiny_pipeline()
    pipeline.save_pretrained(tmp_path)
    again = from_folder(tmp_path)
    settings = SamplingSettings("ddpm", steps=4)
    first = pipeline(blurry, settings, seed=5, output_type="pt").images
    assert torch.equal(first, again(blurry, settings, seed=5, output_type="pt").images)
    assert again.config.residual_scale == 0.1 and again.denoiser.prediction_type == "v_prediction"
    assert not torch.equal(first, again(blurry, settings, seed=6, output_type="pt").images)


@pytest.mark.slow
def test_restoring_loads_nothing_slow_and_the_compiler_loads_afterwards():
    code = "import sys, torch; from models.checkpoints import load_pipeline;"
    code += "load_pipeline('pretrained/lite')(torch.rand(3, 64, 64));"
    code += "found = {'torch._dynamo', 'torchvision', 'scipy', 'kornia'} & set(sys.modules);"
    code += "import torch._dynamo; print(found, torch._dynamo.allow_in_graph.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == ["set()", "allow_in_graph"]


def test_a_saved_pipeline_has_the_mode_of_other_files(tmp_path):
    umask = os.umask(0o027)
    try:
        tiny_pipeline().save_pretrained(tmp_path)
    finally:
        os.umask(umask)
    files = [file for file in tmp_path.rglob("*.*") if file.is_file()]
    assert {file.suffix for file in files} == {".json", ".safetensors"}
    assert {file.stat().st_mode & 0o777 for file in files} == {0o640}


def test_without_a_compiler_a_sentence_says_so(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match="needs a C"):
        tiny_pipeline().compile_networks()


@pytest.mark.parametrize("sampler", ["ddpm", "ddim", "dpmsolver++", "unipc"])
def test_noise_is_an_image_s_own_whatever_the_batch_or_order(blurry, sampler):
    # Layers of zeros, so that nothing but the noise can differ between batches.
    pipeline = tiny_pipeline(stirred=False)
    settings = SamplingSettings(sampler, steps=3, num_samples=2)

    def run(images, names):
        images = pipeline(images, settings, names=names, output_type="pt").images
        return dict(zip(names, images.unflatten(0, (len(names), 2)), strict=True))

    both = run(blurry, ["a", "b"])
    turned = run(blurry.flip(0), ["b", "a"])
    alone = run(blurry[1:], ["b"])
    assert torch.equal(both["a"], turned["a"]) and torch.equal(both["b"], turned["b"])
    assert torch.equal(both["b"], alone["b"])
    assert not torch.equal(both["b"], run(blurry[1:], ["c"])["c"])
    assert not torch.equal(both["b"][0], both["b"][1])


def test_more_samples_do_not_change_the_first_ones(blurry):
    pipeline = tiny_pipeline()
    two = pipeline(blurry[:1], SamplingSettings(steps=2, num_samples=2), output_type="pt").images
    three = pipeline(blurry[:1], SamplingSettings(steps=2, num_samples=3), output_type="pt").images
    assert torch.equal(two, three[:2])


def test_one_call_is_predict_then_refine(blurry):
    pipeline, settings = tiny_pipeline(), SamplingSettings(steps=2)
    [parts] = pipeline.refine_shared(blurry, pipeline.predict(blurry), [settings])
    assert torch.allclose(pipeline(blurry, settings, output_type="pt").images, parts.images, atol=1e-6)


def test_an_oracle_pipeline_restores_the_sharp_image(blurry):
    # The denoiser knows the residual sharp - x_init; only the right sign, scale and range restore the image.
    sharp = torch.rand(blurry.shape, generator=torch.Generator().manual_seed(4))
    pipeline = tiny_pipeline(IdentityPredictor(), residual_scale=0.3)

    class Oracle(nn.Module):
        prediction_type, receptive_field, stride = "sample", 0, 1
        device = torch.device("cpu")

        def forward(self, r_t, blurry, alpha_bar, x_init, s):
            return ((sharp * 2 - 1) - x_init) / 0.3

    pipeline.denoiser = Oracle()
    output = pipeline(blurry, SamplingSettings(steps=3), output_type="pt")
    assert torch.allclose(output.images, sharp, atol=1e-6)
    assert torch.allclose(output.predictions, blurry, atol=1e-6)


def test_mean_std_and_blend(blurry):
    pipeline = tiny_pipeline()
    samples = pipeline(blurry, SamplingSettings(steps=2, num_samples=3), output_type="pt")
    stack = samples.images.unflatten(0, (2, 3))
    mean = pipeline(blurry, SamplingSettings(steps=2, num_samples=3, average=True), output_type="pt")
    assert torch.allclose(mean.images, stack.mean(1), atol=1e-6)
    assert torch.allclose(samples.std, stack.std(1), atol=1e-6)
    prediction = pipeline(blurry, SamplingSettings(blend=0.0), output_type="pt")
    assert torch.equal(prediction.images, prediction.predictions) and prediction.std is None
    one, half = (pipeline(blurry, SamplingSettings(steps=2, blend=b), output_type="pt").images for b in (1.0, 0.5))
    inside = [(x > 0) & (x < 1) for x in (one, half, prediction.predictions)]  # where nothing was clipped
    inside = inside[0] & inside[1] & inside[2]
    between = (one + prediction.predictions) / 2
    assert torch.allclose(half[inside], between[inside], atol=1e-5) and inside.any()


def test_every_estimate_stays_in_the_image_s_range(blurry):
    pipeline = tiny_pipeline(IdentityPredictor())

    class FarTooBright(nn.Module):
        prediction_type, receptive_field, stride = "sample", 0, 1
        device = torch.device("cpu")

        def forward(self, r_t, blurry, alpha_bar, x_init, s):
            return torch.full_like(r_t, 1000.0)

    pipeline.denoiser = FarTooBright()
    half = pipeline(blurry, SamplingSettings(steps=2, blend=0.5), output_type="pt").images
    assert torch.allclose(half, (blurry + 1) / 2, atol=1e-5)  # halfway to white, the brightest a pixel can be


def test_the_zero_predictor_makes_it_a_one_network_conditional_ddpm(blurry):
    pipeline = tiny_pipeline(ZeroPredictor(), residual_scale=0.5)
    output = pipeline(blurry, SamplingSettings(steps=2), output_type="pt")
    assert (output.predictions == 0.5).all() and output.images.std() > 0.01


def test_images_in_and_out(blurry):
    pipeline, settings = tiny_pipeline(), SamplingSettings(steps=2)
    array = (blurry[0] * 255).round().byte().permute(1, 2, 0).numpy()
    image = PIL.Image.fromarray(array)
    restored = pipeline(image, settings).images
    assert len(restored) == 1 and restored[0].size == (30, 21)
    tensor = pipeline(torch.from_numpy(array).permute(2, 0, 1) / 255, settings, output_type="pt").images
    assert np.array_equal(np.asarray(restored[0]), (tensor[0] * 255).round().byte().permute(1, 2, 0).numpy())
    with pytest.raises(ValueError, match="one size"):
        pipeline([image, image.resize((5, 5))])
    with pytest.raises(ValueError, match="output_type"):
        pipeline(image, output_type="jpg")
    with pytest.raises(ValueError, match=r"\(3, H, W\)"):
        pipeline(torch.zeros(1, 4, 4))


def test_a_predictor_alone_is_saved_loaded_and_only_predicts(tmp_path, blurry):
    scheduler = DDPMScheduler(num_train_timesteps=1, trained_betas=[0.5])
    DeblurPipeline(UNetPredictor(8, (1, 2), 1), None, scheduler).save_pretrained(tmp_path)
    alone = from_folder(tmp_path)
    images = alone(blurry, SamplingSettings(blend=0.0), output_type="pt").images
    assert torch.allclose(images, blurry, atol=1e-6)
    with pytest.raises(ValueError, match="no denoiser"):
        alone(blurry)


EVERY_KIND = [
    SamplingSettings("ddpm", "cosine", 7),
    SamplingSettings(steps=2, num_samples=3, average=True),
    SamplingSettings(steps=2, num_samples=2),
    SamplingSettings(steps=2, blend=0.5),
    SamplingSettings("dpmsolver++", "log_snr", 5),
    SamplingSettings("unipc", steps=4),
    SamplingSettings(eta=1.0, steps=3),
    SamplingSettings(blend=0.0, num_samples=2),
]


def test_settings_that_share_samples_are_one_group():
    groups = sharing_samples(EVERY_KIND)
    assert [len(group) for group in groups] == [1, 3, 1, 1, 1, 1]
    assert groups[1] == EVERY_KIND[1:4] and groups[-1] == EVERY_KIND[-1:]


def test_settings_that_share_samples_give_what_each_gives_alone(blurry):
    pipeline = tiny_pipeline()
    x_init = pipeline.predict(blurry)
    steps = []

    def count(levels):
        for level in levels:
            steps.append(level)
            yield level

    for group, expected in zip(sharing_samples(EVERY_KIND), (7, 3 * 2, 5, 4, 3, 0), strict=True):
        steps.clear()
        together = pipeline.refine_shared(blurry, x_init, group, 5, ["a", "b"], count)
        assert len(steps) == expected, "no sample is drawn twice"
        for setting, found in zip(group, together, strict=True):
            [alone] = pipeline.refine_shared(blurry, x_init, [setting], 5, ["a", "b"])
            assert torch.equal(found.images, alone.images), setting
            assert (found.std is None) == (setting.num_samples == 1)
            assert found.std is None or torch.equal(found.std, alone.std)


def test_blends_of_a_shared_sample_do_not_touch_each_other(blurry):
    pipeline = tiny_pipeline()
    blurry = 0.4 + 0.2 * blurry  # nothing is clipped
    x_init = pipeline.predict(blurry)
    settings = [SamplingSettings(steps=2, blend=blend) for blend in (0.25, 0.5, 1.0)]
    quarter, half, full = (output.images - x_init.images for output in pipeline.refine_shared(blurry, x_init, settings))
    assert full.abs().mean() > 0.01
    assert torch.allclose(quarter, full / 4, atol=1e-6) and torch.allclose(half, full / 2, atol=1e-6)


def test_no_denoiser_is_said_by_refine_shared_too(blurry):
    pipeline = tiny_pipeline()
    pipeline.denoiser = None
    prediction = pipeline.predict(blurry)
    [output] = pipeline.refine_shared(blurry, prediction, [SamplingSettings(blend=0.0)])
    assert torch.equal(output.images, prediction.images)
    with pytest.raises(ValueError, match="a predictor and no denoiser"):
        pipeline.refine_shared(blurry, prediction, [SamplingSettings()])
