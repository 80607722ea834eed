import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kornia.filters import gaussian_blur2d
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from deblur.data.files import images
from deblur.models.networks.base import IdentityPredictor, ZeroPredictor
from deblur.models.networks.layers import NoiseLevelEmbedding, reflected
from deblur.models.networks.nafnet import NafBlock, PlainBlock, SlimDenoiser, SlimPredictor
from deblur.models.networks.u2net import U2NetPredictor
from deblur.models.networks.unet import Denoiser, PixelNorm, ResidualBlock, UNet, UNetPredictor
from deblur.pipeline import load_pipeline
from deblur.settings import SamplingSettings
from tests.conftest import ROOT
from tests.tiny import stir


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.fixture(scope="module", autouse=True)
def seed():
    torch.manual_seed(0)


def test_the_papers_unets_have_their_exact_size():
    """Counted by hand: a block is two 3x3 convolutions, a 1x1 skip, and a dense layer where there is a noise level."""
    with torch.device("meta"):
        assert parameters(UNetPredictor()) == 26_617_411
        assert parameters(Denoiser()) == 6_764_483


@pytest.mark.parametrize(("variant", "count"), [("full", 44_009_869), ("lite", 1_131_181)])
def test_u2net_has_its_exact_size_but_for_the_heads_of_three_channels(variant, count):
    with torch.device("meta"):
        network = U2NetPredictor(variant)
    sides = [network.get_submodule(f"side{k}") for k in range(1, 7)]
    official = sum(9 * side.in_channels + 1 for side in sides) + 7  # one channel each, and a 1x1 convolution of the six
    assert parameters(network) - sum(map(parameters, (*sides, network.outconv))) + official == count


PREDICTORS = [
    U2NetPredictor("lite"),
    U2NetPredictor("lite", norm="none"),
    U2NetPredictor("small", norm="pixel", unshuffle=2, side_outputs=False, upsample="nearest"),
    U2NetPredictor("lite", unshuffle=3),
    UNetPredictor(8, (1, 2, 3), 1),
    UNetPredictor(8, (1, 2), 1, unshuffle=2, norm="pixel"),
    SlimPredictor((8, 12), (1, 1)),
    SlimPredictor((8, 12), (1, 1), "naf", unshuffle=1),
    IdentityPredictor(),
]


@pytest.mark.parametrize("predictor", [*PREDICTORS, ZeroPredictor()], ids=lambda predictor: type(predictor).__name__)
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 3), (33, 65)])
def test_any_size_goes_through(predictor, size):
    blurry = torch.rand(1, 3, *size) * 2 - 1
    with torch.no_grad():
        assert stir(predictor)(blurry).shape == blurry.shape
        for estimate in predictor.estimates(blurry)[0]:
            assert estimate.shape == blurry.shape
            assert estimate.isfinite().all()


