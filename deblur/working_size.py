"""The scale at which a photograph is restored: the one at which its blur is as large as the predictor knows it.

A predictor knows blur of some pixels, hardly changes a larger one and spoils what it does not know. So a photograph
whose blur is large is reduced and restored, and the change is enlarged and added to it. The scale is measured: the
predictor's change is largest where the blur has the size that it knows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

LONGEST_SEARCHED_SIDE = 400  # pixels, the longer side of the image in which regions are looked for
OF_AN_EARLIER_RULE = {"vanished", "above", "compared", "largest_kept"}  # in the index of older checkpoints


@dataclass(frozen=True)
class WorkingSize:
    """How the scale of an image is chosen; a checkpoint has it as `working_size` in its index.

    Args:
        scales: to choose from, descending, the first of them 1.
        nearly_largest: the finest scale is chosen whose change is at least this share of the largest one.
        smallest: no scale makes the longer side shorter than this.
        keep_sharp: as in `SamplingSettings`, for the measurement.
        region: sides of the measured regions, relative to those of the image.
        regions: their number.
        context: pixels a side that the predictor sees of a region at least, with what is around it.
        stages: as in `SamplingSettings`, for the measurement.
    """

    scales: Sequence[float] = (1.0, 0.6, 0.4, 0.25, 0.16, 0.1)
    nearly_largest: float = 0.9
    smallest: int = 180
    keep_sharp: float = 2.5
    region: float = 0.16
    regions: int = 2
    context: int = 128
    stages: int | None = None

    def __post_init__(self):
        descending = all(one > other > 0 for one, other in pairwise(self.scales))
        if not (len(self.scales) > 1 and self.scales[0] == 1 and descending):
            raise ValueError(f"scales must fall from 1 and stay above 0, got {list(self.scales)}")
        if not (0 < self.nearly_largest <= 1 and 0 < self.region <= 1 and self.regions > 0):
            raise ValueError("nearly_largest and region must be above 0 and at most 1, and regions above 0")

    def possible_scales(self, height: int, width: int) -> list[float]:
        """The scales among which that of an image is looked for; 1 alone where it is not."""
        return [scale for scale in self.scales if scale == 1 or scale * max(height, width) >= self.smallest]

    def searched_pixels(self, height: int, width: int) -> float:
        """How many pixels are restored at most to find the scale of an image."""
        pixels = 0.0
        for scale in self.possible_scales(height, width):
            sides = (min(scale * side, max(scale * self.region * side, self.context)) for side in (height, width))
            pixels += self.regions * math.prod(sides)
        return pixels


def resized(image: Tensor, height: int, width: int) -> Tensor:
    """An image (N, C, H, W) of another size; the same tensor if it has that size already."""
    if image.shape[-2:] == (height, width):
        return image
    return interpolate(image, (height, width), mode="bicubic", antialias=True, align_corners=False)


def reduced(image: Tensor, scale: float) -> Tensor:
    """An image (N, C, H, W) in [0, 1] at a scale of at most 1."""
    height, width = (max(1, round(side * scale)) for side in image.shape[-2:])
    return resized(image, height, width).clamp(0, 1) if scale < 1 else image


def with_change(image: Tensor, small: Tensor, restored: Tensor) -> Tensor:
    """An image (N, 3, H, W) in [0, 1] with what was changed in its reduced copy, enlarged.

    Args:
        image: of full size.
        small: the reduced image.
        restored: of its size; several of each image follow one another.
    """
    times = len(restored) // len(image)
    change = resized(restored - small.repeat_interleave(times, 0), *image.shape[-2:])
    return change.add_(image.repeat_interleave(times, 0)).clamp_(0, 1)


def chosen_scale(
    image: Tensor, change: Callable[[Tensor], Tensor], rule: WorkingSize, weight: Tensor | None = None
) -> float:
    """The scale at which an image (1, 3, H, W) in [0, 1] is restored.

    Args:
        image: the photograph.
        change: what restoring a region at some scale changes in it, both (1, 3, h, w).
        rule: how to choose.
        weight: (1, 1, H, W) in [0, 1], where the image counts; None: everywhere.
    """
    scales = rule.possible_scales(*image.shape[-2:])
    if len(scales) == 1:
        return 1.0
    regions = detailed_regions(image, rule, weight)
    sizes = [sum(mean_square(image, region, change, scale, rule) for region in regions) ** 0.5 for scale in scales]
    return next(scale for scale, size in zip(scales, sizes, strict=True) if size >= rule.nearly_largest * max(sizes))


def mean_square(
    image: Tensor, region: Sequence[slice], change: Callable[[Tensor], Tensor], scale: float, rule: WorkingSize
) -> float:
    """The mean square of a region's change at a scale."""
    seen = [widened(part, rule.context / scale, side) for part, side in zip(region, image.shape[-2:], strict=True)]
    changed = change(reduced(image[..., seen[0], seen[1]], scale))
    rows, columns = (part_of(part, around, scale) for part, around in zip(region, seen, strict=True))
    return changed[..., rows, columns].square().mean().item()


def part_of(part: slice, around: slice, scale: float) -> slice:
    """Where a part of a side lies in a reduced copy of what is around it."""
    start = round(scale * (part.start - around.start))
    return slice(start, start + max(1, round(scale * (part.stop - part.start))))


def widened(part: slice, least: float, side: int) -> slice:
    """A part of a side with what is around it, of this length at least, as far as the side goes."""
    length = min(side, max(part.stop - part.start, round(least)))
    start = min(max(0, (part.start + part.stop - length) // 2), side - length)
    return slice(start, start + length)


def detailed_regions(image: Tensor, rule: WorkingSize, weight: Tensor | None = None) -> list[tuple[slice, slice]]:
    """Rows and columns of the regions of an image (1, 3, H, W) that have the strongest edges; each edge counts once."""
    scale = min(1.0, LONGEST_SEARCHED_SIDE / max(image.shape[-2:]))
    small = reduced(image, scale).mean(1, keepdim=True)
    edges = small.diff(dim=3)[..., :-1, :].square() + small.diff(dim=2)[..., :-1].square()
    if 0 in edges.shape:  # of a line of pixels
        return []
    if weight is not None:
        edges = edges * resized(weight.float(), *edges.shape[-2:]).clamp(0, 1)
    rows, columns = (math.ceil(rule.region * side) for side in edges.shape[-2:])
    regions = []
    for _ in range(rule.regions):
        # First over the columns, then over the rows: the time does not grow with the area of a region.
        sums = avg_pool2d(avg_pool2d(edges, (1, columns), stride=1), (rows, 1), stride=1)
        if sums.max() <= 0:
            break
        top, left = divmod(int(sums.flatten().argmax()), sums.shape[-1])
        edges[..., top : top + rows, left : left + columns] = 0
        spans = ((top, rows), (left, columns))
        regions.append(tuple(slice(round(start / scale), round((start + side) / scale)) for start, side in spans))
    return regions
