"""Residual blocks of the U-Nets with few channels: two plain convolutions, or NAFNet's."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.unet import PixelNorm


class ScaleShift(nn.Module):
    """Scale and shift each channel depending on the noise level (ADM, Dhariwal and Nichol 2021); starts as identity."""

    def __init__(self, embedding_channels: int, channels: int):
        super().__init__()
        self.dense = nn.Linear(embedding_channels, 2 * channels)
        nn.init.zeros_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        factor, shift = self.dense(F.silu(embedding))[:, :, None, None].chunk(2, dim=1)
        return x * (1 + factor) + shift


class PlainBlock(nn.Module):
    """x + conv(silu(conv(norm(x)))), 3x3 convolutions; the second starts at zero."""

    radius = 2

    def __init__(self, channels: int, embedding_channels: int = 0):
        super().__init__()
        self.norm = PixelNorm(channels)
        self.modulation = ScaleShift(embedding_channels, channels) if embedding_channels else None
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.kaiming_normal_(self.conv1.weight)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)

    def forward(self, x: Tensor, embedding: Tensor | None = None) -> Tensor:
        h = self.norm(x)
        if self.modulation is not None:
            h = self.modulation(h, embedding)
        return x + self.conv2(F.silu(self.conv1(h)))


class NafBlock(nn.Module):
    """NAFNet's block (figure 3c) without its channel attention, which averages over the image."""

    radius = 1

    def __init__(self, channels: int, embedding_channels: int = 0):
        super().__init__()
        self.norm1, self.norm2 = PixelNorm(channels), PixelNorm(channels)
        self.modulation = ScaleShift(embedding_channels, channels) if embedding_channels else None
        self.expand = nn.Conv2d(channels, 2 * channels, 1)
        self.depthwise = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, groups=2 * channels)
        self.project = nn.Conv2d(channels, channels, 1)
        self.wide = nn.Conv2d(channels, 2 * channels, 1)
        self.narrow = nn.Conv2d(channels, channels, 1)
        for layer in (self.project, self.narrow):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, embedding: Tensor | None = None) -> Tensor:
        h = self.norm1(x)
        if self.modulation is not None:
            h = self.modulation(h, embedding)
        x = x + self.project(_gate(h, self.expand, self.depthwise))
        return x + self.narrow(_gate(self.norm2(x), self.wide))


def _gate(x: Tensor, *convolutions: nn.Conv2d) -> Tensor:
    """NAFNet's simple gate: the convolutions, then one half of the channels times the other."""
    if not torch.onnx.is_in_onnx_export():
        for conv in convolutions:
            x = conv(x)
        a, b = x.chunk(2, dim=1)
        return a * b
    first = second = x
    for conv in convolutions:  # each half by its own convolution: engines would copy the halves of one
        n, how = conv.out_channels // 2, (conv.stride, conv.padding, conv.dilation, max(conv.groups // 2, 1))
        first = F.conv2d(first, conv.weight[:n], conv.bias[:n], *how)
        second = F.conv2d(second, conv.weight[n:], conv.bias[n:], *how)
    return first * second
