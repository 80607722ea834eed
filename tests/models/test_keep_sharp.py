"""Sharp images keep their prediction: the share of the blend by the mean expected error."""

import pytest
import torch

from models.samples import refined_share
from models.settings import SamplingSettings, sharing_samples
from models.unet import UNetPredictor
from tests.tiny import tiny_pipeline


def test_the_share_rises_from_the_level_to_a_fifth_above_it():
    levels = torch.tensor([0.0, 5.0, 5.5, 6.0, 50.0])
    error = (levels / 255).view(-1, 1, 1, 1).expand(-1, 1, 4, 6).clone()
    error[:, :, :2] *= 2  # only the mean matters
    error[:, :, 2:] = 0
    found = refined_share(error, 5.0)
    assert found.shape == (5, 1, 1, 1) and torch.allclose(found.flatten(), torch.tensor([0, 0, 0.5, 1, 1.0]), atol=1e-5)
    assert refined_share(error, 0.0) == refined_share(None, 0.0) == 1.0
    with pytest.raises(ValueError, match="keep_sharp needs a predictor with a size head"):
        refined_share(None, 5.0)


@pytest.fixture
def pipeline():
    """Its size head expects 4 levels of error everywhere."""
    pipeline = tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True))
    torch.nn.init.zeros_(pipeline.predictor.unet.log_size.conv.weight)
    torch.nn.init.constant_(pipeline.predictor.unet.log_size.conv.bias, torch.tensor(2 * 4 / 255).log().item())
    return pipeline


def test_each_image_of_a_batch_has_its_own_share(pipeline):
    blurry = torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(1))
    prediction = pipeline.predict(blurry)
    prediction.log_size[1] += torch.tensor(1.1).log()  # the second image: 4.4 levels
    settings = [SamplingSettings(steps=2, keep_sharp=level) for level in (0.0, 4.0, 10.0)]
    assert [len(group) for group in sharing_samples(settings)] == [3]
    full, half, none = (output.images for output in pipeline.refine_shared(blurry, prediction, settings))
    assert torch.allclose(none, prediction.images, atol=1e-6) and (full - none).abs().max() > 0.05
    assert torch.allclose(half[0], none[0], atol=1e-5)
    inside = ((torch.stack([full[1], none[1]]) - 0.5).abs() < 0.49).all(0)  # neither is clipped
    assert torch.allclose(half[1][inside], (0.5 * (full[1] + none[1]))[inside], atol=1e-4)


def test_a_missing_size_head_is_said_before_any_step():
    def progress(steps):
        raise AssertionError("a step was taken")

    with pytest.raises(ValueError, match="keep_sharp needs a predictor with a size head"):
        tiny_pipeline()(torch.rand(1, 3, 16, 24), SamplingSettings(steps=2, keep_sharp=5.0), progress=progress)


def test_a_level_below_zero_is_refused_and_the_words_name_it():
    with pytest.raises(ValueError, match="keep_sharp must be 0 or more, got -1"):
        SamplingSettings(keep_sharp=-1)
    assert "sharp images kept up to 5" in str(SamplingSettings(keep_sharp=5.0))
    (said,) = SamplingSettings(blend=0.0).without_effect(["keep_sharp"])
    assert said == "--keep_sharp has no effect: with blend 0 no sample is drawn"
