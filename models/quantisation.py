"""Quantisation-aware training: convolutions that round to INT8 as exported graphs do (Jacob et al., CVPR 2018)."""

import torch
from torch import Tensor, nn

ENDS = 16  # channels; a convolution with fewer inputs or outputs is at an end of the network and stays in float


class RoundedConv2d(nn.Conv2d):
    """A convolution with rounded weights and inputs; the gradient ignores the rounding.

    The ranges are those of onnxruntime's QDQ graphs: weights signed, symmetric, one scale per output channel; inputs
    unsigned, one scale and zero point. An input's range is that of its own batch, while a graph has a calibrated one.
    So nothing has to be stored, and names and values of the weights stay those of `torch.nn.Conv2d`.
    """

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(round_input(x), round_weight(self.weight), self.bias)


def round_weight(weight: Tensor) -> Tensor:
    """Round weights (out, in, kh, kw) to 255 levels per output channel, symmetric around zero."""
    scale = (weight.detach().float().abs().amax((1, 2, 3)) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    zero = torch.zeros_like(scale, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(weight.float(), scale, zero, 0, -127, 127).to(weight.dtype)


def round_input(x: Tensor) -> Tensor:
    """Round activations (N, C, H, W) to 256 levels between their minimum and maximum; zero is one of the levels."""
    values = x.detach().float()
    low, high = values.amin().clamp(max=0), values.amax().clamp(min=0)
    scale = ((high - low) / 255).clamp(min=torch.finfo(torch.float32).tiny)
    zero = (-low / scale).round().clamp(0, 255).to(torch.int32)
    return torch.fake_quantize_per_tensor_affine(x.float(), scale, zero, 0, 255).to(x.dtype)


def round_convolutions(network: nn.Module) -> None:
    """Make a network's convolutions round, in place, except those at its ends."""
    for layer in network.modules():
        if type(layer) is nn.Conv2d and min(layer.in_channels, layer.out_channels) >= ENDS:
            layer.__class__ = RoundedConv2d
