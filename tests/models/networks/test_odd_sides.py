"""Images whose sides no stride divides: what lies beyond their border, and that their pixels keep their places."""

import pytest
import torch
from torch.nn.functional import pad

from deblur.models.networks.nafnet import SlimDenoiser, SlimPredictor
from deblur.models.networks.unet import Denoiser, UNetPredictor
from tests.tiny import stir

PREDICTORS = [UNetPredictor(8, (1, 2), 1, unshuffle=2)]
PREDICTORS += [SlimPredictor((8, 12), (1, 1)), SlimPredictor((8, 12), (1, 1), "naf")]
DENOISERS = [Denoiser(8, (1, 2), 1), SlimDenoiser((8, 12), (1, 1), embedding_channels=8)]


@pytest.fixture(autouse=True)
def without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.mark.parametrize("network", PREDICTORS)
@pytest.mark.parametrize(("height", "width"), [(101, 83), (1, 97), (90, 3)])
def test_a_part_of_an_image_is_predicted_as_the_whole_but_for_its_border(network, height, width):
    whole = torch.rand(1, 3, 128, 128) * 2 - 1
    image = whole[..., :height, :width]
    part = stir(network)(image)
    assert part.shape[-2:] == (height, width)
    beyond = (0, -width % network.stride, 0, -height % network.stride)
    repeated = network(pad(image, beyond, mode="replicate"))
    assert torch.allclose(part, repeated[..., :height, :width], atol=1e-5)
    reach = network.receptive_field + network.stride  # what is repeated begins within a block
    inside = ..., slice(0, max(0, height - reach)), slice(0, max(0, width - reach))
    assert torch.allclose(part[inside], network(whole)[inside], atol=1e-5)


@pytest.mark.parametrize("network", DENOISERS)
def test_beyond_the_border_noise_is_reflected_and_all_else_repeated(network):
    noise, blurry, x_init = torch.randn(3, 1, 3, 21, 31)
    s, level = torch.rand(1, 1, 21, 31) + 0.1, torch.tensor([0.3])
    beyond = (0, -31 % network.stride, 0, -21 % network.stride)
    assert max(beyond) > 0
    images = (pad(image, beyond, mode="replicate") for image in (blurry, x_init, s))
    blurry_beyond, x_init_beyond, s_beyond = images
    padded = stir(network)(pad(noise, beyond, mode="reflect"), blurry_beyond, level, x_init_beyond, s_beyond)
    assert torch.allclose(network(noise, blurry, level, x_init, s), padded[..., :21, :31], atol=1e-5)
