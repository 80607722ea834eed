"""DISTS (Ding et al. 2020), structure and texture similarity of VGG16's features, by torchmetrics."""

import importlib.metadata

import torch

from evaluation.backbones import FeatureDistance, SkippedInitialisation, in_words, sha256
from evaluation.pixels import IMAGE


class Dists(FeatureDistance):
    """DISTS of restored images.

    VGG16's weights are torchvision's, from its cache or a download; without them the metric is missing.
    """

    title, least_side = "DISTS", 16

    def __init__(self):
        from torchmetrics.functional.image.dists import DISTSNetwork  # slow to import, and only this metric needs it

        try:
            with SkippedInitialisation(), torch.random.fork_rng(devices=[]):
                self.network = DISTSNetwork().eval()
        except Exception as error:
            self.reason = (
                f"DISTS is missing: VGG16's weights could not be loaded ({in_words(error)}); put torchvision's "
                f"vgg16-397923af.pth into {torch.hub.get_dir()}/checkpoints."
            )
            return
        weights = {name: weight.contiguous() for name, weight in self.network.state_dict().items()}
        self.recipe = (
            f"DISTS: {IMAGE}, not resized; VGG16, weights sha256 {sha256(weights)}; "
            f"torchmetrics {importlib.metadata.version('torchmetrics')}"
        )
