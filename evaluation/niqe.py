"""NIQE (Mittal et al. 2013): how far a picture's local statistics are from those of pristine photographs.

Written after the paper and compared with the constants of its authors' MATLAB release; their model of pristine
photographs is a file of that release and is not part of this repository.
"""

import hashlib
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evaluation.fidelity import MetricError, require_finite, whole_numbers

_BLOCK = 96
_SHAPES = torch.arange(200, 10001, dtype=torch.float64) / 1000  # 0.2 to 10 in steps of 0.001
# The ratio E[|x|]^2 / E[x^2] of a generalised Gaussian, for each shape.
_RATIOS = torch.exp(2 * torch.lgamma(2 / _SHAPES) - torch.lgamma(1 / _SHAPES) - torch.lgamma(3 / _SHAPES))


class Niqe:
    """NIQE with a model of pristine photographs from a file. Looks at the restored picture alone.

    Args:
        model: `modelparameters.mat` of the authors' release, or an .npz file with the same numbers (as in BasicSR:
            mu_pris_param, cov_pris_param). None: the metric is missing, as there is nothing to download it from that
            proves to be theirs.

    Attributes:
        reason: None, or one sentence that says why there are no values.
        recipe: how the number is made, with the model's sha256; None where the metric is missing.

    Raises:
        MetricError: the file holds no such model.
    """

    def __init__(self, model: str | Path | None = None):
        self.reason, self.recipe = None, None
        if model is None:
            self.reason = (
                "NIQE is missing: it needs its authors' model of pristine photographs; give it with --niqe_model FILE "
                "(modelparameters.mat of their release, or BasicSR's niqe_pris_params.npz)."
            )
            return
        self.mean, self.covariance = _read_model(Path(model))
        numbers = np.concatenate([self.mean[None].numpy(), self.covariance.numpy()])
        self.recipe = (
            "NIQE: RGB, clipped to [0, 1], rounded to 8 bits, grey by 0.2989 R + 0.5870 G + 0.1140 B rounded to whole "
            f"numbers, cropped at the right and below to whole blocks of {_BLOCK} x {_BLOCK}, two scales, half size by "
            "bicubic averaging with the mirrored edge, as in the authors' MATLAB; model sha256 "
            f"{hashlib.sha256(numbers.astype('<f8').tobytes()).hexdigest()}; own code on torch {torch.__version__}"
        )

    @torch.no_grad()
    def __call__(self, restored: Tensor, sharp: Tensor | None = None) -> Tensor:
        """NIQE of each picture.

        Args:
            restored: (N, 3, H, W), about [0, 1].
            sharp: not looked at.

        Returns:
            (N,), lower is better; nan where a picture is too flat to have statistics.

        Raises:
            MetricError: the picture holds fewer than two blocks, a value is not finite, or the metric is missing.
        """
        if self.reason is not None:
            raise MetricError(self.reason)
        require_finite(restored)
        height, width = (side // _BLOCK for side in restored.shape[-2:])
        if height * width < 2:
            raise MetricError(
                f"NIQE needs two blocks of {_BLOCK}x{_BLOCK} pixels and the picture is "
                f"{restored.shape[-1]}x{restored.shape[-2]}"
            )
        pictures = whole_numbers(restored[..., : height * _BLOCK, : width * _BLOCK])
        # Variances of whole numbers need float64, which Apple's GPUs do not have.
        pictures = pictures.cpu().double() if pictures.device.type == "mps" else pictures.double()
        grey = torch.einsum("nchw,c->nhw", pictures, pictures.new_tensor([0.2989, 0.5870, 0.1140])).round()
        features = torch.cat([block_features(grey, _BLOCK), block_features(halve(grey), _BLOCK // 2)], dim=2)
        values = [self._distance(own) for own in features.cpu()]
        return torch.tensor(values, dtype=torch.float32, device=restored.device)

    def _distance(self, features: Tensor) -> float:
        """Equation 10 between the model and a picture's (blocks, 36) features."""
        whole = features[~features.isnan().any(1)]  # a flat block has no statistics
        if len(whole) < 2:
            return math.nan
        away = self.mean - features.nanmean(0)
        precision = torch.linalg.pinv((self.covariance + whole.T.cov()) / 2)
        return math.sqrt(away @ precision @ away)


def _read_model(path: Path) -> tuple[Tensor, Tensor]:
    try:
        if path.suffix == ".mat":
            from scipy.io import loadmat

            arrays = loadmat(path)
            mean, covariance = arrays["mu_prisparam"], arrays["cov_prisparam"]
        else:
            with np.load(path, allow_pickle=False) as arrays:
                mean, covariance = arrays["mu_pris_param"], arrays["cov_pris_param"]
        mean, covariance = torch.from_numpy(mean).double().flatten(), torch.from_numpy(covariance).double()
    except OSError as error:
        raise MetricError(f"NIQE model {path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # the readers raise many kinds on other files, and a key may be missing
        raise MetricError(
            f"NIQE model {path} is none: give modelparameters.mat of the authors' release, or BasicSR's "
            "niqe_pris_params.npz."
        ) from error
    if mean.shape != (36,) or covariance.shape != (36, 36):
        raise MetricError(f"NIQE model {path} must hold 36 means and 36 x 36 covariances.")
    return mean, covariance


def block_features(grey: Tensor, block: int) -> Tensor:
    """The 18 features of each block: (N, H, W) float64 in 0..255 -> (N, blocks, 18)."""
    offsets = torch.arange(-3.0, 4.0, dtype=grey.dtype, device=grey.device)
    window = torch.exp(-(offsets**2) / (2 * (7 / 6) ** 2))
    window = window / window.sum()
    padded = F.pad(torch.stack([grey, grey**2], dim=1), (3, 3, 3, 3), mode="replicate")
    weight = (window[:, None] * window).expand(2, 1, 7, 7)
    mean, power = F.conv2d(padded, weight, groups=2).unbind(1)
    normalised = (grey - mean) / ((power - mean**2).abs().sqrt() + 1)  # eq. 1

    blocks = normalised.unfold(1, block, block).unfold(2, block, block).flatten(1, 2)  # (N, blocks, block, block)
    # eq. 7: products with the neighbour to the right, below, and on the two diagonals; a block's far side is its near.
    products = [blocks * blocks.roll(shift, (2, 3)) for shift in ((0, 1), (1, 0), (1, 1), (1, -1))]
    shape, left, right = fit_asymmetric(torch.stack([blocks, *products], dim=2).flatten(3))
    mean = (right - left) * torch.exp(torch.lgamma(2 / shape) - torch.lgamma(1 / shape))  # eq. 8
    of_products = torch.stack([shape, mean, left, right], dim=3)[:, :, 1:].flatten(2)
    return torch.cat([shape[..., :1], (left + right)[..., :1] / 2, of_products], dim=2)


def fit_asymmetric(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fit asymmetric generalised Gaussians by moments (Lasmar et al. 2009): (..., M) -> shape, left, right scale."""
    below = values.clamp(max=0).square().sum(-1) / (values < 0).sum(-1)
    above = values.clamp(min=0).square().sum(-1) / (values > 0).sum(-1)
    balance = (below / above).sqrt()
    ratio = values.abs().mean(-1).square() / values.square().mean(-1)
    ratio = ratio * (balance**3 + 1) * (balance + 1) / (balance**2 + 1).square()
    # The ratios rise with the shape: the nearest is on one of the two sides of where this one would stand.
    ratios, shapes = _RATIOS.to(values.device), _SHAPES.to(values.device)
    place = torch.searchsorted(ratios, ratio.contiguous()).clamp(1, len(ratios) - 1)
    nearer = (ratio - ratios[place - 1]) <= (ratios[place] - ratio)
    shape = shapes[place - nearer.long()]
    shape = torch.where(ratio.isnan(), torch.nan, shape)
    scale = torch.exp((torch.lgamma(1 / shape) - torch.lgamma(3 / shape)) / 2)
    return shape, below.sqrt() * scale, above.sqrt() * scale


def halve(grey: Tensor) -> Tensor:
    """Half size as in MATLAB, a bicubic kernel over eight pixels with the edge mirrored: (N, H, W), H and W even."""
    distance = torch.tensor([1.75, 1.25, 0.75, 0.25, 0.25, 0.75, 1.25, 1.75], dtype=grey.dtype, device=grey.device)
    near = 1.5 * distance**3 - 2.5 * distance**2 + 1
    far = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
    weight = torch.where(distance <= 1, near, far) / 2
    x = grey
    for _ in range(2):  # rows, then columns
        mirrored = torch.cat([x[..., :3].flip(-1), x, x[..., -3:].flip(-1)], dim=-1)
        x = (mirrored.unfold(-1, 8, 2) @ weight).transpose(1, 2)
    return x
