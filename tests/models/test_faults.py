"""What is wrong with a sample, at the thresholds."""

import pytest
import torch

from models.samples import faults


@pytest.fixture
def image():
    return torch.rand(3, 20, 24, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.25


def stored(image, dtype):
    return (image * torch.iinfo(dtype).max).round().to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_a_sample_is_to_be_as_sharp_as_the_input(image, dtype):
    mean = image.mean(dim=(1, 2), keepdim=True)
    sharper, softer = mean + 1.02 * (image - mean), mean + 0.98 * (image - mean)
    assert faults(sharper, image, stored(image, dtype)) == []
    assert faults(softer, image, stored(image, dtype)) == ["the sample is less sharp than the input"]


def test_a_channel_s_mean_may_move_by_two_levels(image):
    blurry = stored(0.9 * image, torch.uint8)
    for channel in range(3):
        shift = torch.zeros(3, 1, 1)
        shift[channel] = 1 / 255
        assert faults(image + 1.9 * shift, image, blurry) == []
        expected = ["the sample's mean colour is 2.1 levels away from the prediction's"]
        assert faults(image - 2.1 * shift, image, blurry) == expected
