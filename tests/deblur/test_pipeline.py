"""The pipeline in Python: its samples, and the images that it takes and gives, by closed form and as sample.py does."""

import math
import os
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from diffusers import DDPMScheduler
from torch.utils._python_dispatch import TorchDispatchMode

import sample
from deblur.data.files import images
from deblur.draft import Blurry
from deblur.image_processor import as_array
from deblur.models.networks.base import IdentityPredictor, ZeroPredictor
from deblur.models.networks.unet import UNetPredictor
from deblur.pipeline import Area, DeblurPipeline, Limits, noise_generator, read_pipeline
from deblur.settings import SamplingSettings, sharing_samples
from deblur.tiling import TooLittleMemory, used_memory
from deblur.working_size import WorkingSize
from tests.conftest import fresh
from tests.tiny import tiny_pipeline


@pytest.fixture
def blurry():
    return torch.rand(2, 3, 21, 30, generator=torch.Generator().manual_seed(3))


def sigmas_told(pipeline, blurry, settings):
    """The noise levels, as sigma, that the denoiser is told, the noisiest first."""
    told = []
    pipeline.denoiser.register_forward_pre_hook(lambda _, inputs: told.append(inputs[2][0].double().item()))
    pipeline(blurry, settings, output_type="pt")
    return [((1 - alpha_bar) / alpha_bar) ** 0.5 for alpha_bar in told]


def test_both_ends_of_training_are_kept_and_bound_what_the_denoiser_is_told(tmp_path, blurry):
    first, bounds = tiny_pipeline(), {"sigma_min": 0.05, "sigma_max": 2.0}
    DeblurPipeline(first.predictor, first.denoiser, first.scheduler, 0.1, **bounds).save_pretrained(tmp_path)
    pipeline = read_pipeline(str(tmp_path))
    assert (pipeline.config.sigma_min, pipeline.config.sigma_max) == (0.05, 2.0)
    told = sigmas_told(pipeline, blurry, SamplingSettings(schedule="log_snr", steps=5))
    assert told == pytest.approx([2 * (0.05 / 2) ** (k / 4) for k in range(5)], rel=1e-4)


@pytest.mark.parametrize("given", ["sigma_min", "sigma_max"])
def test_a_checkpoint_without_one_end_is_not_bounded_there(blurry, given):
    first = tiny_pipeline()
    assert "sigma_min" not in first.config
    assert "sigma_max" not in first.config
    pipeline = DeblurPipeline(first.predictor, first.denoiser, first.scheduler, 0.1, **{given: 1.0})
    told = sigmas_told(pipeline, blurry, SamplingSettings(schedule="log_snr", steps=5))
    ends = (math.exp(5), 1.0) if given == "sigma_min" else (1.0, math.exp(-5))
    assert (told[0], told[-1]) == pytest.approx(ends, rel=2e-3)  # float32 has few digits of 1 - 4.5e-5


@pytest.mark.slow
def test_restoring_loads_nothing_slow_and_the_compiler_loads_afterwards():
    code = "import sys, torch; from deblur.pipeline import load_pipeline;"
    code += "load_pipeline('pretrained/lite')(torch.rand(3, 64, 64));"
    code += "found = {'torch._dynamo', 'torchvision', 'scipy', 'kornia'} & set(sys.modules);"
    code += "import torch._dynamo; print(found, torch._dynamo.allow_in_graph.__name__)"
    done = fresh(code)
    assert done.returncode == 0 and done.stdout.split() == ["set()", "allow_in_graph"], done.stderr


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

    both, turned = run(blurry, ["a", "b"]), run(blurry.flip(0), ["b", "a"])
    alone = run(blurry[1:], ["b"])
    assert torch.equal(both["a"], turned["a"]) and torch.equal(both["b"], turned["b"])
    assert torch.equal(both["b"], alone["b"]) and not torch.equal(both["b"], run(blurry[1:], ["c"])["c"])
    assert not torch.equal(both["b"][0], both["b"][1])


