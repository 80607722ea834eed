"""Augmentation of training pairs beyond crops and symmetries, batched on the device; both images stay aligned."""

import torch
from torch import Generator, Tensor


class Augment:
    """Augment (blurry, sharp) batches in [0, 1], both alike. Every part is off by default.

    Args:
        exposure: largest change in stops: file values are multiplied by 2^u, u uniform in +-exposure.
        saturation: largest change of saturation: distances from grey are multiplied by 1 + u.
        white_balance: largest change of each channel, which is multiplied by 1 + u.
        cutblur: probability that a random rectangle of the blurry image, or everything outside it, is replaced by the
            sharp image (Yoo et al., "Rethinking data augmentation for image super-resolution", CVPR 2020). It teaches
            the network to leave sharp regions alone.
    """

    def __init__(
        self,
        exposure: float = 0.0,
        saturation: float = 0.0,
        white_balance: float = 0.0,
        cutblur: float = 0.0,
    ):
        for name, value, top in (
            ("exposure", exposure, 4),
            ("saturation", saturation, 1),
            ("white_balance", white_balance, 0.5),
            ("cutblur", cutblur, 1),
        ):
            if not 0 <= value <= top:
                raise ValueError(f"Augment's {name} must be from 0 to {top}, not {value}.")
        self.exposure, self.saturation, self.white_balance = exposure, saturation, white_balance
        self.cutblur = cutblur

    def __call__(self, blurry: Tensor, sharp: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Augment (N, 3, H, W) pairs with one CPU generator; the results are new tensors in [0, 1]."""
        count, _, height, width = sharp.shape
        draws = torch.rand(count, 11, generator=generator)
        stops, colour, channels = (2 * draws[:, :5] - 1).split([1, 1, 3], dim=1)
        gain = 2 ** (self.exposure * stops) * (1 + self.white_balance * channels)  # (N, 3)
        gain, colour = (t.to(sharp.device)[:, :, None, None] for t in (gain, 1 + self.saturation * colour))
        pair = []
        for side in (blurry, sharp):
            if self.saturation:
                grey = side.mean(1, keepdim=True)
                side = grey + colour * (side - grey)
            pair.append((side * gain).clamp(0, 1))
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
