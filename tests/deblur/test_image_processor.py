"""Images in memory as tensors."""

import numpy as np
import PIL.Image
import pytest
import torch

from deblur.data.files import images
from deblur.image_processor import Layout, read_images, with_hidden_filled, write_images

GENERATOR = np.random.default_rng(0)
PIXELS = GENERATOR.integers(256, size=(7, 9, 4), dtype=np.uint8)
DEEP = GENERATOR.integers(65536, size=(7, 9, 4), dtype=np.uint16)
VALUES = np.random.default_rng(0).integers(0, 65536, (7, 9), np.uint16)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("kind", ["u2", "f4", "f8"])
def test_an_array_is_the_same_in_either_byte_order(order, channels, kind):
    array = np.stack([VALUES] * channels, axis=-1)
    given = array.astype(f"{order}{kind}") / (1 if kind == "u2" else 65535)
    tensor, [layout] = read_images(given.astype(f"{order}{kind}"))
    assert np.abs(tensor[0, 0].numpy() * 65535 - VALUES).max() < 0.1
    assert layout.dtype.isnative
    back = layout.image(tensor[0], "np")
    assert np.abs(back.astype(float) - given).max() < 1e-6 * (1 if kind != "u2" else 1e6)


@pytest.mark.parametrize("mode", ["I;16", "I;16B"])
def test_16_bit_grey_of_pillow_is_the_same_in_either_byte_order(mode):
    content = VALUES.astype(">u2" if mode.endswith("B") else "<u2").tobytes()
    image = PIL.Image.frombytes(mode, (9, 7), content)
    tensor, [layout] = read_images(image)
    assert torch.equal((tensor[0, 0] * 65535).round().int(), torch.from_numpy(VALUES.astype(np.int32)))
    assert np.array_equal(np.asarray(layout.image(tensor[0], "pil")), VALUES)


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
    shown = np.asarray(write_images(tensor, layouts, "pil")[1])
    assert np.allclose(shown / np.iinfo(shown.dtype).max, array.squeeze() / most, atol=0.51 / 255)


def test_photos_are_turned_upright(tmp_path):
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
        (7, "a PIL image, an array, a tensor or a file's name, got int"),
        ("photo.jpg", "photo.jpg is not an image file: no such file"),
    ],
)
def test_what_cannot_be_an_image_is_said(wrong, words):
    with pytest.raises(ValueError, match=words):
        read_images(wrong)


@pytest.mark.parametrize(("dtype", "levels"), [(np.uint8, 255), (np.uint16, 65535)])
def test_arrays_are_rounded_to_the_nearest_level(dtype, levels):
    layout = Layout(np.dtype(dtype), 3, None)
    assert (layout.image(torch.full((3, 2, 2), 100.6 / levels), "np") == 101).all()
    assert (layout.image(torch.full((3, 2, 2), 100.4 / levels), "np") == 100).all()


def test_hidden_pixels_continue_the_visible_ones():
    visible = torch.zeros(2, 1, 37, 50, dtype=torch.bool)
    visible[0, :, 10:20, 20:40] = True
    visible[1, :, 36, 49] = True
    images = torch.full((2, 3, 37, 50), float("nan"))
    images[0, :, :, :30], images[0, :, :, 30:], images[1] = 0.25, 0.75, 0.5
    filled = with_hidden_filled(torch.where(visible, images, 3.0), visible)
    assert torch.equal(filled[0, :, 10:20, 20:40], images[0, :, 10:20, 20:40])
    assert torch.allclose(filled[0, :, 10:20, 17:20], torch.tensor(0.25), atol=0.15)
    assert torch.allclose(filled[0, :, 10:20, 40:43], torch.tensor(0.75), atol=0.15)
    assert filled[0].min() >= 0.25 - 1e-6
    assert filled[0].max() <= 0.75 + 1e-6
    assert torch.allclose(filled[1], torch.tensor(0.5))
    assert not with_hidden_filled(images, torch.zeros_like(visible)).any()
    assert with_hidden_filled(images, None) is images
