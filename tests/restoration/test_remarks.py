"""What is said of a restored image, and of a sample that is worse than its input."""

import pytest
import torch
from torch.nn.functional import interpolate
from torchvision.transforms.functional import gaussian_blur

from deblur.draft import DeblurOutput
from deblur.restoration.remarks import faults, kept_remarks, still_blurred_remarks


def noise(height, width, seed=0):
    return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(seed))


def output(share, prediction=None, error=None, scale=1.0):
    return DeblurOutput(None, prediction, None, error, share, scale=scale)


def test_what_is_kept_is_said_with_the_reason():
    sharp, soft = noise(128, 128)[0], gaussian_blur(noise(128, 128), 41, 9.0)[0]
    assert kept_remarks(0.0, sharp) == ["looks sharp to this checkpoint and is kept; --restore all restores it"]
    assert kept_remarks(0.0, torch.zeros_like(sharp)) == kept_remarks(0.0, sharp)
    assert kept_remarks(0.0, soft) == [
        "looks too blurred for this checkpoint, and is kept as it is: try a smaller --scale"
    ]
    assert kept_remarks(0.25, soft) == [
        "looks blurred on 25% of its area, which is restored; the rest is kept (keep_sharp)"
    ]
    assert kept_remarks(0.0025, soft) == [
        "looks blurred on less than 1% of its area, which is restored; the rest is kept (keep_sharp)"
    ]
    assert kept_remarks(1.0, sharp) == []


def test_an_image_that_is_blurred_still_says_so():
    sharp, soft, everywhere = noise(128, 128)[0], gaussian_blur(noise(128, 128), 41, 9.0)[0], torch.ones(1, 1, 1, 1)
    assert still_blurred_remarks(output(everywhere), soft, soft) == [
        "is still blurred: its blur is larger than this checkpoint knows, try a smaller --scale"
    ]
    assert still_blurred_remarks(output(0 * everywhere), soft, soft) == [], "what is kept has its own sentence"
    assert still_blurred_remarks(output(everywhere), sharp, sharp) == []


def test_a_night_whose_lights_are_streaks_still_says_so():
    points, streaks = torch.zeros(2, 3, 384, 512)
    for row, column in torch.rand(60, 2, generator=torch.Generator().manual_seed(0)).tolist():
        place = (slice(None), 20 + int(340 * row), slice(20 + int(440 * column), 48 + int(440 * column)))
        streaks[place] = 1
        points[place][:, :2] = 1
    points, streaks = gaussian_blur(points, 13, 1.0), gaussian_blur(streaks, 13, 2.0)
    everywhere = torch.ones(1, 1, 1, 1)
    assert still_blurred_remarks(output(everywhere), streaks, streaks) == [
        "is still blurred: its blur is larger than this checkpoint knows, try a smaller --scale"
    ]
    assert still_blurred_remarks(output(everywhere), points, points) == []


def test_an_image_that_was_changed_much_and_whose_error_is_expected_to_be_large_is_blurred_still():
    """At full size alone, and by what is restored: the rest has no error and fine detail."""
    soft, share = gaussian_blur(noise(128, 640), 13, 2.0), torch.ones(1, 1, 128, 640)
    share[..., 300:] = 0
    prediction = torch.where(share > 0, soft, noise(128, 640, 1))
    told = "is still blurred where it is restored: its blur is larger than this checkpoint knows, try a smaller --scale"

    def remarks(change, error, scale=1.0, part=share):
        blurry = (prediction - change * share)[0]
        return still_blurred_remarks(output(part, prediction, error * share, scale), prediction[0], blurry)

    assert remarks(0.01, 0.01) == remarks(0.03, 0.004) == remarks(0.004, 0.03) == []
    assert remarks(0.014, 0.014) == [told]
    assert remarks(0.014, 0.014, scale=0.5) == []
    assert remarks(0.014, 0.014, part=1 - share) == []


@pytest.mark.parametrize("is_soft_restored", [True, False])
def test_of_what_was_kept_it_is_not_said_that_it_is_blurred_still(is_soft_restored):
    sharp, soft, share = noise(128, 640)[0], gaussian_blur(noise(128, 640), 41, 9.0)[0], torch.zeros(1, 1, 128, 640)
    share[..., 160:] = is_soft_restored
    share[..., :96] = not is_soft_restored
    restored = torch.cat([sharp[..., :128], soft[..., 128:]], dim=2)
    told = "is still blurred where it is restored: its blur is larger than this checkpoint knows, try a smaller --scale"
    assert still_blurred_remarks(output(share), restored, restored) == ([told] if is_soft_restored else [])


def test_detail_along_one_direction_alone_is_that_of_streaks():
    sharp = interpolate(noise(64, 64), (256, 256))
    [streaks], [out_of_focus] = gaussian_blur(sharp, [31, 13], [8.0, 1.5]), gaussian_blur(sharp, 13, 2.0)
    assert kept_remarks(0.0, out_of_focus) == ["looks sharp to this checkpoint and is kept; --restore all restores it"]
    assert kept_remarks(0.0, streaks) == [
        "looks too blurred for this checkpoint, and is kept as it is: try a smaller --scale"
    ]
    everywhere = torch.ones(1, 1, 1, 1)
    assert still_blurred_remarks(output(everywhere), streaks, streaks) == [], "a restored scene may have such edges"


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


@pytest.mark.parametrize("colour", [0.0, 1.0])
def test_hidden_pixels_are_no_fault(image, colour):
    """Beside them a gradient is of no image, and they would dilute a drift."""
    visible = torch.zeros(1, 1, 20, 24, dtype=torch.bool)
    visible[..., 5:10, 8:16] = True
    softer = image.mean(dim=(1, 2), keepdim=True) * 0.1 + image * 0.9
    darker = image - 2.1 / 255
    for sample, words in ((softer, "the sample is less sharp"), (darker, "the sample's mean colour is 2.1")):
        sample, blurry = (torch.where(visible[0], one, colour) for one in (sample, image))
        [found] = faults(sample, blurry, stored(blurry, torch.uint8), visible)
        assert found.startswith(words)
    assert faults(image, image, stored(0.9 * image, torch.uint8), visible) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_sample_of_no_numbers_is_a_fault(image, value):
    sample = image.clone()
    sample[1, 3, 4] = value
    assert faults(sample, image, stored(image, torch.uint8)) == ["the sample has pixels that are no numbers"]
