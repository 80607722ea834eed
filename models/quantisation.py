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
    values = weight.detach().float()
    scale = (values.abs().amax((1, 2, 3), keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return _straight_through(weight, (values / scale).round() * scale)


def round_input(x: Tensor) -> Tensor:
    """Round activations (N, C, H, W) to 256 levels between their minimum and maximum; zero is one of the levels."""
    values = x.detach().float()
    low, high = values.amin().clamp(max=0), values.amax().clamp(min=0)
    scale = ((high - low) / 255).clamp(min=torch.finfo(torch.float32).tiny)
    zero = (-low / scale).round()
    return _straight_through(x, (((values / scale).round() + zero).clamp(0, 255) - zero) * scale)


def _straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """Rounded values with the gradient of x; in plain operators, which also run without data (to count FLOP)."""
    return x + (rounded.to(x.dtype) - x).detach()


def round_convolutions(network: nn.Module) -> None:
    """Make a network's convolutions round, in place, except those at its ends."""
    for layer in network.modules():
        if type(layer) is nn.Conv2d and min(layer.in_channels, layer.out_channels) >= ENDS:
            layer.__class__ = RoundedConv2d
