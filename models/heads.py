"""What predictors share, their optional estimate of their own error, and predictors without weights."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.parts import ConfigMixin, ModelMixin, register_to_config


class Predictor(ModelMixin, ConfigMixin):
    """A predictor g: a blurry image (N, 3, H, W) in [-1, 1] -> x_init.

    Attributes:
        receptive_field: pixels that an output sees in each direction, for exact tiles; None if it is most of an image.
        stride: tiles start at multiples of it.
    """

    receptive_field: int | None = None
    stride: int = 1

    def estimates(self, blurry: Tensor) -> list[Tensor]:
        """The outputs to supervise in training, the one of `forward` first."""
        return [self(blurry)]


class SizeHead(nn.Module):
    """Features (N, C, h, w) -> log of the expected |x - x_init| (N, 1, k h, k w), float32; no gradient to the features.

    It starts at 0.02 everywhere, about the error of a good prediction in [-1, 1].
    """

    def __init__(self, channels: int, unshuffle: int):
        super().__init__()
        self.unshuffle = unshuffle
        self.conv = nn.Conv2d(channels, unshuffle**2, 3, padding=1)
        nn.init.zeros_(self.conv.weight)
        nn.init.constant_(self.conv.bias, math.log(0.02))

    def forward(self, features: Tensor) -> Tensor:
        return F.pixel_shuffle(self.conv(features.detach()), self.unshuffle).float()


class IdentityPredictor(Predictor):
    """For ablation, x_init = y: the denoiser samples the difference between the sharp and the blurry image."""

    receptive_field, stride = 0, 1

    @register_to_config
    def __init__(self):
        super().__init__()
        self.register_buffer("_place", torch.empty(0), persistent=False)  # lets diffusers find the device

    def forward(self, blurry: Tensor) -> Tensor:
        """(N, 3, H, W) in [-1, 1] -> the same."""
        return blurry.float()


class ZeroPredictor(IdentityPredictor):
    """For ablation, x_init = 0 (mid grey): the denoiser samples the whole image, as SR3's conditional DDPM does."""

    def forward(self, blurry: Tensor) -> Tensor:
        """(N, 3, H, W) in [-1, 1] -> zeros of that shape."""
        return torch.zeros_like(blurry, dtype=torch.float32)
