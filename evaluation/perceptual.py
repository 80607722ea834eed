"""LPIPS, the distance between features of a network trained on ImageNet, as a metric and as a loss.

The network is the `lpips` package's. The code around it is own: it rounds images as a file would, keeps float32, loads
weights without unpickling or a download, and puts their hash into the recipe.
AlexNet's and SqueezeNet's weights come with the repository (pretrained/metrics), VGG16's from torchvision's cache or a
download. Any of them can be given as a file. Without weights the metric is missing.
"""

import importlib.metadata
import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from evaluation.backbones import FeatureDistance, SkippedInitialisation, in_words, read_backbone, sha256
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
        backbone: the network's feature layers on disk: torchvision's own .pth, or safetensors with the same names.
            None: those in pretrained/metrics, or torchvision's weights from its cache or a download if the network is
            not there. If that fails, too, the metric is missing.
        net: AlexNet, SqueezeNet or VGG16, which give different numbers.
        flag: the program's flag for such a file, which `reason` mentions.

    Raises:
        MetricError: `backbone` does not hold the network's feature layers; the message names the first key that
            differs.
    """

    title, low = "LPIPS", -1.0

    def __init__(self, backbone: str | Path | None = None, net: Net = "alex", flag: str | None = None):
        self._backbone = _NETS[net]
        self.least_side = self._backbone.least_side
        state = _state(self._backbone, backbone)
        if isinstance(state, str):
            shipped = self._backbone.shipped
            otherwise = f"as backbone, or put them into {shipped}" if shipped else "as backbone"
            self.reason = f"{state}; give them {f'with {flag} FILE' if flag else otherwise}."
            return

        import lpips  # takes seconds to import, and only this metric needs it

        with warnings.catch_warnings(), SkippedInitialisation():
            warnings.simplefilter("ignore", UserWarning)  # lpips uses torchvision's arguments from before 0.13
            network = lpips.LPIPS(net=net, version="0.1", pnet_rand=True, verbose=False)
        # lpips stores feature layer 3 of torchvision as `slice2.3`.
        slices = {"features." + key.split(".", 1)[1]: key for key in network.net.state_dict()}
        expected = {name: network.net.state_dict()[key] for name, key in slices.items()}
        features = _match(state, expected, self._backbone, backbone)
        network.net.load_state_dict({slices[name]: weight for name, weight in features.items()})
        self.network = network.requires_grad_(False).eval()
        self.recipe = (
            f"LPIPS: {IMAGE}, then scaled to [-1, 1]; {self._backbone.name}, version 0.1, backbone sha256 "
            f"{sha256(features)}; lpips {importlib.metadata.version('lpips')}"
        )


class PerceptualLoss:
    """LPIPS as a term of the predictor's loss, for `perceptual` in a config of train.py. It has no trained parameters.

    Args:
        backbone: the network's feature layers on disk, as for `Lpips`; None: those in pretrained/metrics for AlexNet
            and SqueezeNet, torchvision's for VGG16.
        weight: of the term.
        net: as for `Lpips`. The score `val/lpips` uses AlexNet, so with `squeeze` it stays independent of the loss.

    Raises:
        MetricError: the weights are not available, or `backbone` does not hold the network's feature layers.
    """

    def __init__(self, backbone: str | Path | None = None, weight: float = 0.1, net: Net = "alex"):
        self._lpips, self.weight, self.net = Lpips(backbone, net), weight, net
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


def _state(backbone: _Backbone, path: str | Path | None) -> dict[str, Tensor] | str:
    """The tensors of the given file, of the one in the repository, or of torchvision's cache or download.

    Without any of them, the reason as a sentence without its full stop.
    """
    if path is None and backbone.shipped is not None and backbone.shipped.is_file():
        path = backbone.shipped
    if path is not None:
        return read_backbone(path, "LPIPS", f"torchvision's {backbone.name} .pth or safetensors of its features")

    from torchvision.models import get_model_weights

    try:
        weights = get_model_weights(backbone.builder).IMAGENET1K_V1
        return weights.get_state_dict(progress=True, check_hash=True, weights_only=True)
    except Exception as error:
        return f"LPIPS is missing: {backbone.name}'s weights could not be loaded ({in_words(error)})"


def _match(
    state: dict[str, Tensor], expected: dict[str, Tensor], backbone: _Backbone, source: str | Path | None
) -> dict[str, Tensor]:
    """The tensors of `state` under the names of `expected`; MetricError names the first key that differs."""
    found = {key: value for key, value in state.items() if not key.startswith("classifier.")}
    for key in [*expected, *found]:
        if key not in found:
            difference = f"has no {key}"
        elif key not in expected:
            difference = f"holds {key}, which {backbone.name} does not have"
        elif found[key].shape != expected[key].shape:
            shapes = tuple(found[key].shape), tuple(expected[key].shape)
            difference = f"holds {key} of shape {shapes[0]} where {backbone.name} has {shapes[1]}"
        else:
            continue
        raise MetricError(f"{backbone.name} backbone {source or 'of torchvision'} {difference}.")
    return {key: found[key].float().contiguous() for key in expected}
