"""A U-Net with few channels at high resolution: additive skips, plain resampling, most blocks at the bottom.

It has the shape of NAFNet (Chen et al., ECCV 2022), behind a pixel unshuffle. For the same number of operations it is
deeper than the paper's U-Net (models/networks/unet.py), whose widest convolutions are at its highest resolution. Its
blocks are plain 3x3 convolutions, which run fast and quantise well on a CPU, or NAFNet's. Like the paper's U-Net it is
local: nothing is averaged over the image.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deblur.models.diffusion import PredictionType, residual
from deblur.models.networks.base import LocalDenoiser, LocalPredictor
from deblur.models.networks.layers import PixelBlocks, without_autocast, zeroed
from deblur.models.networks.mixins import register_to_config
from deblur.models.networks.unet import PixelNorm

BlockKind = Literal["plain", "naf"]
DETAIL_SIGMA = 1.5  # standard deviation, in pixels, of the Gaussian that separates details from coarse structure
KERNEL_LENGTH = 13  # of that Gaussian, which ends at four standard deviations


class ScaleShift(nn.Module):
    """Scale and shift each channel depending on the noise level (ADM, Dhariwal and Nichol 2021); starts as identity."""

    def __init__(self, embedding_channels: int, channels: int):
        super().__init__()
        self.dense = zeroed(nn.Linear(embedding_channels, 2 * channels))

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
        self.conv2 = zeroed(nn.Conv2d(channels, channels, 3, padding=1))
        nn.init.kaiming_normal_(self.conv1.weight)

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
        self.project = zeroed(nn.Conv2d(channels, channels, 1))
        self.wide = nn.Conv2d(channels, 2 * channels, 1)
        self.narrow = zeroed(nn.Conv2d(channels, channels, 1))

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
        n, geometry = conv.out_channels // 2, (conv.stride, conv.padding, conv.dilation, max(conv.groups // 2, 1))
        first = F.conv2d(first, conv.weight[:n], conv.bias[:n], *geometry)
        second = F.conv2d(second, conv.weight[n:], conv.bias[n:], *geometry)
    return first * second


class SlimUNet(PixelBlocks):
    """A U-Net: widths[i] channels and blocks[i] blocks at resolution 1 / (unshuffle 2^i), on the way down and up.

    The last entries are the bottom.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        widths: Sequence[int],
        blocks: Sequence[int],
        block: BlockKind = "plain",
        unshuffle: int = 2,
        embedding_channels: int = 0,
        size_head: bool = False,
    ):
        if len(widths) != len(blocks):
            raise ValueError(f"widths and blocks must be of one length, got {list(widths)} and {list(blocks)}")
        super().__init__(unshuffle, unshuffle * 2 ** (len(widths) - 1))
        kind = {"plain": PlainBlock, "naf": NafBlock}[block]

        def level(i: int) -> nn.ModuleList:
            return nn.ModuleList([kind(widths[i], embedding_channels) for _ in range(blocks[i])])

        steps = range(len(widths) - 1)
        self.stem = nn.Conv2d(in_channels * unshuffle**2, widths[0], 3, padding=1)
        self.encoder = nn.ModuleList([level(i) for i in steps])
        self.down = nn.ModuleList([nn.Conv2d(widths[i], widths[i + 1], 2, stride=2) for i in steps])
        self.bottom = level(len(widths) - 1)
        self.up = nn.ModuleList([nn.Conv2d(widths[i + 1], 4 * widths[i], 1, bias=False) for i in steps])
        self.decoder = nn.ModuleList([level(i) for i in steps])
        self.add_heads(widths[0], out_channels, size_head)

    @property
    def receptive_field(self) -> int:
        """How far outputs see beyond their own cell of `stride` x `stride` pixels, rounded up to whole strides."""
        radius = 1  # the stem; in pixels of the current resolution
        for blocks in self.encoder:
            radius = -(-(radius + sum(block.radius for block in blocks)) // 2)
        radius += sum(block.radius for block in self.bottom)
        for blocks in reversed(self.decoder):
            radius = 2 * radius + sum(block.radius for block in blocks)
        return -(-(radius + 1) * self.unshuffle // self.stride) * self.stride

    def trunk(self, h: Tensor, embedding: Tensor | None) -> Tensor:
        skips = []  # (N, widths[0], H, W) and below
        for blocks, down in zip(self.encoder, self.down, strict=True):
            for block in blocks:
                h = block(h, embedding)
            skips.append(h)
            h = down(h)
        for block in self.bottom:
            h = block(h, embedding)
        for blocks, up in zip(reversed(self.decoder), reversed(self.up), strict=True):
            h = F.pixel_shuffle(up(h), 2) + skips.pop()
            for block in blocks:
                h = block(h, embedding)
        return h


class SlimPredictor(LocalPredictor):
    """A SlimUNet as predictor g: x_init = y + network(y). Starts as the identity.

    Args:
        widths, blocks, block, unshuffle: as in `SlimUNet`.
        size_head: as in `models.networks.unet.UNetPredictor`.
        images: how many it sees; 2 as the second network of a `models.networks.base.Cascade`.
    """

    @register_to_config
    def __init__(
        self,
        widths: Sequence[int] = (24, 48, 96, 192),
        blocks: Sequence[int] = (1, 1, 2, 8),
        block: BlockKind = "plain",
        unshuffle: int = 2,
        size_head: bool = False,
        images: int = 1,
    ):
        super().__init__(SlimUNet(3 * images, 3, widths, blocks, block, unshuffle, size_head=size_head))


class SlimDenoiser(LocalDenoiser):
    """A SlimUNet as denoiser f(r_t, y, alpha_bar, x_init, s), which also sees the prediction and the scale s.

        output = network + (1 - alpha_bar) gain (x_init - G x_init) / s,  G a Gaussian of DETAIL_SIGMA pixels

    The network sees sqrt(alpha_bar) r_t. This is the best linear estimate of an r_0 of unit variance, and it is small
    where noise dominates; unscaled noise leaked into the estimates at levels where it says next to nothing about r_0.
    There the estimate relies on the prediction, whose details are too weak. The network learns per pixel how much to
    amplify them. An unsharp mask amplifies by one constant, and without this term it was hard to beat.

    Args:
        widths, blocks, block, unshuffle: as in `SlimUNet`.
        prediction_type, embedding_channels: as in `models.networks.unet.Denoiser`.
    """

    @register_to_config
    def __init__(
        self,
        widths: Sequence[int] = (32, 64, 96),
        blocks: Sequence[int] = (1, 1, 3),
        block: BlockKind = "plain",
        unshuffle: int = 2,
        prediction_type: PredictionType = "sample",
        embedding_channels: int = 64,
    ):
        unet = SlimUNet(9, 4, widths, blocks, block, unshuffle, embedding_channels)
        super().__init__(unet, prediction_type, embedding_channels)

    def forward(self, r_t: Tensor, blurry: Tensor, alpha_bar: Tensor, x_init: Tensor, s: Tensor) -> Tensor:
        """As `models.networks.unet.Denoiser.forward`: noisy residual, blurry image, prediction (N, 3, H, W), alpha_bar.

        Also takes the residual's scale s (N, 1, H, W), or (N, 3, H, W) as in `models.diffusion.residual`.
        """
        linear_estimate = alpha_bar.sqrt().view(-1, 1, 1, 1) * r_t
        out = self.unet(blurry, x_init, noisy=linear_estimate, embedding=self.embedding(alpha_bar)).float()
        return out[:, :3] + (1 - alpha_bar).view(-1, 1, 1, 1) * out[:, 3:] * residual(details(x_init), 0.0, s)


def details(image: Tensor) -> Tensor:
    """An image (N, C, H, W) minus its Gaussian blur, in float32; the border is padded by repetition.

    It is float32 under autocast too, since the difference of two bfloat16 images has few digits left. Written without
    kornia, whose import takes as long as restoring a small photograph.
    """
    with without_autocast(image.device):
        image, channels, radius = image.float(), image.shape[1], KERNEL_LENGTH // 2
        places = torch.arange(-radius, radius + 1, device=image.device)
        taps = (-(places**2) / (2 * DETAIL_SIGMA**2)).softmax(0).expand(channels, 1, 1, KERNEL_LENGTH)
        blurred = F.pad(image, [radius] * 4, mode="replicate").to(memory_format=torch.channels_last)
        for kernel in (taps, taps.mT):
            blurred = F.conv2d(blurred, kernel, groups=channels)
        return image - blurred
