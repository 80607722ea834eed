"""LPIPS, as a metric and as a loss, DISTS, and NIQE, which needs no ground truth.

LPIPS and DISTS are distances between features of networks trained on ImageNet. The networks are those of the `lpips`
package and of torchmetrics. The code around them is own: it rounds images as a file would, keeps float32, loads weights
without unpickling, and puts their hash into the recipe. AlexNet's and SqueezeNet's weights come with the repository
(pretrained/metrics). VGG16's, for DISTS, come from torchvision's cache or a download; without them the metric is
missing.

NIQE (Mittal et al. 2013, "Making a Completely Blind Image Quality Analyzer") takes features of natural scenes from
blocks of the image, and compares their Gaussian with that of sharp photographs.
"""

import hashlib
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import lpips
import numpy as np
import scipy
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from scipy.ndimage import gaussian_filter
from scipy.special import gamma
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from deblur.evaluation.pixels import IMAGE, MetricError, check_pair, full_precision, require_finite, whole_numbers

Net = Literal["alex", "squeeze"]
_WEIGHTS = Path(__file__).parents[1] / "pretrained" / "metrics"
# Name, file of its feature layers, and the smallest side for which the last pooling layer outputs one pixel.
_NETS = {"alex": ("AlexNet", "alexnet_features", 31), "squeeze": ("SqueezeNet", "squeezenet1_1_features", 17)}
BLOCK_SIDE = 96  # of NIQE, in pixels
NIQE_RECIPE = (
    "NIQE: RGB, clipped to [0, 1], rounded to 8 bits, grey by ITU-R BT.601, rounded; 96 x 96 blocks from the top left, "
    "the rest of a frame left out; two scales, the second half as large by an antialiased bicubic filter; the authors' "
    f"mean and covariance of sharp photographs; own code on scipy {scipy.__version__}"
)
_LUMA = torch.tensor([0.299, 0.587, 0.114])
_SHAPES = np.arange(0.2, 10.001, 0.001)  # of NIQE's generalised Gaussian, and the ratio of moments that tells each
_RATIOS = gamma(2 / _SHAPES) ** 2 / (gamma(1 / _SHAPES) * gamma(3 / _SHAPES))


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
        whole, truth = check_pair(restored, sharp, "LPIPS", self.least_side)
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
        restored, sharp = check_pair(restored, sharp, "DISTS", 16)
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


class Niqe:
    """NIQE of restored images, lower is better; called as `evaluation.metrics.Metric`."""

    recipe, inputs = NIQE_RECIPE, ("restored",)

    def __init__(self):
        # The mean (36,) and the covariance (36, 36) of sharp photographs.
        with np.load(_WEIGHTS / "niqe.npz", allow_pickle=False) as stored:
            self.mean, self.covariance = stored["mean"], stored["covariance"]

    @torch.no_grad()
    def __call__(self, restored: Tensor) -> Tensor:
        """Score each image (N, 3, H, W), about [0, 1], by the recipe -> (N,).

        Raises:
            MetricError: an image has fewer than two blocks, or too few with any contrast.
        """
        require_finite(restored)
        height, width = (side // BLOCK_SIDE * BLOCK_SIDE for side in restored.shape[-2:])
        if height * width < 2 * BLOCK_SIDE**2:
            raise MetricError(
                f"NIQE needs two blocks of {BLOCK_SIDE}x{BLOCK_SIDE} pixels and the image is "
                f"{restored.shape[-1]}x{restored.shape[-2]}"
            )
        whole = whole_numbers(restored)[..., :height, :width].cpu()
        greys = torch.einsum("c,nchw->nhw", _LUMA, whole).round().double().numpy()
        return torch.tensor([self._distance(grey) for grey in greys], device=restored.device)

    def _distance(self, grey: np.ndarray) -> float:
        """The paper's equation 10."""
        features = np.hstack([block_features(grey, BLOCK_SIDE), block_features(halved(grey), BLOCK_SIDE // 2)])
        features = features[np.isfinite(features).all(axis=1)]  # a block of one grey has no structure
        if len(features) < 2:
            raise MetricError("NIQE needs two blocks that are not flat")
        gap = self.mean - features.mean(axis=0)
        pooled = (self.covariance + np.cov(features, rowvar=False)) / 2
        return float(np.sqrt(gap @ np.linalg.pinv(pooled) @ gap))


def halved(grey: np.ndarray) -> np.ndarray:
    """(H, W) -> (H / 2, W / 2) by an antialiased bicubic filter with a mirrored edge, as MATLAB's imresize."""
    mirrored = torch.from_numpy(np.pad(grey, 8, mode="symmetric"))[None, None]
    return F.interpolate(mirrored, scale_factor=0.5, mode="bicubic", antialias=True)[0, 0, 4:-4, 4:-4].numpy()


def block_features(grey: np.ndarray, side: int) -> np.ndarray:
    """The 18 features of each block: grey values (H, W) in [0, 255] -> (blocks, 18).

    Shape and size of the normalised luminance's generalised Gaussian, then shape, mean and the two sizes of those of
    its products with its neighbours: to the right, below, and on both diagonals.
    """
    options = {"sigma": 7 / 6, "radius": 3, "mode": "nearest"}
    mean = gaussian_filter(grey, **options)
    deviation = np.sqrt(np.abs(gaussian_filter(grey**2, **options) - mean**2))
    structure = (grey - mean) / (deviation + 1)  # equation 1
    rows, columns = (length // side for length in grey.shape)
    blocks = structure.reshape(rows, side, columns, side).swapaxes(1, 2).reshape(-1, side, side)
    shape, left, right = fit_gaussian(blocks)
    features = [shape, (left + right) / 2]
    for shift in ((0, 1), (1, 0), (1, 1), (1, -1)):
        shape, left, right = fit_gaussian(blocks * np.roll(blocks, shift, axis=(1, 2)))
        features += [shape, (right - left) * gamma(2 / shape) / gamma(1 / shape), left, right]
    return np.stack(features, axis=1)


def fit_gaussian(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shape and both sizes of an asymmetric generalised Gaussian, by its moments: (B, S, S) -> three (B,)."""
    flat = blocks.reshape(len(blocks), -1)
    with np.errstate(invalid="ignore", divide="ignore"):  # in a flat block, which the caller leaves out
        left, right = (np.sqrt((flat**2 * side).sum(axis=1) / side.sum(axis=1)) for side in (flat < 0, flat > 0))
        skew = left / right
        ratio = np.abs(flat).mean(axis=1) ** 2 / (flat**2).mean(axis=1)
        ratio = ratio * (skew**3 + 1) * (skew + 1) / (skew**2 + 1) ** 2
    shape = _SHAPES[np.abs(_RATIOS - np.nan_to_num(ratio)[:, None]).argmin(axis=1)]
    size = np.sqrt(gamma(1 / shape) / gamma(3 / shape))
    return shape, left * size, right * size
