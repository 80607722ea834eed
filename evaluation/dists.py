"""DISTS (Ding et al. 2020), structure and texture similarity of VGG16's features, by torchmetrics."""

import importlib.metadata

import torch
from torch import Tensor

from evaluation.backbones import SkippedInitialisation, sha256
from evaluation.pixels import IMAGE, check_pair, full_precision, require_side


class Dists:
    """DISTS of restored images, lower is better; `reason`, `recipe`, `inputs` as for `evaluation.metrics.Metric`.

    VGG16's weights are torchvision's, from its cache or a download; without them the metric is missing.
    """

    inputs = "restored", "sharp"

    def __init__(self):
        self.reason, self.recipe = None, None

        from torchmetrics.functional.image.dists import DISTSNetwork  # slow to import, and only this metric needs it

        try:
            with SkippedInitialisation(), torch.random.fork_rng(devices=[]):
                self.network = DISTSNetwork().eval()
        except Exception as error:  # a download raises many types, and torch.load any type on an incomplete file
            said = " ".join(str(error).split()) or type(error).__name__
            self.reason = (
                f"DISTS is missing: VGG16's weights could not be loaded ({said}); put torchvision's "
                f"vgg16-397923af.pth into {torch.hub.get_dir()}/checkpoints."
            )
            return
        weights = {name: weight.contiguous() for name, weight in self.network.state_dict().items()}
        self.recipe = (
            f"DISTS: {IMAGE}, not resized; VGG16, weights sha256 {sha256(weights)}; "
            f"torchmetrics {importlib.metadata.version('torchmetrics')}"
        )

    @torch.no_grad()
    def __call__(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """Distance of each image to its ground truth; 0 for equal images."""
        restored, sharp = check_pair(restored, sharp)
        require_side(sharp, 16, "DISTS")
        with full_precision():
            return self.network.to(sharp.device)(restored / 255, sharp / 255).reshape(len(sharp)).clone()
