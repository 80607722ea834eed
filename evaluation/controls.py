"""Two controls without a denoiser, which a sampling setting must beat to count as perceptual, and the verdict on it.

LPIPS falls when a prediction is sharpened, or when a little noise is added where it differs from the input. So a
sample's LPIPS is informative only beside those of the sharpened and of the noised prediction at equal PSNR (`judge`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import kornia
import numpy as np
import torch
from torch import Tensor

from deblur.evaluation.grid import LABELS, NOISED, SHARPENED, STRENGTHS
from deblur.evaluation.pixels import full_precision
from deblur.evaluation.statistics import Estimate, estimates

_SIGMA, _KERNEL = 1.5, 13  # of the unsharp mask, in pixels; the kernel ends at four standard deviations
_WINDOW = 9  # side of the local mean, in pixels
_FLOOR = 1e-6  # makes the noise uniform if the prediction equals the blurry image
RECIPES = {
    SHARPENED: f"x + a (x - G x): x is the prediction, G a Gaussian of {_SIGMA} px, a the number in the row's name",
    NOISED: (
        f"x + n: x is the prediction, n Gaussian noise whose standard deviation is proportional to the {_WINDOW} x "
        f"{_WINDOW} mean of |x - blurry| over the channels, too; the root of its mean variance is the number in the "
        "row's name, in 8-bit levels; drawn from the seed and the image's name"
    ),
}
VERDICT_RECIPE = (
    "a setting is perceptual where the 95 % intervals of its LPIPS minus that of both controls at its own PSNR lie "
    "below 0, paired by image: yes; no where one lies at or above 0; unclear otherwise. A control's LPIPS at a PSNR is "
    "linear between its strengths, the lowest where its curve has that PSNR twice, and that of its highest PSNR where "
    "the setting's is higher"
)


def control_images(
    predictions: Tensor, blurry: Tensor, seed: int, names: Sequence[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yield every control of some images of one size as (label, images (N, 3, H, W), not clipped).

    Args:
        predictions: (N, 3, H, W) in [0, 1].
        blurry: (N, 3, H, W) in [0, 1].
        seed, names: determine the noise, which is the same field at every strength.
    """
    shape = noise_shape(predictions, blurry)
    drawn = [np.random.default_rng([seed, *name.encode("utf-8", "surrogateescape")]) for name in names]
    fields = [numbers.standard_normal(predictions.shape[1:], dtype=np.float32) for numbers in drawn]
    noise = torch.from_numpy(np.stack(fields)).to(predictions)
    for label, amount in zip(LABELS[SHARPENED], STRENGTHS[SHARPENED], strict=True):
        yield label, sharpen(predictions, amount)
    for label, level in zip(LABELS[NOISED], STRENGTHS[NOISED], strict=True):
        yield label, predictions + level / 255 * shape * noise


def sharpen(images: Tensor, amount: float) -> Tensor:
    """Unsharp mask: x + amount (x - G x), with G a Gaussian of 1.5 px and a repeated edge. (N, 3, H, W) -> the same."""
    with full_precision():
        blurred = kornia.filters.gaussian_blur2d(images, (_KERNEL,) * 2, (_SIGMA,) * 2, "replicate")
    return images + amount * (images - blurred)


def noise_shape(predictions: Tensor, blurry: Tensor) -> Tensor:
    """Local standard deviation of the noise, scaled to mean square 1: (N, 1, H, W), from images (N, 3, H, W).

    Proportional to the mean of |prediction - blurry| over 9 x 9 pixels and the channels, with a repeated edge; 1
    everywhere if the two are equal.
    """
    change = (predictions - blurry).abs().mean(1, keepdim=True)
    with full_precision():
        local = kornia.filters.box_blur(change, _WINDOW, "replicate") + _FLOOR
    return local / local.square().mean((1, 2, 3), keepdim=True).sqrt()


@dataclass(frozen=True)
class Verdict:
    """Whether a setting is perceptual.

    Attributes:
        perceptual: yes, no, unclear (too few images for the difference), or unknown (it cannot be decided).
        differences: control -> LPIPS of the setting minus the control's at equal PSNR; below 0 is better.
        missing: why `perceptual` is unknown.
    """

    perceptual: Literal["yes", "no", "unclear", "unknown"]
    differences: dict[str, Estimate]
    missing: str | None = None


def at_equal_psnr(psnr: float, curve: Sequence[tuple[float, float]]) -> float:
    """A control's LPIPS at a given PSNR.

    Args:
        psnr: in dB.
        curve: (PSNR, LPIPS) of one image at each strength, starting with 0.

    Returns:
        Linear interpolation between strengths; the lowest value if the curve has that PSNR twice. Above the highest
        PSNR of the curve, the LPIPS there, since no control comes closer. nan if a PSNR is not finite or is below the
        whole curve, where stronger controls would be needed.
    """
    points = np.array(curve, dtype=float)
    if not np.isfinite(points).all() or not np.isfinite(psnr):
        return float("nan")
    best = points[:, 0].argmax()
    if psnr >= points[best, 0]:
        return float(points[best, 1])
    crossings = []
    for (x0, y0), (x1, y1) in pairwise(points):
        if min(x0, x1) <= psnr <= max(x0, x1):
            share = (psnr - x0) / (x1 - x0) if x1 != x0 else np.array([0.0, 1.0])
            crossings.append(np.min(y0 + share * (y1 - y0)))
    return float(min(crossings, default=float("nan")))


def judge(
    scores: Sequence[tuple[float, float]], curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]], seed: int = 0
) -> Verdict:
    """Decide whether one setting is perceptual, by VERDICT_RECIPE.

    Args:
        scores: (PSNR, LPIPS) of the setting on each image.
        curves: control -> its curve for each of the same images, as in `at_equal_psnr`.
        seed: of the bootstrap.
    """
    gaps = np.array(
        [
            [lpips - at_equal_psnr(psnr, curve) for (psnr, lpips), curve in zip(scores, of_images, strict=True)]
            for of_images in curves.values()
        ]
    )
    off = int(np.isnan(gaps).any(axis=0).sum())
    if off:
        return Verdict("unknown", {}, f"there is no control at its PSNR for {off} of {len(scores)} images")
    differences = dict(zip(curves, estimates(gaps.T, seed), strict=True))
    if len(scores) < 2:
        return Verdict("unknown", differences, "a single image has no interval")
    if all(difference.high < 0 for difference in differences.values()):
        return Verdict("yes", differences)
    return Verdict("no" if any(difference.low >= 0 for difference in differences.values()) else "unclear", differences)
