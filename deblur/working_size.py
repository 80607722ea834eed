"""The scale at which a photograph is restored: the one at which its blur is as large as the predictor knows it.

A predictor knows blur of some pixels and hardly changes larger one. So a photograph of many pixels is reduced and
restored, and the change is enlarged and added to it. The scale is measured: in ever smaller copies the blur vanishes at
some scale, and with it the predictor's change. The image is restored at some times this scale.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

LONGEST_SEARCHED_SIDE = 400  # pixels, the longer side of the image in which regions are looked for


@dataclass(frozen=True)
class WorkingSize:
    """How the scale of an image is chosen; a checkpoint has it as `working_size` in its index.

    Args:
        scales: to choose from, descending, the first of them 1.
        vanished: the share of the largest change over all scales, below which the blur has vanished.
        above: the image is restored at the scale that is nearest to so many times that at which the blur vanishes.
        largest_kept: an image whose longer side has at most so many pixels is restored at its own size.
        smallest: no scale makes the longer side shorter than this.
        compared: pixels of the longer side at which changes are compared.
        keep_sharp: as in `SamplingSettings`, for the measurement.
        region: sides of the measured regions, relative to those of the image.
        regions: their number.
        stages: as in `SamplingSettings`, for the measurement.
    """

    scales: Sequence[float] = (1.0, 0.6, 0.4, 0.25, 0.16, 0.1)
    vanished: float = 0.7
    above: float = 3.0
    largest_kept: int = 1600
    smallest: int = 480
    compared: int = 1600
    keep_sharp: float = 2.5
    region: float = 0.16
    regions: int = 2
    stages: int | None = None

    def __post_init__(self):
        descending = all(one > other > 0 for one, other in pairwise(self.scales))
        if not (len(self.scales) > 1 and self.scales[0] == 1 and descending):
            raise ValueError(f"scales must fall from 1 and stay above 0, got {list(self.scales)}")
        if not (0 < self.vanished < 1 and 0 < self.region <= 1 and self.above > 0 and self.regions > 0):
            raise ValueError("vanished and region must be between 0 and 1, and above and regions above 0")

    def possible_scales(self, height: int, width: int) -> list[float]:
        """The scales among which that of an image is looked for; 1 alone where it is not."""
        longer = max(height, width)
        if longer <= self.largest_kept:
            return [1.0]
        return [scale for scale in self.scales if scale == 1 or scale * longer >= self.smallest]

    def searched_pixels(self, height: int, width: int) -> float:
        """How many pixels are restored at most to find the scale of an image."""
        of_scales = sum(scale**2 for scale in self.possible_scales(height, width))
        return self.regions * self.region**2 * of_scales * height * width


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
    longer, scales = max(image.shape[-2:]), rule.possible_scales(*image.shape[-2:])
    if len(scales) == 1:
        return 1.0
    regions = [image[..., rows, columns] for rows, columns in detailed_regions(image, rule, weight)]
    sizes = []
    for k in reversed(range(len(scales))):  # a finer scale can only make the wanted one finer
        squares = 0.0
        for region in regions:
            changed = change(reduced(region, scales[k]))
            height, width = (max(1, round(side * rule.compared / longer)) for side in region.shape[-2:])
            squares += resized(changed, height, width).square().mean().item()
        sizes.insert(0, math.sqrt(squares))
        wanted = rule.above * vanishing_scale(scales[k:], sizes, rule.vanished)
        nearest = min(scales, key=lambda scale: abs(math.log(scale / min(1.0, wanted))))
        if nearest == 1:
            break
    return nearest


def vanishing_scale(scales: Sequence[float], sizes: Sequence[float], share: float) -> float:
    """The scale at which a size falls below a share of its maximum, between two of `scales` along straight lines in
    logarithms; the last of them if it does not."""
    most = max(sizes)
    if most == 0:
        return scales[0]
    for k in range(sizes.index(most), len(sizes) - 1):
        if sizes[k + 1] < share * most:
            high, low = math.log(sizes[k]), math.log(max(sizes[k + 1], 1e-6 * most))
            fallen = (high - math.log(share * most)) / (high - low)
            return scales[k] * (scales[k + 1] / scales[k]) ** fallen
    return scales[-1]


def detailed_regions(image: Tensor, rule: WorkingSize, weight: Tensor | None = None) -> list[tuple[slice, slice]]:
    """Rows and columns of the regions of an image (1, 3, H, W) that have the strongest edges; each edge counts once."""
    scale = min(1.0, LONGEST_SEARCHED_SIDE / max(image.shape[-2:]))
    small = reduced(image, scale).mean(1, keepdim=True)
    edges = small.diff(dim=3)[..., :-1, :].square() + small.diff(dim=2)[..., :-1].square()
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
