"""What is wrong with a sample, as far as the input and the prediction tell."""

import torch
from torch import Tensor

COLOUR_DRIFT = 2 / 255  # the most that the mean of a colour channel may move away from the prediction's


def faults(sample: Tensor, prediction: Tensor, blurry: Tensor) -> list[str]:
    """Sentences: the sample is less sharp than the input, or its colours drifted from the prediction's.

    Args:
        sample, prediction: (3, H, W) in [0, 1].
        blurry: (3, H, W) of uint8 or uint16.
    """
    found = []
    if _sharpness(sample) < _sharpness(blurry, torch.iinfo(blurry.dtype).max):
        found.append("the sample is less sharp than the input")
    drift = (sample.mean(dim=(1, 2)) - prediction.mean(dim=(1, 2))).abs().max().item()
    if drift > COLOUR_DRIFT:
        found.append(f"the sample's mean colour is {255 * drift:.1f} levels away from the prediction's")
    return found


def _sharpness(x: Tensor, levels: float = 1.0) -> float:
    """Mean size of the gradient; channel by channel, since a photo may be large."""
    sums = [c.diff(dim=0).abs().sum() + c.diff(dim=1).abs().sum() for c in (channel.float() for channel in x)]
    return sum(sums).item() / levels / x.numel()
