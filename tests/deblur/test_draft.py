"""What a draft makes of grey images, whatever the networks do to the channels."""

import numpy as np
import PIL.Image
import pytest
import torch

from deblur.pipeline import Area
from deblur.settings import SamplingSettings
from tests.tiny import tiny_pipeline

SETTINGS = [
    SamplingSettings(steps=2),
    SamplingSettings(steps=1, num_samples=2, average=True),
    SamplingSettings(blend=0),
]


@pytest.fixture
def grey():
    """(13, 21, 3) uint8 with equal channels."""
    plane = torch.randint(0, 256, (13, 21, 1), generator=torch.Generator().manual_seed(0)).byte().numpy()
    return plane.repeat(3, axis=-1)


def spread(image):
    colours = np.asarray(image)[..., :3].astype(float)
    return (colours.max(-1) - colours.min(-1)).max()


@pytest.mark.parametrize("settings", SETTINGS, ids=["one sample", "a mean", "the prediction"])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_equal_channels_stay_equal_and_a_tint_may_change(grey, settings, scale):
    tinted = grey.copy()
    tinted[6, 7, 2] ^= 1
    deep = grey * np.uint16(257)
    images = [grey, tinted, np.concatenate([grey, grey[..., :1]], axis=-1), PIL.Image.fromarray(grey), deep]
    for image in images:
        output = tiny_pipeline()(image, settings, area=Area(scale=scale))
        for restored in (output.images[0], output.predictions[0]):
            assert (spread(restored) == 0) == (image is not tinted)
    of_one_channel = tiny_pipeline()(grey[..., 0], settings, area=Area(scale=scale)).images[0]
    both = tiny_pipeline()([grey, tinted], settings, area=Area(scale=scale)).images
    assert np.array_equal(both[0][..., 0], of_one_channel)
    assert spread(both[1]) > 0


def test_the_hidden_colours_of_a_grey_image_stay_and_do_not_colour_it(grey):
    hidden = np.dstack([grey, np.full((13, 21, 1), 255, np.uint8)])
    hidden[:5, :6] = 200, 30, 40, 0
    [restored] = tiny_pipeline()(hidden, SETTINGS[0]).images
    assert (restored[:5, :6] == (200, 30, 40, 0)).all()
    assert spread(restored[5:]) == 0
