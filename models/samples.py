"""The images that samples of the residual make: blended with the prediction, and gathered by setting."""

import torch
from torch import Tensor

from models.diffusion import add_residual
from models.settings import SamplingSettings


def blended(x_init: Tensor, r_0: Tensor, s: Tensor, blend: float | Tensor, in_place: bool = False) -> Tensor:
    """The restored images (N, 3, H, W) in [0, 1], clipped: x_init + s blend r_0. With blend 0 they are the prediction.

    Args:
        x_init: the prediction in [-1, 1].
        r_0: a sample of the scaled residual.
        s: its scale (N, 1, H, W).
        blend: a number from 0 to 1, or a map of them (H, W).
        in_place: r_0 may be overwritten, for a tensor less.
    """
    return to_world(add_residual(x_init, r_0.mul_(blend) if in_place else r_0 * blend, s))


class Samples:
    """The images of one setting out of samples that come one by one, each (N, 3, H, W) in [0, 1]."""

    def __init__(self, setting: SamplingSettings):
        self.setting, self.kept, self.moments = setting, [], _Moments()

    def add(self, x: Tensor) -> None:
        """Take the next sample."""
        if self.setting.num_samples > 1:
            self.moments.add(x)
        if self.setting.num_samples == 1 or not self.setting.average:
            self.kept.append(x)

    def images(self) -> Tensor:
        """(N * num_samples, 3, H, W), all samples of the first image first; (N, 3, H, W) if averaged."""
        if len(self.kept) > 1:
            return torch.stack(self.kept, dim=1).flatten(0, 1)
        return self.kept[0] if self.kept else self.moments.mean

    def std(self) -> Tensor | None:
        """Standard deviation over the samples (N, 3, H, W); None for one sample."""
        return self.moments.std() if self.setting.num_samples > 1 else None


class _Moments:
    """Mean and standard deviation of images that come one by one (Welford 1962)."""

    def __init__(self):
        self.count, self.mean, self.squares = 0, None, None

    def add(self, x: Tensor) -> None:
        if self.mean is None:
            self.mean, self.squares = torch.zeros_like(x), torch.zeros_like(x)
        self.count += 1
        difference = x - self.mean
        self.mean.add_(difference, alpha=1 / self.count)
        self.squares.addcmul_(difference, x - self.mean)

    def std(self) -> Tensor:
        return (self.squares / (self.count - 1)).sqrt()


def to_world(x: Tensor) -> Tensor:
    """[-1, 1] -> [0, 1], clipped."""
    return (x + 1).div_(2).clamp_(0, 1)
