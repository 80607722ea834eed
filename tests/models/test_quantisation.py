"""Rounding to INT8 in training, against onnxruntime's integers and by hand."""

import copy

import numpy as np
import torch
from onnxruntime.quantization.quant_utils import compute_scale_zp
from torch import nn

from models.checkpoints import load_pipeline
from models.lightning_module import PredictAndRefine
from models.quantisation import RoundedConv2d, round_convolutions, round_input, round_weight
from models.slim_unet import SlimDenoiser, SlimPredictor
from models.u2net import U2NetPredictor


def test_weights_are_rounded_per_output_channel_around_zero():
    weight = torch.tensor([[127.0, -126.4, 0.6], [0.0, 0.0, 0.0], [-2.54, 0.011, 1.0]]).view(3, 1, 1, 3)
    expected = torch.tensor([[127.0, -126.0, 1.0], [0.0, 0.0, 0.0], [-2.54, 0.02, 1.0]]).view(3, 1, 1, 3)
    assert torch.allclose(round_weight(weight), expected, atol=1e-6)


def test_inputs_are_rounded_to_256_levels_of_which_zero_is_one():
    x = torch.tensor([-1.0, -0.3, 0.0, 0.004, 4.1]).view(1, 1, 1, 5)  # 0.02 apart, zero is the 50th
    expected = torch.tensor([-1.0, -0.3, 0.0, 0.0, 4.1]).view(1, 1, 1, 5)
    assert torch.allclose(round_input(x), expected, atol=1e-6)
    positive = torch.tensor([2.013, 5.1, 3.0]).view(1, 1, 1, 3)  # their range begins at zero, too
    assert torch.allclose(round_input(positive), torch.tensor([2.02, 5.1, 3.0]).view(1, 1, 1, 3), atol=1e-6)
    assert torch.equal(round_input(torch.zeros(1, 2, 3, 3)), torch.zeros(1, 2, 3, 3))


def test_a_rounded_convolution_is_that_of_onnxruntimes_integers():
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.randn(1, 16, 9, 9, generator=generator), torch.randn(16, 16, 3, 3, generator=generator)
    ends = [np.array(end, np.float32) for end in (x.min().item(), x.max().item(), 0, 255)]
    zero, scale = compute_scale_zp(*ends)
    integers = ((x / float(scale)).round() + int(zero)).clamp(0, 255)
    scales = weight.abs().amax((1, 2, 3), keepdim=True) / 127
    layer = RoundedConv2d(16, 16, 3, bias=False)
    layer.weight.data = weight
    expected = nn.functional.conv2d((integers - int(zero)) * float(scale), (weight / scales).round() * scales)
    assert torch.allclose(layer(x), expected, atol=1e-3)


def test_gradients_pass_the_rounding_as_if_it_were_not_there():
    torch.manual_seed(0)
    plain = nn.Conv2d(16, 16, 3)
    rounded = copy.deepcopy(plain)
    rounded.__class__ = RoundedConv2d
    x = torch.randn(1, 16, 8, 8)
    wanted, found = (
        torch.autograd.grad(layer(given).sum(), (given, layer.weight))
        for layer, given in ((plain, x.clone().requires_grad_()), (rounded, x.clone().requires_grad_()))
    )
    assert torch.allclose(found[0], wanted[0], atol=0.1) and torch.allclose(found[1], wanted[1], rtol=0.1, atol=0.5)
    assert not torch.equal(plain(x), rounded(x)) and torch.allclose(plain(x), rounded(x), atol=0.1)


def test_what_lies_between_the_ends_rounds_and_keeps_its_names():
    predictor = U2NetPredictor("small", norm="pixel", unshuffle=2, side_outputs=False, size_head=True)
    names = list(predictor.state_dict())
    round_convolutions(predictor)
    plain = [name for name, layer in predictor.named_modules() if type(layer) is nn.Conv2d]
    assert plain == ["stage1.rebnconvin.conv_s1", "side1", "log_size.conv"] and list(predictor.state_dict()) == names
    slim = SlimPredictor((16, 24), (1, 1))
    round_convolutions(slim)
    assert [name for name, layer in slim.named_modules() if type(layer) is nn.Conv2d] == ["unet.stem", "unet.head"]


def test_training_rounds_both_networks_and_their_checkpoint_is_a_plain_one(tmp_path):
    model = PredictAndRefine(SlimPredictor((16, 16), (1, 1)), SlimDenoiser((16, 16), (1, 1)), quantize="int8")
    assert isinstance(model.predictor.unet.down[0], RoundedConv2d)
    assert isinstance(model.denoiser.unet.down[0], RoundedConv2d)
    model.pipeline().save_pretrained(tmp_path)
    loaded = load_pipeline(str(tmp_path), precision="fp32")
    assert type(loaded.denoiser.unet.down[0]) is nn.Conv2d
    assert torch.equal(loaded.denoiser.unet.down[0].weight, model.denoiser.unet.down[0].weight)


def test_rounding_networks_run_without_data_as_the_count_of_flop_needs():
    predictor = SlimPredictor((16, 16), (1, 1))
    round_convolutions(predictor)
    assert predictor.to("meta")(torch.empty(1, 3, 8, 8, device="meta")).shape == (1, 3, 8, 8)
