"""Detect faults of a sample by comparing it with the input and the prediction."""

import torch
from torch import Tensor

COLOUR_DRIFT = 2 / 255  # largest accepted difference between a channel's mean in the sample and in the prediction


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
