"""Networks on images larger than memory allows: tile by tile, exactly where the network's receptive field is known.

A tile is a core and a halo around it. A convolutional network without normalisation over the image gives a core the
values it has in the whole image, as long as the halo covers what a value can see, cores start at multiples of
the network's stride, and tiles end where the image ends (the network then treats the border as it always does).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from models.memory import Footprint, free_memory, give_back, is_out_of_memory, used_memory
from models.options import SMALLEST_TILE as SMALLEST

SIDES = (SMALLEST, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)  # of cores chosen here
SHARE_OF_FREE_MEMORY = 0.5
GREATEST_FOOTPRINT = 20_000  # bytes a pixel: five times what the largest of the networks here takes, the paper's U-Net


class TooLittleMemory(ValueError):
    """An image does not go into the memory that was allowed, however small its tiles.

    Attributes:
        needed: bytes that the process would hold.
    """

    def __init__(self, needed: int):
        super().__init__(f"the smallest tiles need {needed / 1e9:.2f} GB: allow that much memory")
        self.needed = needed


def refusal(error: BaseException, height: int, width: int) -> str | None:
    """What is said, after its name, of an image whose restoration ended so; None where memory is not the reason."""
    if isinstance(error, TooLittleMemory):
        return f"does not fit into --memory: give {error.needed / 1e9 + 0.05:.1f} or more"
    if is_out_of_memory(error):
        return f"does not fit into memory ({width} x {height} pixels): lower --memory"
    return None


@dataclass(eq=False)
class Tiling:
    """Calls a function of images tile by tile, with a core size found once.

    The size depends on one image alone, so that an image gets the same tiles in every batch: where the tiles of a
    whole batch do not fit into memory together, they are done image by image.

    Args:
        receptive_field: pixels that the function can see in each direction, and so the halo of a tile; None where that
            is most of the image: then the halo is a quarter of a core, and its inner half blends into the neighbours'.
        stride: cores start at multiples of it.
        tile: side of the cores. None: the whole image if its activations fit into memory, otherwise the largest of
            SIDES that does. Where memory runs out all the same, fewer images at a time are tried, then half the side.
        memory: bytes that the process may hold in all (on a GPU: there); None for no such limit. Half of the free
            memory is the limit in any case.
        fields: tensors of the images' own size that come after the tiles' size is chosen, while tiles are made; the
            result is one.
        footprint: of the function, where it may have been measured before.
        fixed: side and halo of tiles that are all of one size, halo included, for a function that takes no other;
            what is smaller it pads itself. Neither tile nor memory has a say then.

    Raises:
        ValueError: a tile of less than SMALLEST, or one beside `fixed`.
        TooLittleMemory: when it is called: SMALLEST takes more than `memory`.
    """

    receptive_field: int | None
    stride: int
    tile: int | None = None
    memory: int | None = None
    fields: int = 1
    footprint: Footprint = field(default_factory=Footprint)
    fixed: tuple[int, int] | None = None

    def __post_init__(self):
        if self.fixed is not None and self.tile is not None:
            side = self.fixed[0]
            raise ValueError(f"this network takes tiles of {side} pixels and no others: omit the tile of {self.tile}")
        if self.tile is not None and self.tile < SMALLEST:
            raise ValueError(f"a tile must be {SMALLEST} pixels or more, got {self.tile}")
        self.together = None  # images at a time; None for all

    def side(self, image: Tensor) -> int | None:
        """Side of the tiles that an image (N, C, H, W) was called in; None where it was called whole."""
        tile = self.tile if self.fixed is None else self.fixed[0]
        return None if tile is None or tile >= max(image.shape[-2:]) else tile

    def __call__(self, function: Callable[..., Tensor], images: Sequence[Tensor]) -> Tensor:
        """function(*images), for images (N, C, H, W) of one size, whole or in tiles -> (N, C', H, W)."""
        if self.fixed is not None:
            return self._run_some(function, images, 1)
        if self.tile is None:
            self._fit(function, images)
        count = len(images[0])
        while True:
            together = min(self.together or count, count)
            try:
                return self._run_some(function, images, together)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or (together == 1 and self.tile <= SMALLEST):
                    raise
            # Out here the error's frames are gone, and with them the tensors that they held.
            if together > 1:
                self.together = together // 2
            else:
                self.tile = max(SMALLEST, min(self.tile, max(images[0].shape[-2:])) // 2)

    def _run_some(self, function: Callable[..., Tensor], images: Sequence[Tensor], together: int) -> Tensor:
        chunks = list(zip(*(image.split(together) for image in images), strict=True))
        parts = [self._run(function, chunk) for chunk in chunks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _run(self, function: Callable[..., Tensor], images: Sequence[Tensor]) -> Tensor:
        height, width = images[0].shape[-2:]
        if self.side(images[0]) is None:
            return function(*images)
        blends, result = self.receptive_field is None, None
        halo, columns = self._spans(width)
        for rows in self._spans(height)[1]:
            for cols in columns:
                (top, y0, y1, bottom), (left, x0, x1, right) = rows, cols
                part = function(*(image[..., top:bottom, left:right] for image in images))
                give_back()
                if result is None:
                    result = part.new_zeros(*part.shape[:2], height, width)
                if blends:
                    weight_y = ramps(rows, height, halo // 2).to(part)
                    weight_x = ramps(cols, width, halo // 2).to(part)
                    result[..., top:bottom, left:right] += part * weight_y[:, None] * weight_x
                else:
                    result[..., y0:y1, x0:x1] = part[..., y0 - top : y1 - top, x0 - left : x1 - left]
        return result

    def _spans(self, length: int) -> tuple[int, list[tuple[int, int, int, int]]]:
        """The halo, and the tiles along one axis."""
        if self.fixed is not None:
            side, halo = self.fixed
            # Where nothing has to be exact no tile needs to reach beyond the image.
            stride = 1 if self.receptive_field is None else self.stride
            return halo, list(fixed_spans(length, side, halo, stride))
        core, halo = self._core(self.tile), self._halo(self.tile)
        return halo, list(spans(length, core, halo))

    def _core(self, tile: int) -> int:
        return max(tile // self.stride, 1) * self.stride

    def _halo(self, tile: int) -> int:
        pixels = self._core(tile) // 4 if self.receptive_field is None else self.receptive_field
        return -(-pixels // self.stride) * self.stride

    def _fit(self, function: Callable[..., Tensor], images: Sequence[Tensor]) -> None:
        """Choose `tile`, and `together` for it."""
        height, width = images[0].shape[-2:]
        self.tile, budget = max(height, width), self._budget(images[0])
        if self.tile <= 2 * SMALLEST or GREATEST_FOOTPRINT * len(images[0]) * height * width <= budget:
            return  # to measure takes longer than a small image
        bytes_per_pixel = self.footprint(function, images)
        give_back()

        def needed(tile: int) -> float:
            side = self._core(tile) + 2 * self._halo(tile)
            return bytes_per_pixel * min(side, height) * min(side, width)

        if needed(self.tile) > budget:
            least = self._held(images[0]) + needed(SMALLEST)
            if self.memory is not None and least > self.memory:
                raise TooLittleMemory(int(least))
            smaller = [side for side in SIDES if side < self.tile]
            self.tile = max((side for side in smaller if needed(side) <= budget), default=SMALLEST)
        self.together = max(1, int(budget / max(1, needed(self.tile))))  # the identity takes nothing

    def _budget(self, image: Tensor) -> float:
        """Bytes that a tile may take."""
        free = SHARE_OF_FREE_MEMORY * free_memory(image.device)
        if self.memory is None:
            return free
        return min(free, self.memory - self._held(image))

    def _held(self, image: Tensor) -> int:
        """Bytes that the process holds beside the tiles."""
        return used_memory(image.device) + self.fields * image.nbytes


def whole(function: Callable[..., Tensor], images: Sequence[Tensor]) -> Tensor:
    """In place of a tiling: all at once."""
    return function(*images)


def spans(length: int, core: int, halo: int) -> Iterator[tuple[int, int, int, int]]:
    """Along one axis: where each tile starts, its core starts and ends, and the tile ends."""
    for start in range(0, length, core):
        stop = min(start + core, length)
        yield max(0, start - halo), start, stop, min(length, stop + halo)


def fixed_spans(length: int, side: int, halo: int, stride: int) -> Iterator[tuple[int, int, int, int]]:
    """As `spans`, for tiles that all have one side: they start at multiples of the stride, and the last one ends with
    the image, but for what it lacks of such a multiple. An image that is smaller is one tile."""
    last = max(0, -(-length // stride) * stride - side)
    starts = [*range(0, last, side - 2 * halo), last]
    borders = [0, *(start + halo for start in starts[1:]), length]
    for start, (begin, end) in zip(starts, pairwise(borders), strict=True):
        yield start, begin, end, min(length, start + side)


def ramps(span: tuple[int, int, int, int], length: int, half: int) -> Tensor:
    """Weights of a tile along one axis that add to 1 with its neighbours': they cross in the `half` pixels on both
    sides of a core's border, along a cosine. A core that is the last one may be narrower than its ramp."""
    tile_start, start, stop, tile_stop = span
    x = torch.arange(tile_start, tile_stop) + 0.5

    def rise(border: int) -> Tensor:
        return 0.5 - 0.5 * torch.cos(((x - border) / (2 * half) + 0.5).clamp(0, 1) * torch.pi)

    ones = torch.ones_like(x)
    return (rise(start) if start > 0 else ones) - (rise(stop) if stop < length else 0 * ones)
