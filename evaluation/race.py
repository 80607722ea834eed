"""A race of settings: all of them on a few pictures, then only those that may still be on the Pareto front."""

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

FEWEST = 4  # pictures before anything is dropped
GROWTH = 4 / 3  # from one look to the next
ERROR = 0.02  # chance that a row which does not beat a setting in truth seems to, in any of the looks


def stages(images: int) -> list[int]:
    """How many pictures have been run each time that the race looks at its settings; the last is all of them."""
    count, found = FEWEST, []
    while count < images:
        found.append(count)
        count = round(count * GROWTH)
    return [*found, images]


def beaten_by(scores: Sequence[np.ndarray], images: int) -> list[int | None]:
    """For each column the number of a column that certainly beats it on every axis; None where none does.

    Args:
        scores: one (pictures, columns) array an axis, of the pictures run so far in random order; higher is better.
        images: how many pictures there are in all.
    """
    found = []
    for column in range(scores[0].shape[1]):
        certain = np.all([_above_zero(values - values[:, [column]], images) for values in scores], axis=0)
        found.append(int(certain.argmax()) if certain.any() else None)
    return found


def _above_zero(gains: np.ndarray, images: int) -> np.ndarray:
    """Whether the mean of each column will certainly be above zero once all pictures have been run.

    Gains are paired by picture, so what makes a picture hard for all settings drops out. They are skewed, as a setting
    that spoils some pictures a little spoils others much, so this is Student's t after Hall's transformation (1992, "On
    the Removal of Skewness by Transformation"), at a level which all looks together bring to ERROR. The pictures still
    to come are not of an endless supply: the spread shrinks by the share that has been run.
    """
    n = len(gains)
    mean, spread = gains.mean(axis=0), gains.std(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # equal columns: nan, which is not certain
        skew = np.nan_to_num(((gains - mean) ** 3).mean(axis=0) / spread**3)
        w = mean / spread * ((n - 1) / n) ** 0.5
        t = n**0.5 * (w + skew * w**2 / 3 + skew**2 * w**3 / 27 + skew / (6 * n)) / (1 - n / images) ** 0.5
    level = ERROR / (len(stages(images)) - 1)
    return t > stdtrit(n - 1, 1 - level)
