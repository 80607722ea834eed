"""Layers that several networks share: padding, heads, the U-Nets' frame, and the embedding of the noise level."""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def zeroed(layer: nn.Module) -> nn.Module:
    """A layer whose weights and biases are set to zero, so that at the start it adds nothing."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def without_autocast(device: torch.device) -> AbstractContextManager:
    """Convolutions inside stay in float32, under autocast, too."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def reflected(image: Tensor, top: int, bottom: int, left: int, right: int) -> Tensor:
    """(N, C, H, W) padded by reflection, which goes to and fro where the padding is wider than the image."""
    rows = reflected_places(image.shape[-2], top, bottom, image.device)
    columns = reflected_places(image.shape[-1], left, right, image.device)
    return image[:, :, rows][..., columns]


def reflected_places(side: int, before: int, after: int, device: torch.device) -> Tensor:
    """Indices into `side` pixels that pad them by reflection."""
    places = torch.arange(-before, side + after, device=device)
    period = max(1, 2 * side - 2)
    places = places % period
    return torch.minimum(places, period - places) if side > 1 else places


def extended(image: Tensor, rows: int, columns: int, is_noise: bool = False) -> Tensor:
    """A network's input (N, C, H, W) with rows below and columns to the right: its border repeated.

    Noise is reflected: noise that is repeated is no noise, and samples were several times as uncertain there.
    """
    if rows == 0 and columns == 0:  # torch.compile cannot differentiate a pad of 0
        return image
    if is_noise:
        return reflected(image, 0, rows, 0, columns)
    return F.pad(image, (0, columns, 0, rows), mode="replicate")


class SizeHead(nn.Module):
    """Features (N, C, h, w) -> log of the expected |x - x_init| (N, 1, k h, k w), float32; no gradient to the features.

    It starts at 0.02 everywhere, about the error of a good prediction in [-1, 1].
    """

    def __init__(self, channels: int, unshuffle: int):
        super().__init__()
        self.unshuffle = unshuffle
        self.conv = zeroed(nn.Conv2d(channels, unshuffle**2, 3, padding=1))
        nn.init.constant_(self.conv.bias, math.log(0.02))

    def forward(self, features: Tensor) -> Tensor:
        return F.pixel_shuffle(self.conv(features.detach()), self.unshuffle).float()


class PixelBlocks(nn.Module):
    """A local network: a stem, a trunk, and a head that starts at zero.

    Input (one image, or several concatenated over channels) and output are (N, channels, H, W), any H and W: the input
    is `extended` to a multiple of `stride`, and the output is cropped. A noisy input is the first one. Blocks of k x k
    pixels are moved to channels, k being `unshuffle` (Shi et al., CVPR 2016). A subclass sets `stem`, calls `add_heads`
    and has `trunk` and `receptive_field`.
    """

    def __init__(self, unshuffle: int, stride: int):
        super().__init__()
        self.unshuffle, self.stride = unshuffle, stride

    def add_heads(self, width: int, out_channels: int, size_head: bool) -> None:
        """Add the head, and a `SizeHead` if wanted, for features of `width` channels."""
        self.head = zeroed(nn.Conv2d(width, out_channels * self.unshuffle**2, 3, padding=1))
        self.log_size = SizeHead(width, self.unshuffle) if size_head else None

    def forward(
        self, *images: Tensor, noisy: Tensor | None = None, embedding: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """With a size head there are two outputs, the second of which is the log of the expected |x - x_init|."""
        (height, width), dtype = images[0].shape[-2:], self.stem.weight.dtype
        rows, columns = -height % self.stride, -width % self.stride
        inputs = [extended(image, rows, columns) for image in images]
        if noisy is not None:
            inputs.insert(0, extended(noisy, rows, columns, is_noise=True))
        x = torch.cat(inputs, dim=1).to(dtype)
        h = self.stem(F.pixel_unshuffle(x, self.unshuffle))  # (N, c, H / k, W / k)
        h = self.trunk(h, None if embedding is None else embedding.to(dtype))
        if self.log_size is None:
            return F.pixel_shuffle(self.head(h), self.unshuffle)[..., :height, :width]
        if torch.onnx.is_in_onnx_export():  # one output, of one convolution: engines would copy images to join two
            heads = (self.head, self.log_size.conv)
            weight, bias = torch.cat([head.weight for head in heads]), torch.cat([head.bias for head in heads])
            out = F.pixel_shuffle(F.conv2d(h, weight, bias, padding=1), self.unshuffle).float()
            return out[..., :height, :width]
        image = F.pixel_shuffle(self.head(h), self.unshuffle)
        return image[..., :height, :width], self.log_size(h)[..., :height, :width]


class NoiseLevelEmbedding(nn.Module):
    """Sines and cosines of the log-SNR, then two dense layers. (N,) -> (N, channels).

    WaveGrad and SR3 embed sqrt(alpha_bar). log-SNR resolves the nearly clean end and the nearly pure-noise end equally
    well, which a v-predicting network needs.
    """

    def __init__(self, channels: int):
        super().__init__()
        # Periods from 2 pi / 8 to 2 pi * 8 over a log-SNR range of about [-14, 14].
        frequencies = torch.logspace(3, -3, channels // 2, base=2)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.dense1 = nn.Linear(2 * len(frequencies), 4 * channels)
        self.dense2 = nn.Linear(4 * channels, channels)

    def forward(self, alpha_bar: Tensor) -> Tensor:
        a = alpha_bar.float().clamp(1e-6, 1 - 1e-6)
        angles = (a / (1 - a)).log()[:, None] * self.frequencies.float()
        features = torch.cat([angles.sin(), angles.cos()], dim=1).to(self.dense1.weight.dtype)
        return self.dense2(F.silu(self.dense1(features)))
