"""Augmentation of training pairs beyond crops and symmetries, batched on the device, both sides kept aligned."""

import math

import torch
from kornia.filters import gaussian_blur2d
from torch import Generator, Tensor


class Augment:
    """Change (blurry, sharp) batches in [0, 1] alike; every part is off until it is asked for.

    Args:
        exposure: largest change in stops: light is multiplied by 2^u, u uniform in +-exposure, in the file's values.
        saturation: largest change of the colourfulness: distances from grey are multiplied by 1 + u.
        white_balance: largest change of each channel: multiplied by 1 + u.
        cutblur: probability that a random rectangle of the blurry picture is replaced by the sharp one, or all but
            that rectangle (Yoo et al., "Rethinking data augmentation for image super-resolution", CVPR 2020), which
            teaches to leave alone what is sharp.
        softness: largest standard deviation, in pixels, of a Gaussian over both sides of every second pair: frames of
            a video are softer than photographs that were made smaller, and must not be sharpened beyond their truth.
    """

    def __init__(
        self,
        exposure: float = 0.0,
        saturation: float = 0.0,
        white_balance: float = 0.0,
        cutblur: float = 0.0,
        softness: float = 0.0,
    ):
        for name, value, top in (
            ("exposure", exposure, 4),
            ("saturation", saturation, 1),
            ("white_balance", white_balance, 0.5),
            ("cutblur", cutblur, 1),
            ("softness", softness, 4),
        ):
            if not 0 <= value <= top:
                raise ValueError(f"Augment's {name} must be from 0 to {top}, not {value}.")
        self.exposure = exposure
        self.saturation = saturation
        self.white_balance = white_balance
        self.cutblur = cutblur
        self.softness = softness

    def __call__(self, blurry: Tensor, sharp: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Augment (N, 3, H, W) pairs with one CPU generator; the results are new tensors in [0, 1]."""
        count, _, height, width = sharp.shape
        draws = torch.rand(count, 11, generator=generator)
        stops, colour, channels = (2 * draws[:, :5] - 1).split([1, 1, 3], dim=1)
        gain = 2 ** (self.exposure * stops) * (1 + self.white_balance * channels)  # (N, 3)
        gain, colour = (t.to(sharp.device)[:, :, None, None] for t in (gain, 1 + self.saturation * colour))
        pair = []
        for pictures in (blurry, sharp):
            if self.saturation:
                grey = pictures.mean(1, keepdim=True)
                pictures = grey + colour * (pictures - grey)
            pair.append((pictures * gain).clamp(0, 1))
        if self.softness:
            sigma = self.softness * (2 * torch.rand(count, 1, generator=generator) - 1).clamp(min=0)
            pair = [self._soften(pictures, sigma.to(sharp.device)) for pictures in pair]
        blurry, sharp = pair
        used, inverse, top, left, tall, wide = draws[:, 5:].unbind(1)
        rows, columns = torch.arange(height) + 0.5, torch.arange(width) + 0.5

        def inside(place: Tensor, start: Tensor, share: Tensor, length: int) -> Tensor:
            size = (0.2 + 0.6 * share) * length
            begin = start * (length - size)
            return (place >= begin[:, None]) & (place < (begin + size)[:, None])  # (N, length)

        box = inside(rows, top, tall, height)[:, :, None] & inside(columns, left, wide, width)[:, None, :]
        box = (box ^ (inverse < 0.5)[:, None, None]) & (used < self.cutblur)[:, None, None]
        return torch.where(box[:, None].to(sharp.device), sharp, blurry), sharp

    def _soften(self, pictures: Tensor, sigma: Tensor) -> Tensor:
        """Blur every picture by its own sigma (N, 1); 0 leaves it as it is."""
        side = 2 * math.ceil(3 * self.softness) + 1
        soft = gaussian_blur2d(pictures, side, sigma.clamp(min=1e-3).expand(-1, 2))
        return torch.where(sigma[:, :, None, None] > 0, soft, pictures)
