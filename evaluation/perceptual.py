"""LPIPS, the distance between features of a network trained on ImageNet, as a metric and as a loss.

The network is the `lpips` package's. The code around it is own: it rounds images as a file would, keeps float32, loads
weights without unpickling or a download, and puts their hash into the recipe.
AlexNet's and SqueezeNet's weights come with the repository (pretrained/metrics), VGG16's from torchvision's cache or a
download. Without weights the metric is missing.
"""

import importlib.metadata
import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from evaluation.backbones import FeatureDistance, SkippedInitialisation, in_words, sha256
from evaluation.pixels import IMAGE, MetricError


@dataclass(frozen=True)
class _Backbone:
    """A torchvision classifier whose feature layers a metric uses."""

    name: str
    builder: str
    least_side: int  # the smallest side for which the last pooling layer outputs one pixel
    shipped: Path | None = None  # its feature layers, if they come with the repository


_SHIPPED = Path(__file__).parents[1] / "pretrained" / "metrics"
_ALEXNET = _Backbone("AlexNet", "alexnet", 31, _SHIPPED / "alexnet_features.safetensors")
_SQUEEZENET = _Backbone("SqueezeNet", "squeezenet1_1", 17, _SHIPPED / "squeezenet1_1_features.safetensors")
_VGG16 = _Backbone("VGG16", "vgg16", 16)
_NETS = {"alex": _ALEXNET, "squeeze": _SQUEEZENET, "vgg": _VGG16}
Net = Literal["alex", "squeeze", "vgg"]


class Lpips(FeatureDistance):
    """LPIPS (Zhang et al. 2018), version 0.1, from the `lpips` package.

    The recipe has the sha256 of the feature layers as one safetensors file.

    Args:
        net: AlexNet, SqueezeNet or VGG16, which give different numbers.
    """

    title, low = "LPIPS", -1.0

    def __init__(self, net: Net = "alex"):
        backbone = _NETS[net]
        self.least_side = backbone.least_side
        state = _state(backbone)
        if isinstance(state, str):
            self.reason = state
            return

        import lpips  # takes seconds to import, and only this metric needs it

        with warnings.catch_warnings(), SkippedInitialisation():
            warnings.simplefilter("ignore", UserWarning)  # lpips uses torchvision's arguments from before 0.13
            network = lpips.LPIPS(net=net, version="0.1", pnet_rand=True, verbose=False)
        # lpips stores feature layer 3 of torchvision as `slice2.3`.
        slices = {"features." + key.split(".", 1)[1]: key for key in network.net.state_dict()}
        features = {name: state[name].float().contiguous() for name in slices}
        network.net.load_state_dict({slices[name]: weight for name, weight in features.items()})
        self.network = network.requires_grad_(False).eval()
        self.recipe = (
            f"LPIPS: {IMAGE}, then scaled to [-1, 1]; {backbone.name}, version 0.1, backbone sha256 "
            f"{sha256(features)}; lpips {importlib.metadata.version('lpips')}"
        )


class PerceptualLoss:
    """LPIPS as a term of a loss, for `perceptual` in a config of train.py. It has no trained parameters.

    Args:
        weight: of the term.
        net: as for `Lpips`. The score `val/lpips` uses AlexNet, so with `squeeze` it stays independent of the loss.

    Raises:
        MetricError: the weights are not available.
    """

    def __init__(self, weight: float = 0.1, net: Net = "alex"):
        self._lpips, self.weight, self.net = Lpips(net), weight, net
        if self._lpips.reason is not None:
            raise MetricError(self._lpips.reason)

    def __repr__(self) -> str:
        """The description that is stored in a checkpoint and compared when a run is resumed."""
        return f"{self.weight:g} LPIPS ({self.net})"

    def __call__(self, x_init: Tensor, sharp: Tensor) -> Tensor:
        """weight * LPIPS, averaged over the batch; differentiable, in float32. (N, 3, H, W) in [-1, 1] -> scalar."""
        network = self._lpips.network.to(sharp.device)
        with torch.autocast(sharp.device.type, enabled=False):
            return self.weight * network(x_init.float(), sharp.float()).mean()


def _state(backbone: _Backbone) -> dict[str, Tensor] | str:
    """The tensors of the file in the repository, or of torchvision's cache or download; or why there are none."""
    if backbone.shipped is not None and backbone.shipped.is_file():
        return load_file(backbone.shipped)

    from torchvision.models import get_model_weights

    weights = get_model_weights(backbone.builder).IMAGENET1K_V1
    try:
        return weights.get_state_dict(progress=True, check_hash=True, weights_only=True)
    except Exception as error:
        return (
            f"LPIPS is missing: {backbone.name}'s weights could not be loaded ({in_words(error)}); put torchvision's "
            f"{Path(weights.url).name} into {torch.hub.get_dir()}/checkpoints."
        )