def test_a_sample_starts_from_the_noise_of_its_number_however_many_the_one_before_drew(blurry):
    pipeline, calls = tiny_pipeline(), []
    pipeline.denoiser.register_forward_pre_hook(lambda _, inputs: calls.append((inputs[0].clone(), inputs[2])))
    for steps in (2, 3):
        calls.clear()
        pipeline(blurry, SamplingSettings("ddpm", steps=steps, num_samples=2), seed=5, names=["a", "b"])
        for k, (r_t, alpha_bar) in enumerate(calls[::steps]):
            generators = [noise_generator(5, name, k) for name in ("a", "b")]
            noise = torch.stack([torch.randn(3, 21, 30, generator=generator) for generator in generators])
            torch.testing.assert_close(r_t, (1 - alpha_bar).sqrt().view(-1, 1, 1, 1) * noise)


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
    inside, between = inside[0] & inside[1] & inside[2], (one + prediction.predictions) / 2
    assert torch.allclose(half[inside], between[inside], atol=1e-5) and inside.any()


def test_the_zero_predictor_makes_it_a_one_network_conditional_ddpm(blurry):
    output = tiny_pipeline(ZeroPredictor(), residual_scale=0.5)(blurry, SamplingSettings(steps=2), output_type="pt")
    assert (output.predictions == 0.5).all() and output.images.std() > 0.01


def test_an_unknown_output_type_is_refused(blurry):
    with pytest.raises(ValueError, match="output_type"):
        tiny_pipeline()(blurry, output_type="jpg")


def test_a_predictor_alone_is_saved_loaded_and_only_predicts(tmp_path, blurry):
    scheduler = DDPMScheduler(num_train_timesteps=1, trained_betas=[0.5])
    DeblurPipeline(UNetPredictor(8, (1, 2), 1), None, scheduler).save_pretrained(tmp_path)
    alone = read_pipeline(str(tmp_path))
    assert torch.allclose(alone(blurry, SamplingSettings(blend=0.0), output_type="pt").images, blurry, atol=1e-6)
    with pytest.raises(ValueError, match="no denoiser"):
        alone(blurry)


TWO_STEPS = [{"num_samples": 3, "average": True, "blend": 0.8}, {"num_samples": 2}, {"blend": 0.5}]
EVERY_KIND = [SamplingSettings("ddpm", "cosine", 7), *(SamplingSettings(steps=2, **own) for own in TWO_STEPS)]
EVERY_KIND += [SamplingSettings("dpmsolver++", "log_snr", 5), SamplingSettings("unipc", steps=4)]
EVERY_KIND += [SamplingSettings(eta=1.0, steps=3), SamplingSettings(blend=0.0, num_samples=2)]


def test_settings_that_share_samples_give_what_each_gives_alone(blurry):
    pipeline = tiny_pipeline()
    draft, steps = pipeline.draft(Blurry(blurry)), []

    def count(levels):
        for level in levels:
            steps.append(level)
            yield level

    for group, expected in zip(sharing_samples(EVERY_KIND), (7, 3 * 2, 5, 4, 3, 0), strict=True):
        steps.clear()
        longest = max(group, key=lambda setting: setting.num_samples)
        together = draft.restored(pipeline.sample(draft, longest, 5, ["a", "b"], count), group)
        assert len(steps) == expected, "no sample is drawn twice"
        for setting, found in zip(group, together, strict=True):
            alone = pipeline(blurry, setting, 5, ["a", "b"], "pt")
            assert torch.equal(found.images, alone.images), setting
            assert (found.std is None) == (setting.num_samples == 1)
            assert found.std is None or torch.equal(found.std, alone.std)


GENERATOR = np.random.default_rng(0)
PIXELS = GENERATOR.integers(256, size=(7, 9, 4), dtype=np.uint8)


