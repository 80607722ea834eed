import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from diffusers import DDPMScheduler

from models.checkpoints import read_pipeline
from models.heads import ZeroPredictor
from models.pipeline import DeblurPipeline
from models.settings import SamplingSettings, sharing_samples
from models.unet import UNetPredictor
from tests.tiny import tiny_pipeline

ROOT = Path(__file__).parents[2]


@pytest.fixture
def blurry():
    return torch.rand(2, 3, 21, 30, generator=torch.Generator().manual_seed(3))


def test_the_noisiest_level_of_training_is_kept_and_bounds_what_the_denoiser_is_told(tmp_path, blurry, monkeypatch):
    first = tiny_pipeline()
    DeblurPipeline(first.predictor, first.denoiser, first.scheduler, 0.1, sigma_max=2.0).save_pretrained(tmp_path)
    pipeline, told = read_pipeline(str(tmp_path)), []
    assert pipeline.config.sigma_max == 2.0 and "sigma_max" not in first.config
    forward = pipeline.denoiser.forward
    monkeypatch.setattr(pipeline.denoiser, "forward", lambda *args: told.append(args[2]) or forward(*args))
    pipeline(blurry, SamplingSettings(steps=4), output_type="pt")
    assert torch.cat(told).min().item() == pytest.approx(0.2) and torch.cat(told).max() > 0.5


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


@pytest.mark.parametrize("blend", [0.0, 1.0])
def test_an_image_has_one_name(blurry, blend):
    with pytest.raises(ValueError, match="2 images, but 3 names"):
        tiny_pipeline()(blurry, SamplingSettings(steps=1, blend=blend), names=["a", "b", "c"])


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


def test_the_zero_predictor_makes_it_a_one_network_conditional_ddpm(blurry):
    pipeline = tiny_pipeline(ZeroPredictor(), residual_scale=0.5)
    output = pipeline(blurry, SamplingSettings(steps=2), output_type="pt")
    assert (output.predictions == 0.5).all() and output.images.std() > 0.01


def test_an_unknown_output_type_is_refused(blurry):
    with pytest.raises(ValueError, match="output_type"):
        tiny_pipeline()(blurry, output_type="jpg")


def test_a_predictor_alone_is_saved_loaded_and_only_predicts(tmp_path, blurry):
    scheduler = DDPMScheduler(num_train_timesteps=1, trained_betas=[0.5])
    DeblurPipeline(UNetPredictor(8, (1, 2), 1), None, scheduler).save_pretrained(tmp_path)
    alone = read_pipeline(str(tmp_path))
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
