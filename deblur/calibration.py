"""The expected error, calibrated: what a size head says, mapped to the error that was measured where it says so."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

GROUP_COUNT = 32  # of equal size, by the head's estimate
COVERAGE = 0.9


@dataclass(frozen=True)
class ErrorCurve:
    """A rising curve through three columns of numbers in 8-bit levels, equally long, at most GROUP_COUNT.

    Between its points it is linear; below the first and above the last it is proportional.

    Args:
        estimate: |x - x_init| as the size head estimates it.
        mean: mean of the error that was measured there.
        bound: what COVERAGE of the measured errors stay below.
    """

    estimate: Sequence[float]
    mean: Sequence[float]
    bound: Sequence[float]

    def __post_init__(self):
        columns = vars(self).values()
        if not (len(self.estimate) == len(self.mean) == len(self.bound) > 0) or not all(map(_rises, columns)):
            raise ValueError("estimate, mean and bound rise, above 0, and are equally many: fit it by tools.calibrate")

    @classmethod
    def fit(cls, estimate: Tensor, actual: Tensor) -> "ErrorCurve":
        """The curve of pixels (P,), in 8-bit levels: isotonic regression over groups of pixels of like estimates.

        Groups that it pools are one point, so that the mean rises from each point to the next.
        """
        from scipy.optimize import isotonic_regression  # takes a second, and only fitting needs it

        order = estimate.argsort()
        groups = [part for part in order.tensor_split(GROUP_COUNT) if len(part)]
        blocks = isotonic_regression([actual[part].mean().item() for part in groups]).blocks.tolist()
        pooled = [torch.cat(groups[start:end]) for start, end in pairwise(blocks)]
        bounds = isotonic_regression([actual[part].quantile(COVERAGE).item() for part in pooled]).x.tolist()
        columns = [estimate[part].mean().item() for part in pooled], [actual[part].mean().item() for part in pooled]
        return cls(*([round(max(value, 1e-4), 4) for value in column] for column in (*columns, bounds)))

    def expected(self, estimate: Tensor) -> Tensor:
        """The mean error, from the head's estimate, both in units of the [0, 1] range."""
        return _follow(estimate, self.estimate, self.mean)

    def bounding(self, expected: Tensor) -> Tensor:
        """The error that COVERAGE of the pixels stay below, from what `expected` returned."""
        return _follow(expected, self.mean, self.bound)


def _rises(column: Sequence[float]) -> bool:
    return column[0] > 0 and all(low <= high for low, high in pairwise(column))


def _follow(values: Tensor, x: Sequence[float], y: Sequence[float]) -> Tensor:
    """The polyline through (0, 0) and the points (x, y), in 8-bit levels, at values in units of the [0, 1] range."""
    x, y = (torch.tensor([0.0, *column], device=values.device) / 255 for column in (x, y))
    slopes = torch.cat([y.diff() / x.diff().clamp(min=1e-9), y[-1:] / x[-1:]])
    offsets = torch.cat([y[:-1] - slopes[:-1] * x[:-1], x.new_zeros(1)])
    at = torch.bucketize(values, x[1:], out_int32=True).flatten()
    slope, offset = (line.index_select(0, at).view_as(values) for line in (slopes, offsets))  # faster than line[at]
    return torch.addcmul(offset, slope, values)
