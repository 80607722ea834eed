"""Images that the pipeline takes and gives in Python: by closed form, and as sample.py treats a file."""

import numpy as np
import PIL.Image
import pytest
import torch

import sample
from data import images
from models.arrays import Layout, read_images, write_images
from models.heads import IdentityPredictor
from models.settings import SamplingSettings
from tests.tiny import tiny_pipeline

GENERATOR = np.random.default_rng(0)
PIXELS = GENERATOR.integers(256, size=(7, 9, 4), dtype=np.uint8)
DEEP = GENERATOR.integers(65536, size=(7, 9, 4), dtype=np.uint16)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_what_is_grey_or_transparent_stays_so(mode):
    image = PIL.Image.fromarray(PIXELS).convert(mode)
    tensor, layouts = read_images(image)
    assert tensor.shape == (1, 3, 7, 9) and tensor.dtype == torch.float32
    (same,) = write_images(tensor, layouts, "pil")
    assert same.mode == mode and np.array_equal(np.asarray(same), np.asarray(image))


@pytest.mark.parametrize("array", [PIXELS, DEEP, DEEP / np.float32(65535)])
@pytest.mark.parametrize("channels", [0, 1, 2, 3, 4])
def test_arrays_keep_shape_depth_and_alpha(array, channels):
    array = array[..., 0] if channels == 0 else array[..., :channels]
    tensor, layouts = read_images([array, array])
    first = array if channels == 0 else array[..., 0]
    most = 1 if array.dtype.kind == "f" else np.iinfo(array.dtype).max
    assert np.allclose(tensor[1, 0], first / most, atol=1e-6)
    same = write_images(tensor, layouts, "np")
    assert len(same) == 2 and same[1].dtype == array.dtype and np.allclose(same[1], array)


def test_16_bit_grey_of_pil_is_not_cut_off_and_photos_are_turned_upright(tmp_path):
    deep = PIL.Image.fromarray(DEEP[..., 0])
    tensor, layouts = read_images(deep)
    assert torch.allclose(tensor[0, 1], torch.from_numpy(DEEP[..., 0] / np.float32(65535)))
    (same,) = write_images(tensor, layouts, "pil")
    assert np.array_equal(np.asarray(same), DEEP[..., 0])
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # the camera was on its side
    PIL.Image.fromarray(PIXELS[..., :3]).save(tmp_path / "photo.png", exif=exif)
    tensor, _ = read_images(PIL.Image.open(tmp_path / "photo.png"))
    assert torch.equal(tensor[0], images.read(tmp_path / "photo.png"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.zeros((5, 5, 5), np.uint8), r"\(H, W, 1 to 4\)"),
        (np.full((5, 5, 3), 255.0), r"must lie in \[0, 1\], got 255"),
        (np.zeros((5, 5, 3), np.int32), "uint8, uint16 or floats"),
        (torch.full((3, 5, 5), 128.0), r"must lie in \[0, 1\]"),
        (torch.zeros(3, 5, 5, dtype=torch.int64), "uint8, uint16 or floats"),
        (torch.zeros(4, 5, 5), r"\(3, H, W\)"),
        (torch.full((3, 5, 5), float("nan")), r"must lie in \[0, 1\]"),
        (PIL.Image.new("F", (5, 5)), "mode F has no known range"),
        ("photo.jpg", "a PIL image, an array or a tensor, got str"),
        ([np.zeros((5, 5), np.uint8), np.zeros((5, 6), np.uint8)], "one size"),
    ],
)
def test_what_cannot_be_an_image_is_said(wrong, words):
    with pytest.raises(ValueError, match=words):
        read_images(wrong)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_python_restores_what_the_command_line_does(tmp_path, mode):
    pipeline = tiny_pipeline()
    pipeline.save_pretrained(tmp_path / "checkpoint")
    image = PIL.Image.fromarray(PIXELS).convert(mode)
    image.save(tmp_path / "a.png")
    settings = SamplingSettings(steps=2)
    (restored,) = pipeline(image, settings, names=["a"]).images
    command = [str(tmp_path / "a.png"), "--checkpoint", str(tmp_path / "checkpoint"), "--output", str(tmp_path / "out")]
    assert sample.main([*command, "--steps", "2", "--precision", "fp32"]) == 0
    theirs = np.asarray(PIL.Image.open(tmp_path / "out" / "a.png"))
    assert restored.mode == mode and np.abs(np.asarray(restored).astype(int) - theirs).max() <= 1


def test_16_bits_are_kept_and_several_samples_have_their_image_s_alpha():
    pipeline = tiny_pipeline(IdentityPredictor())
    (same,) = pipeline(DEEP, SamplingSettings(blend=0.0)).images
    assert same.dtype == np.uint16 and np.abs(same.astype(int) - DEEP).max() <= 1
    restored = pipeline([DEEP, DEEP[::-1]], SamplingSettings(steps=1, num_samples=2)).images
    assert [np.array_equal(one[..., 3], DEEP[..., 3]) for one in restored] == [True, True, False, False]


def test_a_preset_by_name():
    pipeline = tiny_pipeline()
    pipeline.register_to_config(presets={"perceptual": {"sampler": "ddpm", "steps": 3}})
    blurry = torch.rand(3, 9, 9)
    named, given = (
        pipeline(blurry, output_type="pt", **options).images
        for options in ({"preset": "perceptual"}, {"settings": SamplingSettings("ddpm", steps=3)})
    )
    assert torch.equal(named, given)
    with pytest.raises(ValueError, match="not both"):
        pipeline(blurry, SamplingSettings(), preset="perceptual")
    with pytest.raises(ValueError, match="no preset 'sharp'"):
        pipeline(blurry, preset="sharp")


@pytest.mark.parametrize(("dtype", "levels"), [(np.uint8, 255), (np.uint16, 65535)])
def test_arrays_are_rounded_to_the_nearest_level(dtype, levels):
    layout = Layout(np.dtype(dtype), 3, None)
    assert (layout.image(torch.full((3, 2, 2), 100.6 / levels), "np") == 101).all()
    assert (layout.image(torch.full((3, 2, 2), 100.4 / levels), "np") == 100).all()
