"""Sharp images stay as they are, by how much the predictor changes them; what is wrong with a sample."""

import pytest
import torch

from deblur.models.samples import faults, kept, restored_share, sharp_remarks
from deblur.models.settings import SamplingSettings, sharing_samples
from tests.tiny import tiny_pipeline


def test_the_share_rises_from_the_level_to_more_than_twice_as_much():
    levels = torch.tensor([0.0, 2.0, 3.2, 4.4, 50.0])
    changes = torch.tensor([2.0, 0, 1])[:, None] * torch.tensor([0.6, -(0.6**0.5) * 2**0.5])
    changes = changes / changes.square().mean().sqrt()  # only the root mean square over channels and pixels matters
    blurry = torch.full((5, 3, 4, 6), 0.5)
    x = blurry + (levels.view(-1, 1, 1, 1) / 255) * changes.repeat_interleave(3, 1)[None, :, None]
    share = restored_share(blurry, 2 * x - 1, 2.0)
    assert share.shape == (5, 1, 1, 1) and torch.allclose(share.flatten(), torch.tensor([0, 0, 0.5, 1, 1]), atol=1e-3)
    assert torch.equal(restored_share(blurry, 2 * x - 1, 0.0), torch.ones(5, 1, 1, 1))
    said = [["looks sharp already, and is kept as it is (keep_sharp)"]]
    said += [["looks nearly sharp, and is restored by 50% (keep_sharp)"], []]
    assert [sharp_remarks(one[None]) for one in share[[0, 2, 4]]] == said


def test_a_kept_image_is_the_input_to_the_last_bit():
    blurry, x = torch.rand(3, 3, 5, 7), torch.rand(3, 3, 5, 7)
    result = kept(x.clone(), blurry, torch.tensor([0, 0.25, 1]).view(3, 1, 1, 1))
    assert torch.equal(result[0], blurry[0]) and torch.equal(result[2], x[2])
    assert torch.allclose(result[1], 0.75 * blurry[1] + 0.25 * x[1])
    assert torch.equal(kept(x.clone(), blurry, torch.ones(3, 1, 1, 1)), x)


@pytest.mark.parametrize("blend", [0.0, 0.5])
def test_each_image_of_a_batch_has_its_own_share(blend):
    pipeline = tiny_pipeline()
    blurry = torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(1))
    prediction = pipeline.predict(blurry)
    change = 255 * (prediction.images - blurry)
    for image, level in enumerate((2.4, 3.2)):
        prediction.x_init[image] = 2 * blurry[image] - 1
        prediction.x_init[image] += change[image].sign() * 2 * level / 255 * (blurry[image] - 0.5).abs().lt(0.45)
    level = 255 * (prediction.images - blurry).square().mean((1, 2, 3)).sqrt()
    levels = [0.0, (level[1] / 1.6).item(), 4.0]
    settings = [SamplingSettings(steps=2, blend=blend, keep_sharp=level) for level in levels]
    assert [len(group) for group in sharing_samples(settings)] == [3]
    outputs = pipeline.refine_shared(blurry, prediction, settings)
    full, half, none = (output.images for output in outputs)
    assert torch.equal(none, blurry) and (full - none).abs().max() > 0.004
    shares = ((level / levels[1] - 1) / 1.2).clamp(0, 1).view(-1, 1, 1, 1)
    assert shares[1].item() == pytest.approx(0.5, abs=1e-3) and shares[0] < 0.4
    assert torch.allclose(half, blurry + shares * (full - blurry), atol=1e-5)
    assert torch.equal(outputs[0].share, torch.ones(2, 1, 1, 1)) and torch.allclose(outputs[1].share, shares, atol=1e-4)


def test_no_step_is_taken_for_images_that_are_all_kept():
    def progress(steps):
        raise AssertionError("a step was taken")

    pipeline, blurry = tiny_pipeline(), torch.full((1, 3, 16, 24), 0.5)
    prediction = pipeline.predict(blurry)
    prediction.x_init.zero_()
    settings = SamplingSettings(steps=2, num_samples=2, keep_sharp=1.0)
    [output] = pipeline.refine_shared(blurry, prediction, [settings], progress=progress)
    assert torch.equal(output.images, blurry.expand(2, -1, -1, -1)) and not output.std.any()


def test_a_level_below_zero_is_refused_and_the_words_name_it():
    with pytest.raises(ValueError, match="keep_sharp must be 0 or more, got -1"):
        SamplingSettings(keep_sharp=-1)
    assert "sharp images kept up to 2" in str(SamplingSettings(keep_sharp=2.0))
    alone = SamplingSettings(blend=0.0, keep_sharp=2.0)
    assert str(alone) == "the prediction alone, sharp images kept up to 2" and not alone.without_effect(["keep_sharp"])


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


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_sample_of_no_numbers_is_a_fault(image, value):
    sample = image.clone()
    sample[1, 3, 4] = value
    assert faults(sample, image, stored(image, torch.uint8)) == ["the sample has pixels that are no numbers"]
