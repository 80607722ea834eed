"""NIQE (Mittal et al. 2013, "Making a Completely Blind Image Quality Analyzer"): a score without a ground truth.

Features of natural scenes are taken from blocks of the image, and their Gaussian is compared with that of sharp
photographs, whose mean and covariance come with the repository (pretrained/metrics).
"""

from pathlib import Path

import numpy as np
import scipy
import torch
import torch.nn.functional as F
from scipy.ndimage import gaussian_filter
from scipy.special import gamma
from torch import Tensor

from deblur.evaluation.pixels import MetricError, require_finite, whole_numbers

PRISTINE = Path(__file__).parents[1] / "pretrained" / "metrics" / "niqe.npz"  # mean (36,) and covariance (36, 36)
SIDE = 96  # of a block, in pixels
RECIPE = (
    "NIQE: RGB, clipped to [0, 1], rounded to 8 bits, grey by ITU-R BT.601, rounded; 96 x 96 blocks from the top left, "
    "the rest of a frame left out; two scales, the second half as large by an antialiased bicubic filter; the authors' "
    f"mean and covariance of sharp photographs; own code on scipy {scipy.__version__}"
)
_LUMA = torch.tensor([0.299, 0.587, 0.114])
_SHAPES = np.arange(0.2, 10.001, 0.001)  # of the generalised Gaussian, and the ratio of moments that tells each
_RATIOS = gamma(2 / _SHAPES) ** 2 / (gamma(1 / _SHAPES) * gamma(3 / _SHAPES))


class Niqe:
    """NIQE of restored images, lower is better; called as `evaluation.metrics.Metric`."""

    recipe, inputs = RECIPE, ("restored",)

    def __init__(self):
        with np.load(PRISTINE, allow_pickle=False) as stored:
            self.mean, self.covariance = stored["mean"], stored["covariance"]

    @torch.no_grad()
    def __call__(self, restored: Tensor) -> Tensor:
        """Score each image (N, 3, H, W), about [0, 1], by the recipe -> (N,).

        Raises:
            MetricError: an image has fewer than two blocks, or too few with any contrast.
        """
        require_finite(restored)
        height, width = (side // SIDE * SIDE for side in restored.shape[-2:])
        if height * width < 2 * SIDE**2:
            raise MetricError(
                f"NIQE needs two blocks of {SIDE}x{SIDE} pixels and the image is "
                f"{restored.shape[-1]}x{restored.shape[-2]}"
            )
        whole = whole_numbers(restored)[..., :height, :width].cpu()
        greys = torch.einsum("c,nchw->nhw", _LUMA, whole).round().double().numpy()
        return torch.tensor([self._distance(grey) for grey in greys], device=restored.device)

    def _distance(self, grey: np.ndarray) -> float:
        """The paper's equation 10."""
        features = np.hstack([block_features(grey, SIDE), block_features(half(grey), SIDE // 2)])
        features = features[np.isfinite(features).all(axis=1)]  # a block of one grey has no structure
        if len(features) < 2:
            raise MetricError("NIQE needs two blocks that are not flat")
        gap = self.mean - features.mean(axis=0)
        pooled = (self.covariance + np.cov(features, rowvar=False)) / 2
        return float(np.sqrt(gap @ np.linalg.pinv(pooled) @ gap))


def half(grey: np.ndarray) -> np.ndarray:
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
    shape, left, right = fit(blocks)
    features = [shape, (left + right) / 2]
    for shift in ((0, 1), (1, 0), (1, 1), (1, -1)):
        shape, left, right = fit(blocks * np.roll(blocks, shift, axis=(1, 2)))
        features += [shape, (right - left) * gamma(2 / shape) / gamma(1 / shape), left, right]
    return np.stack(features, axis=1)


def fit(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
