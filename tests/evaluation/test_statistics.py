"""Bootstrap intervals against distributions whose mean is known."""

import math

import numpy as np
import pytest

from evaluation.statistics import estimates


def test_the_interval_is_the_bootstrap_s_own_expanded_for_small_samples():
    values = np.random.default_rng(0).normal(3, 2, (200, 1))
    (found,) = estimates(values)
    half = 1.96 * values.std() / math.sqrt(200)
    assert found.mean == pytest.approx(values.mean()) and found.n == 200
    assert found.mean - found.low == pytest.approx(half, rel=0.1)
    assert found.high - found.mean == pytest.approx(half, rel=0.1)
    assert estimates(values)[0] == found, "the same seed"
    assert estimates(values, seed=1)[0] != found


def test_all_columns_share_their_resamples_and_infinity_has_no_interval():
    values = np.random.default_rng(0).normal(size=(20, 1))
    one, two, shifted, broken = estimates(np.hstack([values, values, values + 5, values + np.inf]))
    assert one == two
    assert shifted.low == pytest.approx(one.low + 5) and shifted.high == pytest.approx(one.high + 5)
    assert (broken.mean, broken.low, broken.high) == (math.inf, None, None)
    assert estimates(values[:1])[0].low is None


@pytest.mark.parametrize("n", [5, 12, 60])
def test_intervals_cover_the_mean(n):
    random = np.random.default_rng(n)
    found = estimates(random.exponential(size=(n, 2000)))  # skewed, so below 95 % for few images
    covered = np.mean([one.low <= 1 <= one.high for one in found])
    assert 0.85 < covered < 0.97
    found = estimates(random.normal(size=(n, 2000)))
    covered = np.mean([one.low <= 0 <= one.high for one in found])
    assert (0.90 if n == 5 else 0.93) < covered < 0.975  # five images have few distinct resamples
