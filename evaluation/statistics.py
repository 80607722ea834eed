"""Means over images with 95 % bootstrap intervals."""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, stdtrit

RESAMPLES = 4000
RECIPE = (
    f"mean over the images; 95 % interval by the bootstrap over images, {RESAMPLES} resamples from the run's seed, "
    "percentiles expanded for small samples (Hesterberg 2015); differences are to the predictor, paired by image"
)


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` images and its interval; fields are None without a mean, or without an interval (n below 2)."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


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
