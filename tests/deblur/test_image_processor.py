"""Images in memory as tensors."""

import numpy as np
import PIL.Image
import pytest
import torch

from deblur.image_processor import read_images

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
