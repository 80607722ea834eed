"""Restored images from samples of the residual: blended with the prediction, collected per setting, and checked."""

import torch
from torch import Tensor

from deblur.models.diffusion import add_residual
from deblur.models.settings import SamplingSettings

COLOUR_DRIFT = 2 / 255  # largest accepted difference between a channel's mean in the sample and in the prediction
RISE = 2.2  # from the largest change of an image that is kept to the smallest of one that is fully restored


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


def restored_share(blurry: Tensor, x_init: Tensor, keep_sharp: float) -> Tensor:
    """The weight of each restored image over its input (N, 1, 1, 1): 0 for a sharp image, which stays as it is.

    It rises from 0 to 1 while the root mean square of x_init - blurry rises from `keep_sharp` to RISE times as much:
    what a predictor hardly changes was sharp, and is worse for it. Large even areas, which never change, weigh less in
    it than in a mean of sizes.

    Args:
        blurry: (N, 3, H, W) in [0, 1].
        x_init: the prediction in [-1, 1].
        keep_sharp: in 8-bit levels; 0: every image is restored in full.
    """
    if keep_sharp == 0:
        return blurry.new_ones((len(blurry), 1, 1, 1), dtype=torch.float32)
    # Channel by channel, which saves memory on large photographs.
    squares = [(to_world(x_init[:, c]) - blurry[:, c]).square_().mean((1, 2)) for c in range(3)]
    change = 255 * (sum(squares) / 3).sqrt()
    return ((change / keep_sharp - 1) / (RISE - 1)).clamp(0, 1).view(-1, 1, 1, 1)


def kept(x: Tensor, blurry: Tensor, share: Tensor) -> Tensor:
    """Restored images weighted by `restored_share` against their inputs, all (N, 3, H, W) in [0, 1]; overwrites x."""
    return x if (share == 1).all() else torch.lerp(blurry.float(), x, share, out=x)


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


def sharp_remarks(share: Tensor) -> list[str]:
    """A sentence that says if one image's `restored_share` (1, 1, 1, 1) is not whole, since it looks sharp."""
    if (amount := share.item()) == 1:
        return []
    result = f"nearly sharp, and is restored by {amount:.0%}" if amount else "sharp already, and is kept as it is"
    return [f"looks {result} (keep_sharp)"]


def faults(sample: Tensor, prediction: Tensor, blurry: Tensor) -> list[str]:
    """Sentences that say if the sample is less sharp than the input, its colours drifted, or it is no image.

    Args:
        sample, prediction: (3, H, W) in [0, 1].
        blurry: (3, H, W), uint8 or uint16.
    """
    if not sample.isfinite().all():
        return ["the sample has pixels that are no numbers"]
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
