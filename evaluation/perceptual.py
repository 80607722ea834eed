"""LPIPS, as a metric and as a loss, and DISTS: distances between features of networks trained on ImageNet.

The networks are those of the `lpips` package and of torchmetrics. The code around them is own: it rounds images as a
file would, keeps float32, loads weights without unpickling, and puts their hash into the recipe. AlexNet's and
SqueezeNet's weights come with the repository (pretrained/metrics). VGG16's, for DISTS, come from torchvision's cache or
a download; without them the metric is missing.
"""

import hashlib
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import lpips
import torch
from safetensors.torch import load_file, save
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from deblur.evaluation.pixels import IMAGE, MetricError, check_pair, full_precision, require_side

Net = Literal["alex", "squeeze"]
_WEIGHTS = Path(__file__).parents[1] / "pretrained" / "metrics"
# Name, file of its feature layers, and the smallest side for which the last pooling layer outputs one pixel.
_NETS = {"alex": ("AlexNet", "alexnet_features", 31), "squeeze": ("SqueezeNet", "squeezenet1_1_features", 17)}


class Lpips:
    """LPIPS (Zhang et al. 2018), version 0.1, with the networks and weights of the `lpips` package.

    It is called as `evaluation.metrics.Metric`. The features of a ground truth are computed once for all images that
    are compared with the same tensor, which must not be changed meanwhile.

    Args:
        net: AlexNet or SqueezeNet, which give different numbers.
    """

    inputs = "restored", "sharp"

    def __init__(self, net: Net = "alex"):
        name, file, self.least_side = _NETS[net]
        features = load_file(_WEIGHTS / f"{file}.safetensors")
        with warnings.catch_warnings(), SkippedInitialisation():
            warnings.simplefilter("ignore", UserWarning)  # lpips uses torchvision's arguments from before 0.13
            network = lpips.LPIPS(net=net, version="0.1", pnet_rand=True, verbose=False)
        # lpips stores feature layer 3 of torchvision as `slice2.3`.
        slices = {key: features["features." + key.split(".", 1)[1]] for key in network.net.state_dict()}
        network.net.load_state_dict(slices)
        self.network = network.requires_grad_(False).eval()
        self._known = WeakTensorKeyDictionary()  # ground truths that are still in use -> their features
        self.recipe = (
            f"LPIPS: {IMAGE}, then scaled to [-1, 1]; {name}, version 0.1, backbone sha256 {_sha256(features)}; "
            f"lpips {version('lpips')}"
        )

    @torch.no_grad()
    def __call__(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """Distance of each image (N, 3, H, W), about [0, 1], to its ground truth; 0 for equal images."""
        whole, truth = check_pair(restored, sharp)
        require_side(sharp, self.least_side, "LPIPS")
        self.network.to(sharp.device)
        with full_precision():
            features = self._features(whole)
            if sharp not in self._known:
                self._known[sharp] = self._features(truth)
            pairs = zip(self.network.lins, features, self._known[sharp], strict=True)
            # The paper's equation 1.
            return sum(lin((x - y) ** 2).mean((2, 3), keepdim=True) for lin, x, y in pairs).reshape(len(sharp))

    def _features(self, image: Tensor) -> list[Tensor]:
        """The normalised features of each layer, of images in 0..255."""
        layers = self.network.net(self.network.scaling_layer(image / 127.5 - 1))
        return [lpips.normalize_tensor(layer) for layer in layers]


class PerceptualLoss:
    """LPIPS as a term of a loss, for `image_loss` in a config of train.py. It has no trained parameters.

    Args:
        weight: of the term.
        net: as for `Lpips`. The score `val/lpips` uses AlexNet, so with `squeeze` it stays independent of the loss.
    """

    def __init__(self, weight: float = 0.1, net: Net = "alex"):
        self._lpips = Lpips(net)
        self.weight = weight
        self.net = net

    def __repr__(self) -> str:
        """The description that is stored in a checkpoint and compared when a run is resumed."""
        return f"{self.weight:g} LPIPS ({self.net})"

    def __call__(self, x_init: Tensor, sharp: Tensor) -> Tensor:
        """weight * LPIPS, averaged over the batch; differentiable, in float32. (N, 3, H, W) in [-1, 1] -> scalar."""
        network = self._lpips.network.to(sharp.device)
        with torch.autocast(sharp.device.type, enabled=False):
            return self.weight * network(x_init.float(), sharp.float()).mean()


class Dists:
    """DISTS (Ding et al. 2020), structure and texture similarity of VGG16's features, by torchmetrics.

    It is called as `evaluation.metrics.Metric`. MetricError without VGG16's weights.
    """

    inputs = "restored", "sharp"

    def __init__(self):
        from torchmetrics.functional.image.dists import DISTSNetwork  # slow to import, and only this metric needs it

        try:
            with SkippedInitialisation(), torch.random.fork_rng(devices=[]):
                self.network = DISTSNetwork().eval()
        except Exception as error:  # a download raises many types, some without a message
            why = " ".join(str(error).split()) or type(error).__name__
            raise MetricError(
                f"DISTS is missing: VGG16's weights could not be loaded ({why}); put torchvision's "
                f"vgg16-397923af.pth into {torch.hub.get_dir()}/checkpoints."
            ) from None
        weights = {name: weight.contiguous() for name, weight in self.network.state_dict().items()}
        self.recipe = (
            f"DISTS: {IMAGE}, not resized; VGG16, weights sha256 {_sha256(weights)}; "
            f"torchmetrics {version('torchmetrics')}"
        )

    @torch.no_grad()
    def __call__(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """Distance of each image (N, 3, H, W), about [0, 1], to its ground truth; 0 for equal images."""
        restored, sharp = check_pair(restored, sharp)
        require_side(sharp, 16, "DISTS")
        with full_precision():
            return self.network.to(sharp.device)(restored / 255, sharp / 255).reshape(len(sharp)).clone()


class SkippedInitialisation(TorchFunctionMode):
    """Skips the random initialisation of layers before weights are loaded.

    It takes 0.4 s for AlexNet and more for VGG16, and would change the random numbers of a training with the metric.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def _sha256(tensors: dict[str, Tensor]) -> str:
    """The sha256 of a safetensors file with exactly these tensors."""
    return hashlib.sha256(save(tensors)).hexdigest()
