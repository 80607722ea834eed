"""Means over images with 95 % bootstrap intervals, and the verdict on a setting, which is one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from scipy.special import ndtr, stdtrit

RESAMPLES = 4000
RECIPE = (
    f"mean over the images; 95 % interval by the bootstrap over images, {RESAMPLES} resamples from the run's seed, "
    "percentiles expanded for small samples (Hesterberg 2015); differences are to the predictor, paired by image"
)
VERDICT_RECIPE = (
    "a setting is perceptual where the 95 % intervals of its LPIPS minus that of both controls at its own PSNR lie "
    "below 0, paired by image: yes; no where one lies at or above 0; unclear otherwise. A control's LPIPS at a PSNR is "
    "linear between its strengths, the lowest where its curve has that PSNR twice, and that of its highest PSNR where "
    "the setting's is higher"
)


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` images and its interval; fields are None without a mean, or without an interval (n below 2)."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


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


def estimates(values: np.ndarray, seed: int = 0) -> list[Estimate]:
    """The mean of every column with its 95 % interval, using the same resamples for all columns.

    The percentile interval of n images is too narrow by the factor sqrt((n - 1) / n), and because it uses quantiles of
    the normal distribution in place of Student's. So its percentiles are moved outwards to correct for both (Hesterberg
    2015, "What Teachers Should Know About the Bootstrap", the expanded percentile interval).

    Args:
        values: (images, columns).
        seed: the same seed and number of images give the same resamples.
    """
    n = len(values)
    with np.errstate(invalid="ignore"):
        means = values.mean(axis=0).tolist()
    if n < 2:
        return [Estimate(mean, None, None, n) for mean in means]
    finite = np.isfinite(values).all(axis=0)
    # A resample's mean is a weighted mean. The weights of all resamples at once would take much memory.
    random, step = np.random.default_rng(seed), max(1, 4_000_000 // n)
    counts = [min(step, RESAMPLES - start) for start in range(0, RESAMPLES, step)]
    numbers = np.where(finite, values, 0.0)
    resampled = np.concatenate([random.multinomial(n, np.full(n, 1 / n), count) @ numbers / n for count in counts])
    tail = ndtr((n / (n - 1)) ** 0.5 * stdtrit(n - 1, 0.025))
    lows, highs = np.quantile(resampled, (tail, 1 - tail), axis=0)
    return [
        Estimate(mean, float(low), float(high), n) if whole else Estimate(mean, None, None, n)
        for mean, low, high, whole in zip(means, lows, highs, finite, strict=True)
    ]


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
