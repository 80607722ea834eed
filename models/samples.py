"""Restored images from samples of the residual: blended with the prediction, collected per setting, and checked."""

import torch
from torch import Tensor

from models.diffusion import add_residual
from models.settings import SamplingSettings

COLOUR_DRIFT = 2 / 255  # largest accepted difference between a channel's mean in the sample and in the prediction
RISE = 1.2  # from the largest mean expected error of an image that is left alone to that of one that is fully refined


def blended(x_init: Tensor, r_0: Tensor, s: Tensor, blend: float, in_place: bool = False) -> Tensor:
    """The restored images (N, 3, H, W) in [0, 1]: x_init + blend s r_0, clipped. Blend 0 gives the prediction.

    Args:
        x_init: the prediction in [-1, 1].
        r_0: a sample of the scaled residual.
        s: its scale (N, 1, H, W).
        blend: from 0 to 1.
        in_place: overwrite r_0, which saves one tensor.
    """
    return to_world(add_residual(x_init, r_0.mul_(blend) if in_place else r_0 * blend, s))


def refined_share(expected_error: Tensor | None, keep_sharp: float) -> Tensor | float:
    """The factor on each image's blend (N, 1, 1, 1): 0 for a sharp image, which keeps its prediction, 1 for a blurry.

    It rises from 0 to 1 while the mean expected error rises from `keep_sharp` to RISE times as much. A perceptual
    refiner adds detail everywhere, and a sharp photograph must stay as it is.

    Args:
        expected_error: the predictor's own estimate of |x - x_init| (N, 1, H, W), in units of the [0, 1] range.
        keep_sharp: mean expected error in 8-bit levels; 0: every image is refined.

    Raises:
        ValueError: the predictor has no size head, so nothing is expected.
    """
    if keep_sharp == 0:
        return 1.0
    if expected_error is None:
        raise ValueError("keep_sharp needs a predictor with a size head, and this checkpoint's has none: leave it at 0")
    levels = 255 * expected_error.mean((1, 2, 3), keepdim=True)
    return ((levels / keep_sharp - 1) / (RISE - 1)).clamp(0, 1)


class Samples:
    """Collects the images of one setting from samples added one by one, each (N, 3, H, W) in [0, 1]."""

    def __init__(self, setting: SamplingSettings):
        self.setting, self.kept, self.count, self.mean, self.squares = setting, [], 0, None, None

    def add(self, x: Tensor) -> None:
        """Add the next sample. Mean and standard deviation are running ones (Welford 1962)."""
        if self.setting.num_samples == 1 or not self.setting.average:
            self.kept.append(x)
        if self.setting.num_samples > 1:
            if self.mean is None:
                self.mean, self.squares = torch.zeros_like(x), torch.zeros_like(x)
            self.count += 1
            difference = x - self.mean
            self.mean.add_(difference, alpha=1 / self.count)
            self.squares.addcmul_(difference, x - self.mean)

    def images(self) -> Tensor:
        """(N * num_samples, 3, H, W), with the samples of one image in a row; (N, 3, H, W) if averaged."""
        if len(self.kept) > 1:
            return torch.stack(self.kept, dim=1).flatten(0, 1)
        return self.kept[0] if self.kept else self.mean

    def std(self) -> Tensor | None:
        """Standard deviation over the samples (N, 3, H, W); None for one sample."""
        return (self.squares / (self.count - 1)).sqrt() if self.count > 1 else None


def faults(sample: Tensor, prediction: Tensor, blurry: Tensor) -> list[str]:
    """Sentences that say if the sample is less sharp than the input, or its colours drifted from the prediction's.

    Args:
        sample, prediction: (3, H, W) in [0, 1].
        blurry: (3, H, W), uint8 or uint16.
    """
    found = []
    if _sharpness(sample) < _sharpness(blurry, torch.iinfo(blurry.dtype).max):
        found.append("the sample is less sharp than the input")
    drift = (sample.mean(dim=(1, 2)) - prediction.mean(dim=(1, 2))).abs().max().item()
    if drift > COLOUR_DRIFT:
        found.append(f"the sample's mean colour is {255 * drift:.1f} levels away from the prediction's")
    return found


def _sharpness(x: Tensor, levels: float = 1.0) -> float:
    """Mean absolute gradient, computed channel by channel to save memory on large photographs."""
    sums = [c.diff(dim=0).abs().sum() + c.diff(dim=1).abs().sum() for c in (channel.float() for channel in x)]
    return sum(sums).item() / levels / x.numel()


def to_network(x: Tensor) -> Tensor:
    """[0, 1] -> [-1, 1]."""
    return (x * 2).sub_(1)


def to_world(x: Tensor) -> Tensor:
    """[-1, 1] -> [0, 1], clipped."""
    return (x + 1).div_(2).clamp_(0, 1)
