"""Run networks tile by tile, and steps band by band, on images that exceed memory, as if they ran on the whole.

A tile is a core with a halo around it. A convolutional network without normalisation over the image computes the same
values for a core as in the whole image under three conditions: the halo covers the receptive field, cores start at
multiples of the network's stride, and no tile extends beyond the image (whose border the network pads as usual).
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from deblur.settings import SMALLEST_TILE as SMALLEST

CORE_SIDES = (SMALLEST, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)  # candidate core sizes
SHARE_OF_FREE_MEMORY = 0.5
PIXELS_OF_BAND = 1 << 22
# Bytes of features that a network holds at once, for each pixel and channel at its first resolution, in float32. They
# were measured once, as the largest sum of living tensors and half as much again for the copies inside convolutions.
FOOTPRINTS = {"UNetPredictor": 72, "Denoiser": 72, "U2NetPredictor": 60, "SlimPredictor": 60, "SlimDenoiser": 60}
FOOTPRINTS["Maxim"] = 110
UNKNOWN_FOOTPRINT = 10_000  # bytes per pixel of any other network: two and a half times those of the paper's U-Net
CPU_MEMORY = 3.5  # GB; a constant, so that a photo's tiles do not depend on the machine's other load
CPU_PIXELS = 24_000_000  # images of this size fit into CPU_MEMORY; each further pixel takes seven floats per channel
CONTROL_GROUPS = Path("/sys/fs/cgroup")


class TooLittleMemory(ValueError):
    """An image does not fit into the allowed memory, however small its tiles.

    Attributes:
        needed: bytes that the process would need.
    """

    def __init__(self, needed: int):
        super().__init__(f"the smallest tiles need {needed / 1e9:.2f} GB: allow that much memory")
        self.needed = needed


def sides_in_words(tiles: Mapping[str, int | None]) -> str:
    """The sides of the networks' tiles, by the networks' names; None stands for the whole image."""
    return ", ".join(f"{name} in tiles of {side}" for name, side in tiles.items() if side) or "whole image"


def refusal(error: BaseException, height: int, width: int) -> str | None:
    """The message, without the image's name, for an error during restoration; None unless memory was the cause."""
    if isinstance(error, TooLittleMemory):
        return f"does not fit into --memory: give {error.needed / 1e9 + 0.15:.1f} or more"
    if is_out_of_memory(error):
        return f"does not fit into memory ({width} x {height} pixels): lower --memory"
    return None


@dataclass(frozen=True)
class Limits:
    """How much of an image the networks get at once.

    Args:
        tile: side of the denoiser's tiles, without their halo; the result does not depend on it. None: the whole image,
            or tiles that fit into memory.
        predictor_tile: as `tile`, for the predictor. U2-Net's tiles are blended, which is not exact.
        memory: bytes that the process (on a GPU: its tensors there) should stay within; decides the tiles' sides.
    """

    tile: int | None = None
    predictor_tile: int | None = None
    memory: int | None = None