def test_an_image_that_comes_back_has_no_metadata(tmp_path):
    exif = PIL.Image.Exif()
    exif[0x010F] = "Camera"
    PIL.Image.fromarray(PIXELS[..., :3]).save(tmp_path / "a.jpg", exif=exif, icc_profile=b"profile", comment=b"me")
    pipeline, settings = tiny_pipeline(IdentityPredictor()), SamplingSettings(blend=0.0)
    for given in (tmp_path / "a.jpg", PIL.Image.open(tmp_path / "a.jpg")):
        (restored,) = pipeline(given, settings).images
        assert not restored.getexif()
        assert not restored.info


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
@pytest.mark.parametrize("named", [str, Path])
def test_a_file_is_read_with_its_depth_its_alpha_and_upright(tmp_path, channels, depth, named):
    array = GENERATOR.integers(np.iinfo(depth).max, size=(7, 9, channels), dtype=depth)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # the camera was on its side
    colours = np.moveaxis(array[..., : 1 if channels < 3 else 3], -1, 0)
    alpha = torch.from_numpy(np.moveaxis(array[..., -1:], -1, 0)) if channels in (2, 4) else None
    pixels = torch.from_numpy(np.repeat(colours, 3 // len(colours), axis=0))
    like = images.ImageFile(pixels, alpha, channels < 3, exif.tobytes())
    images.write(tmp_path / "a.tif", like.values, like)
    path, upright = named(tmp_path / "a.tif"), np.rot90(array, -1)
    assert as_array(path).shape[:2] == (9, 7)
    pipeline, settings = tiny_pipeline(IdentityPredictor()), SamplingSettings(blend=0.0)
    (same,) = pipeline(path, settings, output_type="np").images
    assert same.dtype == depth
    assert np.abs(same.astype(int) - upright).max() <= 1
    (shown,) = pipeline([path], settings).images
    assert isinstance(shown, PIL.Image.Image)
    assert shown.size == (7, 9)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_python_restores_what_the_command_line_does(tmp_path, mode):
    pipeline = tiny_pipeline()
    pipeline.save_pretrained(tmp_path / "checkpoint")
    image = PIL.Image.fromarray(PIXELS).convert(mode)
    image.save(tmp_path / "a.png")
    (restored,) = pipeline(image, SamplingSettings(steps=2), names=["a"]).images
    command = [str(tmp_path / "a.png"), "--checkpoint", str(tmp_path / "checkpoint"), "--output", str(tmp_path / "out")]
    assert sample.main([*command, "--steps", "2", "--precision", "fp32"]) == 0
    theirs = np.asarray(PIL.Image.open(tmp_path / "out" / "a.png"))
    assert restored.mode == mode and np.abs(np.asarray(restored).astype(int) - theirs).max() <= 1


def cutout(colours, hidden):
    """An array (96, 128, 4) of uint16 with a disc that is visible, and these colours under alpha 0."""
    rows, columns = np.mgrid[:96, :128]
    visible = (rows - 48) ** 2 + (columns - 60) ** 2 < 35**2
    alpha = np.where(visible, 40_000, 0)
    return np.dstack([np.where(visible[..., None], colours, hidden), alpha]).astype(np.uint16), visible


@pytest.mark.parametrize("options", [{}, {"area": Area(0.5)}, {"area": Area(mask=torch.ones(96, 128))}, {"seed": 7}])
@pytest.mark.parametrize("keep_sharp", [0.0, 2.5])
def test_hidden_colours_change_no_visible_pixel_and_stay(options, keep_sharp):
    generator = np.random.default_rng(0)
    colours = np.kron(generator.integers(65536, size=(12, 16, 3)), np.ones((8, 8, 1)))
    hidden = [0, 65535, colours, generator.integers(65536, size=(96, 128, 3))]
    pipeline = tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True))
    pipeline.working_size = WorkingSize(smallest=20, region=0.6)
    settings = SamplingSettings(steps=2, num_samples=2, keep_sharp=keep_sharp)
    results, seen = [], []
    pipeline.predictor.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numpy()))
    for under in hidden:
        seen.clear()
        array, visible = cutout(colours, under)
        out = pipeline(array, settings, output_type="np", **options)
        for image in (*out.images, *out.predictions):
            assert np.array_equal(image[~visible], array[~visible])
            assert np.array_equal(image[..., 3], array[..., 3])
        assert not out.std[0, :, ~visible].any()
        results.append((*(image[visible] for image in out.images), out.std, out.expected_error, out.share, *seen))
    assert not np.array_equal(results[0][0], array[visible]), "nothing was restored"
    for result in results[1:]:
        for one, other in zip(results[0], result, strict=True):
            assert np.array_equal(one, other)


