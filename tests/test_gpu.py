"""What only a CUDA device can show; everything else is tested without one."""

import pytest
import torch

from deblur.devices import has_bf16
from deblur.models.networks.unet import Denoiser, UNetPredictor
from deblur.pipeline import load_pipeline
from deblur.settings import SamplingSettings
from deblur.training.module import Optimizer, PredictAndRefine
from tests.tiny import fit, tiny_pipeline

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("sampler", ["ddpm", "ddim", "dpmsolver++", "unipc"])
def test_an_image_on_the_gpu_is_the_image_on_the_cpu(tmp_path, sampler):
    tiny_pipeline().save_pretrained(tmp_path)
    blurry, settings = torch.rand(2, 3, 45, 61), SamplingSettings(sampler, steps=5)
    images = {
        device: load_pipeline(str(tmp_path), device, "fp32")(
            blurry, settings, seed=1, names=["a", "b"], output_type="pt"
        ).images.cpu()
        for device in ("cpu", "cuda")
    }
    assert (images["cpu"] - images["cuda"]).abs().max() < 2e-3  # convolutions may round to TF32


def test_bf16_on_the_gpu_stays_close(tmp_path):
    if not has_bf16("cuda"):
        pytest.skip("this GPU has no bfloat16")
    tiny_pipeline().save_pretrained(tmp_path)
    blurry, settings = torch.rand(1, 3, 64, 64), SamplingSettings(steps=5)
    images = [
        load_pipeline(str(tmp_path), "cuda", precision)(blurry, settings, output_type="pt").images
        for precision in ("fp32", "bf16")
    ]
    assert 0 < (images[0] - images[1]).abs().mean() < 0.005


@pytest.mark.filterwarnings("ignore")
def test_training_runs_on_the_gpu_and_its_checkpoint_loads_on_the_cpu(tmp_path):
    torch.manual_seed(0)
    model = PredictAndRefine(
        UNetPredictor(8, (1, 2), 1), Denoiser(8, (1, 2), 1), optimizer=Optimizer(lr=1e-3, warmup_steps=1)
    )
    fit(model, tmp_path, 3, accelerator="gpu")
    model.pipeline().save_pretrained(tmp_path / "checkpoint")
    assert load_pipeline(str(tmp_path / "checkpoint"), "cpu").config.residual_scale > 0


@pytest.mark.parametrize("sampler", ["ddim", "dpmsolver++"])
def test_nothing_in_the_loop_waits_for_the_gpu(tmp_path, sampler):
    tiny_pipeline().save_pretrained(tmp_path)
    pipeline = load_pipeline(str(tmp_path), "cuda", "fp32")
    steps = []

    def strict(iterable):
        for step in iterable:
            # The first step finds the size of the tiles, which reads the free memory.
            torch.cuda.set_sync_debug_mode("error" if steps else "default")
            steps.append(step)
            yield step
        torch.cuda.set_sync_debug_mode("default")

    try:
        pipeline(torch.rand(1, 3, 64, 64), SamplingSettings(sampler, steps=5), output_type="pt", progress=strict)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(steps) == 5


def test_compiled_graphs_give_the_same_images(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path)
    plain, compiled = (load_pipeline(str(tmp_path), "cuda", "fp32") for _ in range(2))
    compiled.compile_networks()
    for seed in (0, 1):  # the second image reuses the graphs
        blurry = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(seed))
        one, two = (
            pipeline(blurry, SamplingSettings(steps=4), seed, output_type="pt").images for pipeline in (plain, compiled)
        )
        assert (one - two).abs().max() < 2e-3