@dataclass(eq=False)
class Tiled:
    """A function of images, which calls another tile by tile, with a core size that is chosen once.

    The size is that which suits a single image. If the tiles of a whole batch do not fit into memory together, the
    images are processed one by one. What the batch and the process hold counts against `memory`, and may make tiles
    smaller: exact tiles give the same image then, blended ones nearly.

    Args:
        function: of images (N, C, H, W) of one size and of numbers (N,), to an image or several of that size; it calls
            the network.
        network: its `receptive_field` is the halo's width, in pixels; where it is None, the halo is a quarter of a
            core, and its inner half is blended with the neighbours. Cores start at multiples of its `stride`. A
            `fixed_tile`, of a network that takes tiles of one size only, or an `own_tile`, in which it does best, is a
            side, halo included, and a halo; it pads smaller ones itself, and `memory` then has no effect.
        tile: side of the cores. None: the whole image if its activations fit into memory, otherwise the largest of
            CORE_SIDES that does. If memory still runs out, fewer images at a time are tried, then half the side.
        memory: bytes that the process (on a GPU: its tensors there) may hold; half of the free memory is always a
            limit.
        fields: tensors of the image's size that are allocated later, including the result.

    Raises:
        ValueError: `tile` is less than SMALLEST, or is given beside a `fixed_tile`.
        TooLittleMemory: raised by a call if the smallest tiles need more than `memory`.
    """

    function: Callable[..., Tensor | tuple[Tensor, ...]]
    network: nn.Module
    tile: int | None = None
    memory: int | None = None
    fields: float = 1

    def __post_init__(self):
        self.receptive_field, self.stride = self.network.receptive_field, self.network.stride
        self.bytes_per_pixel = bytes_per_pixel(self.network)
        self.fixed = getattr(self.network, "fixed_tile", None)
        if self.fixed is None and self.tile is None:
            self.fixed = getattr(self.network, "own_tile", None)
        if self.fixed is not None and self.tile is not None:
            side = self.fixed[0]
            raise ValueError(f"this network takes tiles of {side} pixels and no others: omit the tile of {self.tile}")
        if self.tile is not None and self.tile < SMALLEST:
            raise ValueError(f"a tile must be {SMALLEST} pixels or more, got {self.tile}")
        self.together = None  # images per call; None for all

    def side(self, image: Tensor) -> int | None:
        """Side of the tiles used for an image (N, C, H, W); None if it was processed whole."""
        tile = self.tile if self.fixed is None else self.fixed[0]
        return None if tile is None or tile >= max(image.shape[-2:]) else tile

    def __call__(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The function of images (N, C, H, W), the first of the inputs among them, and of numbers (N,)."""
        image = inputs[0]
        if self.tile is None and self.fixed is None:
            self._fit(image)
        count, results = len(image), None
        while results is None:
            together = 1 if self.fixed else min(self.together or count, count)
            try:
                for first in range(0, count, together):
                    for rows, columns, weights in self._tiles(image):
                        (top, y0, y1, bottom), (left, x0, x1, right) = rows, columns
                        some = (x[first : first + together] for x in inputs)
                        output = self.function(*(x[..., top:bottom, left:right] if x.ndim == 4 else x for x in some))
                        parts = (output,) if isinstance(output, Tensor) else output
                        if len(parts[0]) == count and parts[0].shape[-2:] == image.shape[-2:]:
                            return output  # the whole image is one tile
                        give_back()
                        if results is None:
                            results = [part.new_zeros(count, part.shape[1], *image.shape[-2:]) for part in parts]
                        for result, part in zip(results, parts, strict=True):
                            target = result[first : first + together]
                            if weights is not None:
                                target[..., top:bottom, left:right] += part * weights.to(part)
                            else:
                                target[..., y0:y1, x0:x1] = part[..., y0 - top : y1 - top, x0 - left : x1 - left]
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or self.fixed or (together == 1 and self.tile <= SMALLEST):
                    raise
                results = result = output = parts = part = target = None
            # Outside the except block the error's frames are gone, and the tensors they held are freed.
            if results is None and together > 1:
                self.together = together // 2
            elif results is None:
                self.tile = max(SMALLEST, min(self.tile, max(image.shape[-2:])) // 2)
        return results[0] if len(results) == 1 else tuple(results)

    def _tiles(self, image: Tensor) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], Tensor | None]]:
        """The tiles of an image as spans of rows and columns, with blending weights (h, w) where tiles are blended."""
        height, width = image.shape[-2:]
        if self.side(image) is None:
            yield (0, 0, height, height), (0, 0, width, width), None
            return
        halo, columns = self._spans(width)
        for rows in self._spans(height)[1]:
            for cols in columns:
                weights = None
                if self.receptive_field is None:
                    weights = ramps(rows, height, halo // 2)[:, None] * ramps(cols, width, halo // 2)
                yield rows, cols, weights

    def _spans(self, length: int) -> tuple[int, list[tuple[int, int, int, int]]]:
        """The halo, and the tiles along one axis."""
        if self.fixed is not None:
            side, halo = self.fixed
            # Blended tiles need not align with the stride, so none has to extend beyond the image.
            stride = 1 if self.receptive_field is None else self.stride
            return halo, list(fixed_spans(length, side, halo, stride))
        core, halo = self._core(self.tile), self._halo(self.tile)
        return halo, list(spans(length, core, halo))

    def _core(self, tile: int) -> int:
        return max(tile // self.stride, 1) * self.stride

    def _halo(self, tile: int) -> int:
        pixels = self._core(tile) // 4 if self.receptive_field is None else self.receptive_field
        return -(-pixels // self.stride) * self.stride

    def _fit(self, image: Tensor) -> None:
        """Choose `tile`, and `together` to suit it."""
        self.tile, budget = max(image.shape[-2:]), self._budget(image)
        if self.tile <= 2 * SMALLEST:
            return
        whole = self._needed(self.tile, image)
        if whole > budget:
            least = self._least(image)
            if self.memory is not None and least > self.memory:
                raise TooLittleMemory(least)
            budget = self._budget(image)
            smaller = [side for side in CORE_SIDES if side < self.tile]
            fitting = (side for side in smaller if self._needed(side, image) <= budget)
            self.tile = max(fitting, default=SMALLEST)
        self.together = max(1, int(budget / max(1, self._needed(self.tile, image))))  # an identity needs no memory

    def _budget(self, image: Tensor) -> float:
        """Bytes that tiles may take."""
        budget = SHARE_OF_FREE_MEMORY * free_memory(image.device)
        return budget if self.memory is None else min(budget, self.memory - self._held(image))

    def least_memory(self, image: Tensor) -> int:
        """Bytes that `memory` must at least allow for a call on an image (N, C, H, W); 0 if it has no effect."""
        if self.tile is not None or self.fixed or max(image.shape[-2:]) <= 2 * SMALLEST:
            return 0
        return self._least(image)

    def _least(self, image: Tensor) -> int:
        """Bytes that the process holds with the smallest tile, after it gave back what it has freed."""
        give_back()
        return int(self._held(image) + self._needed(SMALLEST, image))

    def _needed(self, tile: int, image: Tensor) -> float:
        """Bytes that the function needs for one tile."""
        side = self._core(tile) + 2 * self._halo(tile)
        height, width = image.shape[-2:]
        return self.bytes_per_pixel * min(side, height) * min(side, width)

    def _held(self, image: Tensor) -> float:
        """Bytes that the process holds besides the tiles."""
        return used_memory(image.device) + self.fields * image.nbytes


def spans(length: int, core: int, halo: int) -> Iterator[tuple[int, int, int, int]]:
    """The tiles along one axis: (start of the tile, start of its core, end of its core, end of the tile)."""
    for start in range(0, length, core):
        stop = min(start + core, length)
        yield max(0, start - halo), start, stop, min(length, stop + halo)


def fixed_spans(length: int, side: int, halo: int, stride: int) -> Iterator[tuple[int, int, int, int]]:
    """As `spans`, for tiles of one fixed side. They start at multiples of the stride, and the last one ends at the end
    of the image, rounded up to the stride. A smaller image is one tile."""
    last = max(0, -(-length // stride) * stride - side)
    starts = [*range(0, last, side - 2 * halo), last]
    borders = [0, *(start + halo for start in starts[1:]), length]
    for start, (begin, end) in zip(starts, pairwise(borders), strict=True):
        yield start, begin, end, min(length, start + side)


def ramps(span: tuple[int, int, int, int], length: int, half: int) -> Tensor:
    """Blending weights of a tile along one axis; with the neighbours' they add up to 1. Neighbours cross-fade along a
    cosine in the `half` pixels on both sides of a core's border. The last core may be narrower than its ramp."""
    tile_start, start, stop, tile_stop = span
    x = torch.arange(tile_start, tile_stop) + 0.5

    def rise(border: int) -> Tensor:
        return 0.5 - 0.5 * torch.cos(((x - border) / (2 * half) + 0.5).clamp(0, 1) * torch.pi)

    ones = torch.ones_like(x)
    return (rise(start) if start > 0 else ones) - (rise(stop) if stop < length else 0 * ones)


def banded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An elementwise function of images that replaces the first one, in bands of rows: its temporaries stay small.

    Arguments that are no images of the first one's height are those of every band.
    """

    def in_bands(first: Tensor, *others: Any) -> Tensor:
        rows = max(1, PIXELS_OF_BAND // first.shape[-1])

        def bands(x: Any) -> Iterable[Any]:
            is_image = isinstance(x, Tensor) and x.shape[-2:-1] == first.shape[-2:-1]
            return x.split(rows, dim=-2) if is_image else repeat(x)

        for band, *of_band in zip(*map(bands, (first, *others)), strict=False):  # repeated ones have no end
            band.copy_(function(band, *of_band))
        return first

    return in_bands


def bytes_per_pixel(network: nn.Module) -> float:
    """Bytes that a network needs for each pixel of an image, in evaluation mode; its attribute of this name, if any."""
    measured = getattr(network, "bytes_per_pixel", None)
    if measured is not None:
        return measured
    if type(network).__name__ == "Cascade":
        return max(map(bytes_per_pixel, network.children()))  # one runs after the other
    factor = FOOTPRINTS.get(type(network).__name__)
    first = next((layer for layer in network.modules() if isinstance(layer, nn.Conv2d)), None)
    if factor is None or first is None:
        return UNKNOWN_FOOTPRINT if next(network.parameters(), None) is not None else 3 * 4  # one copy of the image
    smaller = network.config.get("unshuffle", 1) * network.config.get("reduction", 1)
    return factor * first.out_channels * first.weight.element_size() / 4 / smaller**2


def free_memory(device: torch.device) -> int:
    """Bytes that could be allocated now, without swapping and within the limit of a Linux container."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    free = psutil.virtual_memory().available
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # control groups, versions 2 and 1
        file = CONTROL_GROUPS / name
        if file.is_file() and (limit := file.read_text().strip()).isdigit():
            free = min(free, max(0, int(limit) - used_memory(device)))
    return free


def used_memory(device: torch.device) -> int:
    """Bytes that this process holds on the device now."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return psutil.Process().memory_info().rss


def allowed_memory(gigabytes: float | None, size: int, device: torch.device) -> int | None:
    """Bytes that the process may hold while it restores images of `size` pixels in total; None: use the free memory.

    Args:
        gigabytes: the value of --memory; None for its default.
    """
    if gigabytes:
        return int(1e9 * gigabytes)
    return None if device.type != "cpu" else int(1e9 * CPU_MEMORY) + 7 * 12 * max(0, size - CPU_PIXELS)


def require_memory(gigabytes: float | None, device: torch.device) -> None:
    """Raise ValueError if --memory is given and is less than the program itself takes."""
    if gigabytes and 1e9 * gigabytes <= (used := used_memory(device)):
        raise ValueError(
            f"--memory {gigabytes:g} is less than the program itself takes, {used / 1e9:.2f} GB; its images come on"
            " top: give more"
        )


def give_back() -> None:
    """Return freed memory to the system; otherwise glibc keeps hundreds of megabytes after a large tile."""
    with suppress(AttributeError, TypeError):  # without glibc there is no such function, on Windows no such library
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory, whichever allocator raised it."""
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or ("memory" in text and "alloc" in text)
