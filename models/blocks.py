"""Residual blocks of the U-Nets with few channels: two plain convolutions, or NAFNet's."""

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
        a, b = self.depthwise(self.expand(h)).chunk(2, dim=1)  # the simple gate: one half times the other
        x = x + self.project(a * b)
        a, b = self.wide(self.norm2(x)).chunk(2, dim=1)
        return x + self.narrow(a * b)