def test_u2net_pads_to_its_pixel_blocks_alone():
    network, sides = U2NetPredictor("lite", unshuffle=3).eval(), []
    network.stage1.register_forward_pre_hook(lambda _, given: sides.append(given[0].shape[-2:]))
    network(torch.rand(1, 3, 31, 65))
    assert sides == [(-(-31 // network.multiple), -(-65 // network.multiple))] == [(11, 22)]


@pytest.mark.parametrize("block", [PlainBlock(8), NafBlock(8), NafBlock(8, 4)])
def test_untrained_blocks_are_the_identity(block):
    x = torch.rand(2, 8, 9, 7)
    assert torch.equal(block(x, torch.rand(2, 4)), x)


@pytest.mark.parametrize("predictor", PREDICTORS, ids=lambda p: type(p).__name__)
def test_untrained_predictors_are_the_identity(predictor):
    fresh = type(predictor).from_config(predictor.config).eval()
    blurry = torch.rand(1, 3, 20, 20) * 2 - 1
    assert torch.equal(fresh(blurry), blurry)


def test_a_size_head_adds_an_output_and_changes_no_other():
    for with_head, without in (
        (UNetPredictor(8, (1, 2), 1, size_head=True), UNetPredictor(8, (1, 2), 1)),
        (SlimPredictor((8, 12), (1, 1), size_head=True), SlimPredictor((8, 12), (1, 1))),
        (
            U2NetPredictor("lite", norm="none", unshuffle=2, size_head=True),
            U2NetPredictor("lite", norm="none", unshuffle=2),
        ),
    ):
        stir(with_head)
        body = {key: value for key, value in with_head.state_dict().items() if "log_size." not in key}
        without.load_state_dict(body)
        blurry = torch.rand(1, 3, 21, 30) * 2 - 1
        with torch.no_grad():
            (x_init, log_size), alone = with_head(blurry), without(blurry)
        assert log_size.shape == (1, 1, 21, 30)
        assert torch.equal(x_init, alone)


def test_a_size_head_expects_a_small_error_until_it_is_trained():
    _, log_size = SlimPredictor((8, 12), (1, 1), size_head=True)(torch.rand(1, 3, 16, 16))
    assert torch.allclose(log_size.exp(), torch.tensor(0.02))


def test_small_networks_keep_to_the_efficiency_challenges_limits():
    """GMAC at 1280x720: at most 80 for the predictor and 30 a step (200 at 1920x1200 in AIM 2025 and NTIRE 2026)."""
    small = U2NetPredictor("small", norm="pixel", unshuffle=2, side_outputs=False, upsample="nearest", size_head=True)
    y, level = torch.rand(1, 3, 128, 128), torch.ones(1)
    for network, arguments, limit in ((small, (y,), 80), (SlimDenoiser(), (y, y, level, y, y[:, :1]), 30)):
        with FlopCounterMode(display=False) as counter:
            network(*arguments)
        assert counter.get_total_flops() / 2 * (1280 * 720 / 128**2) < limit * 1e9
    assert sum(p.numel() for n in (small, SlimDenoiser()) for p in n.parameters()) * 2 < 16 * 2**20


DENOISERS = [
    (Denoiser(8, (1, 2), 1), "r_t blurry"),
    (Denoiser(8, (1, 2), 1, condition="blurry+x_init"), "r_t blurry x_init"),
    (SlimDenoiser((8, 12), (1, 1), embedding_channels=8), "r_t blurry x_init s"),
]


@pytest.mark.parametrize(("denoiser", "sees"), DENOISERS, ids=[sees for _, sees in DENOISERS])
def test_a_denoiser_depends_on_what_it_is_told(denoiser, sees):
    denoiser = stir(denoiser)
    r_t, blurry, x_init = torch.randn(3, 2, 3, 16, 16)
    told = {"r_t": r_t, "blurry": blurry, "alpha_bar": torch.tensor([0.1, 0.1]), "x_init": x_init}
    told["s"] = torch.rand(2, 1, 16, 16) + 0.1
    with torch.no_grad():
        base = denoiser(**told)
        other = denoiser(**told | {"alpha_bar": torch.tensor([0.1, 0.9])})  # each image has its own noise level
        assert torch.allclose(base[0], other[0], atol=1e-6)
        assert not torch.allclose(base[1], other[1], atol=1e-3)
        for name in ("r_t", "blurry", "x_init", "s"):
            changed = denoiser(**told | {name: told[name] + 1})
            assert torch.allclose(base, changed, atol=1e-3) != (name in sees.split()), name


def test_the_slim_denoiser_sees_little_of_much_noise():
    denoiser, seen = SlimDenoiser((8, 12), (1, 1), embedding_channels=8), []
    denoiser.unet.stem.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    ones, s = torch.ones(2, 3, 16, 16), torch.ones(2, 1, 16, 16)
    denoiser(ones, ones, torch.tensor([0.01, 1.0]), ones, s)
    assert torch.allclose(seen[0][:, :12].mean((1, 2, 3)), torch.tensor([0.1, 1.0]))  # sqrt(alpha_bar) r_t


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["float32", "under autocast"])
def test_the_slim_denoiser_can_be_an_unsharp_mask(precision):
    denoiser = SlimDenoiser((8, 12), (1, 1), embedding_channels=8)
    with torch.no_grad():
        denoiser.unet.head.bias[:12], denoiser.unet.head.bias[12:] = 0.25, 0.625  # bfloat16 numbers
    x_init, s = torch.rand(2, 3, 20, 24), torch.full((2, 1, 20, 24), 0.05)
    blurred = gaussian_blur2d(x_init, (13, 13), (1.5, 1.5), border_type="replicate")
    with torch.autocast("cpu", precision, enabled=precision is torch.bfloat16):
        r_0 = denoiser(torch.randn_like(x_init), x_init, torch.tensor([0.1, 1.0]), x_init, s)
    expected = 0.25 + torch.tensor([0.9, 0.0]).view(-1, 1, 1, 1) * 0.625 * (x_init - blurred) / 0.05
    assert torch.allclose(r_0, expected, atol=1e-4)


def test_a_silent_trunk_can_still_learn():
    # With a swish before the head, a trunk that has gone negative everywhere has no gradient: the predictor stays the
    # identity for good.
    predictor = stir(UNetPredictor(8, (1, 2), 1))
    nn.init.constant_(predictor.unet.up[-1].conv2.bias, -200.0)
    predictor(torch.rand(1, 3, 16, 16)).square().mean().backward()
    assert predictor.unet.head.weight.grad.abs().mean() > 1
    assert predictor.unet.up[-1].conv2.bias.grad.abs().mean() > 1e-3


def test_normalised_by_pixel_the_unet_still_sees_only_its_neighbourhood():
    network = stir(UNet(3, 3, 8, (1, 2), 1, norm="pixel"))
    far = network.receptive_field + 2 * network.stride
    image = torch.rand(1, 3, 8, 2 * far)
    changed = image.clone()
    changed[..., far:] = 7.0
    with torch.no_grad():
        assert torch.equal(network(image)[..., : network.stride], network(changed)[..., : network.stride])
        assert not torch.equal(network(image)[..., far:], network(changed)[..., far:])
    layer = next(module for module in network.modules() if isinstance(module, PixelNorm))
    x = torch.randn(1, layer.normalized_shape[0], 5, 4) * 9 + 3
    assert layer(x).mean(1).abs().max() < 1e-5
    assert (layer(x).var(1, correction=0) - 1).abs().max() < 1e-3


def test_the_untrained_denoiser_keeps_activations_finite_and_of_order_one():
    f = Denoiser()
    sizes = []
    for block in (*f.unet.down, *f.unet.middle, *f.unet.up):
        block.register_forward_hook(lambda module, inputs, output: sizes.append(output.std().item()))
    with torch.no_grad():
        f(torch.randn(1, 3, 32, 32), torch.rand(1, 3, 32, 32), torch.tensor([0.1]), torch.rand(1, 3, 32, 32))
    assert len(sizes) == len(f.unet.down) + len(f.unet.middle) + len(f.unet.up)
    assert all(0.1 < size < 10 for size in sizes)


def test_an_unknown_prediction_type_is_named():
    with pytest.raises(ValueError, match="prediction_type must be one of v_prediction, epsilon, sample, got 'x0'"):
        Denoiser(8, (1,), 1, prediction_type="x0")


@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    padding=st.tuples(*[st.integers(0, 40)] * 4),
)
def test_padding_is_a_reflection_however_far(height, width, padding):
    top, bottom, left, right = padding
    image = torch.arange(float(height * width)).view(1, 1, height, width)
    expected = np.pad(image[0, 0].numpy(), [(top, bottom), (left, right)], mode="reflect")
    assert np.array_equal(reflected(image, top, bottom, left, right)[0, 0].numpy(), expected)


def test_samples_are_no_more_uncertain_where_a_network_pads():
    pipeline = load_pipeline("lite", precision="fp32")
    settings = SamplingSettings("ddim", "log_snr", steps=4, eta=1.0, num_samples=6)
    blurry = images.read(ROOT / "docs" / "street_blurry.jpg")[None, :, 100:196, 900:996]
    whole, cut = (
        pipeline(part, settings, names=["street"], output_type="pt").std[0].mean(0)
        for part in (blurry, blurry[..., :89, :89])
    )
    assert cut[-2:].mean() < 2 * whole[87:89, :89].mean()
    assert cut[:, -2:].mean() < 2 * whole[:89, 87:89].mean()


def test_dropout_drops_in_training_alone():
    block, x = stir(ResidualBlock(8, 8, dropout=0.5)), torch.rand(1, 8, 6, 6)
    assert torch.equal(block(x), block(x))
    assert not torch.equal(block.train()(x), block(x))


def test_nearly_clean_levels_are_told_apart():
    embed = NoiseLevelEmbedding(8)
    levels = embed(torch.tensor([1 - 1e-5, 1 - 1e-4, 1e-4, 1e-5]))
    assert (levels[0] - levels[1]).abs().max() > 1e-3
    assert (levels[2] - levels[3]).abs().max() > 1e-3