def test_several_samples_have_their_image_s_alpha_and_hidden_colours():
    clear = GENERATOR.integers(65536, size=(7, 9, 4), dtype=np.uint16)
    clear[:2, :, 3] = 0
    opaque = clear[..., :3]
    restored = tiny_pipeline()([opaque, clear, clear[::-1]], SamplingSettings(steps=1, num_samples=2)).images
    assert restored[0].shape == restored[1].shape == opaque.shape
    for one, own in zip(restored[2:], [clear, clear, clear[::-1], clear[::-1]], strict=True):
        assert np.array_equal(one[..., 3], own[..., 3])
        assert np.array_equal(one[own[..., 3] == 0], own[own[..., 3] == 0])


def test_a_preset_by_name():
    pipeline = tiny_pipeline()
    pipeline.register_to_config(presets={"perceptual": {"sampler": "ddpm", "steps": 3}})
    blurry = torch.rand(3, 9, 9)
    named = pipeline(blurry, "perceptual", output_type="pt").images
    assert torch.equal(named, pipeline(blurry, SamplingSettings("ddpm", steps=3), output_type="pt").images)
    with pytest.raises(ValueError, match="no preset 'sharp'"):
        pipeline(blurry, "sharp")


def test_memory_is_counted_at_the_size_that_the_networks_see():
    pipeline, settings = tiny_pipeline(), SamplingSettings(steps=1)
    blurry = torch.rand(1, 3, 1600, 2000)  # 38 MB, of which samples need several
    limits = Limits(memory=used_memory(pipeline.device) + 110_000_000)
    with pytest.raises(TooLittleMemory):
        pipeline(blurry, settings, output_type="pt", limits=limits)
    assert pipeline(blurry, settings, output_type="pt", limits=limits, area=Area(0.1)).scale == 0.1


def test_images_of_different_sizes_are_restored_one_by_one(tmp_path):
    pipeline, settings = tiny_pipeline(), SamplingSettings(steps=2, num_samples=2)
    arrays = [np.random.default_rng(0).random((21, width, 3), np.float32) for width in (150, 140)]
    files = [tmp_path / f"{name}.png" for name in "ab"]
    for file, array in zip(files, arrays, strict=True):
        images.write(file, torch.from_numpy(array).movedim(-1, 0))
    with pytest.raises(TooLittleMemory):
        pipeline(arrays, settings, limits=Limits(memory=1))
    for options in ({}, {"area": Area(0.5)}):
        out = pipeline(arrays, settings, seed=3, names=["a", "b"], **options)
        assert [image.shape for image in out.images] == [(21, 150, 3)] * 2 + [(21, 140, 3)] * 2
        alone = pipeline(arrays[1], settings, seed=3, names=["b"], **options)
        assert np.array_equal(out.images[2], alone.images[0])
        assert np.array_equal(out.predictions[1], alone.predictions[0])
        for image, array in zip(pipeline(files, settings, 3, ["a", "b"], **options).images, out.images, strict=True):
            assert np.abs(np.asarray(image) / 255 - array).max() < 0.01


class Heights(TorchDispatchMode):
    """Notes the height of what an operation of torch makes."""

    def __init__(self, operation):
        super().__init__()
        self.operation, self.noted = operation, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if function is self.operation:
            self.noted.append(made.shape[-2])
        return made


def test_the_residual_of_a_large_photo_is_clipped_in_bands(monkeypatch):
    """Its temporaries would be three images: slow tests measure the peak."""
    monkeypatch.setattr("deblur.tiling.PIXELS_OF_BAND", 300)  # ten rows
    with Heights(torch.ops.aten.maximum.default) as heights:
        tiny_pipeline()(torch.rand(1, 3, 40, 30), SamplingSettings(steps=2))
    assert heights.noted == [10] * 4 * 2
