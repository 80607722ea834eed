"""What metrics that use a trained network share: its weights, and the distance of its features."""

import hashlib

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from evaluation.pixels import check_pair, full_precision, require_side


class SkippedInitialisation(TorchFunctionMode):
    """Skips the random initialisation of layers before weights are loaded.

    It takes 0.4 s for AlexNet and more for VGG16, and would change the random numbers of a training with the metric.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def sha256(tensors: dict[str, Tensor]) -> str:
    """The sha256 of a safetensors file with exactly these tensors."""
    return hashlib.sha256(save(tensors)).hexdigest()


def in_words(error: Exception) -> str:
    """Why weights could not be loaded: a download raises many types, some without a message."""
    return " ".join(str(error).split()) or type(error).__name__


class FeatureDistance:
    """The distance of a network's features, lower is better; called as `evaluation.metrics.Metric`.

    Attributes:
        network: of (restored, sharp), (N, 3, H, W) in the range from `low` to 1, to N distances.
        title, least_side: its name, and the smallest side of an image that it takes.
        recipe, reason: as in `Metric`.
    """

    inputs = "restored", "sharp"
    low = 0.0
    title: str
    least_side: int
    network: nn.Module
    recipe: str | None = None
    reason: str | None = None

    @torch.no_grad()
    def __call__(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """Distance of each image (N, 3, H, W), about [0, 1], to its ground truth; 0 for equal images."""
        restored, sharp = check_pair(restored, sharp)
        require_side(sharp, self.least_side, self.title)
        half = 255 / (1 - self.low)
        with full_precision():
            distances = self.network.to(sharp.device)(restored / half + self.low, sharp / half + self.low)
        return distances.reshape(len(sharp)).clone()
