"""A race of settings: all of them on a few pictures, then only those that may still be on the Pareto front."""

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

FIRST = 1 / 12  # share of the pictures that all settings run on
FEWEST = 3  # pictures before anything is dropped
CONFIDENCE = 0.99  # of each interval: many pairs of settings are compared, several times


def stages(images: int) -> list[int]:
    """How many pictures have been run when the race looks at its settings: doubling, the last being all."""
    count, found = max(FEWEST, -(-images // round(1 / FIRST))), []
    while count < images:
        found.append(count)
        count *= 2
    return [*found, images]


def beaten_by(scores: Sequence[np.ndarray]) -> list[int | None]:
    """For each column the number of a column that certainly beats it on every axis; None where none does.

    Both are compared picture by picture, so what makes a picture hard for all settings drops out. A is certainly better
    than B on an axis when the interval of the mean of A - B (Student's t: a bootstrap of a handful of pictures has
    few distinct resamples) lies above zero.

    Args:
        scores: one (pictures, columns) array an axis; higher is better.
    """
    n, columns = scores[0].shape
    certain = np.ones((columns, columns), dtype=bool)  # [a, b]: a beats b
    for values in scores:
        means, covariance = values.mean(axis=0), np.atleast_2d(np.cov(values, rowvar=False))
        variance = np.diag(covariance)
        spread = np.sqrt(np.maximum(variance[:, None] + variance[None] - 2 * covariance, 0) / n)
        certain &= means[:, None] - means[None] > stdtrit(n - 1, (1 + CONFIDENCE) / 2) * spread
    winners = certain.any(axis=0)
    return [int(certain[:, column].argmax()) if winners[column] else None for column in range(columns)]
