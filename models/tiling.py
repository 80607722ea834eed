"""Networks on pictures larger than memory allows: tile by tile, exactly where the network's reach is known.

A tile is a core and a halo around it. A convolutional network without normalisation over the picture gives a core the
values it has in the whole picture, as long as the halo covers what a value can see, cores start at multiples of
the network's stride, and tiles end where the picture ends (the network then treats the border as it always does).
"""

import ctypes
import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

CPU_BAND, GPU_BAND = 1 << 17, 1 << 20  # places of a picture that go through `in_bands` together
REACH = 2  # what a function in bands may see, in steps of rows
SIDES = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)  # of cores chosen here
SMALLEST = SIDES[0]
SHARE_OF_FREE_MEMORY = 0.5
COPIES = 3 / 2  # what convolutions copy inside is shown by no tensor


class Tiling:
    """Calls a function of pictures tile by tile, with a core size found once.

    The size depends on one picture alone, so that a picture gets the same tiles in every batch: where the tiles of a
    whole batch do not fit into memory together, they are done picture by picture.

    Args:
        reach: pixels that the function can see in each direction; None where that is most of the picture: then tiles
            have a margin of a quarter of a core, whose inner half blends into the neighbours'.
        stride: cores start at multiples of it.
        tile: side of the cores. None: the whole picture if its activations fit into memory, otherwise the largest of
            SIDES that does. Where memory runs out all the same, fewer pictures at a time are tried, then half the side.
        memory: bytes that the process may hold in all (on a GPU: there); None for no such limit. Half of the free
            memory is the limit in any case.
        fields: tensors of the pictures' own size that come after the tiles' size is chosen, while tiles are made; the
            result is one.
    """

    def __init__(
        self, reach: int | None, stride: int, tile: int | None = None, memory: int | None = None, fields: int = 1
    ):
        if tile is not None and tile < SMALLEST:
            raise ValueError(f"a tile must be {SMALLEST} pixels or more, got {tile}")
        self.reach, self.stride, self.tile, self.memory = reach, stride, tile, memory
        self.fields = fields
        self.together = None  # pictures at a time; None for all

    def __call__(self, function: Callable[..., Tensor], pictures: Sequence[Tensor]) -> Tensor:
        """function(*pictures), for pictures (N, C, H, W) of one size, whole or in tiles -> (N, C', H, W)."""
        if self.tile is None:
            self._fit(function, pictures)
        count = len(pictures[0])
        while True:
            together = min(self.together or count, count)
            try:
                return self._run_some(function, pictures, together)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or (together == 1 and self.tile <= SMALLEST):
                    raise
            # Out here the error's frames are gone, and with them the tensors that they held.
            if together > 1:
                self.together = together // 2
            else:
                self.tile = max(SMALLEST, min(self.tile, max(pictures[0].shape[-2:])) // 2)

    def _run_some(self, function: Callable[..., Tensor], pictures: Sequence[Tensor], together: int) -> Tensor:
        chunks = list(zip(*(picture.split(together) for picture in pictures), strict=True))
        parts = [self._run(function, chunk) for chunk in chunks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _run(self, function: Callable[..., Tensor], pictures: Sequence[Tensor]) -> Tensor:
        height, width = pictures[0].shape[-2:]
        if self.tile >= max(height, width):
            return function(*pictures)
        core, margin = self._core(self.tile), self._margin(self.tile)
        blends, whole = self.reach is None, None
        columns = list(spans(width, core, margin))
        for rows in spans(height, core, margin):
            for cols in columns:
                (top, y0, y1, bottom), (left, x0, x1, right) = rows, cols
                part = function(*(picture[..., top:bottom, left:right] for picture in pictures))
                give_back()
                if whole is None:
                    whole = part.new_zeros(*part.shape[:2], height, width)
                if blends:
                    weight_y = ramps(rows, height, margin // 2).to(part)
                    weight_x = ramps(cols, width, margin // 2).to(part)
                    whole[..., top:bottom, left:right] += part * weight_y[:, None] * weight_x
                else:
                    whole[..., y0:y1, x0:x1] = part[..., y0 - top : y1 - top, x0 - left : x1 - left]
        return whole

    def _core(self, tile: int) -> int:
        return max(tile // self.stride, 1) * self.stride

    def _margin(self, tile: int) -> int:
        pixels = self._core(tile) // 4 if self.reach is None else self.reach
        return -(-pixels // self.stride) * self.stride

    def _fit(self, function: Callable[..., Tensor], pictures: Sequence[Tensor]) -> None:
        """Choose `tile`, and `together` for it."""
        height, width = pictures[0].shape[-2:]
        self.tile = max(height, width)
        if self.tile <= 2 * SMALLEST:
            return

        def budget() -> float:
            device = pictures[0].device
            free = SHARE_OF_FREE_MEMORY * free_memory(device)
            if self.memory is None:
                return free
            return min(free, self.memory - used_memory(device) - self.fields * pictures[0].nbytes)

        def needed(side: int) -> float:
            cut = [picture[:1, :, :side, :side] for picture in pictures]
            with torch.compiler.set_stance("force_eager"), _LiveBytes() as live:
                function(*cut)
            return COPIES * live.peak

        def tile_needs(tile: int) -> float:
            with FakeTensorMode(allow_non_fake_inputs=True):  # sizes without arithmetic
                return needed(self._core(tile) + 2 * self._margin(tile))

        side = min(2 * SMALLEST, height, width)
        most = needed(side) / side**2 * height * width  # of the whole picture; less in bands
        if most > budget():
            give_back()
            sides = [side for side in SIDES if side < self.tile] + [self.tile]
            self.tile = sides[max(0, bisect_right(sides, budget(), key=tile_needs) - 1)]
            most = tile_needs(self.tile)
        self.together = max(1, int(budget() / max(1, most)))


def in_bands(function: Callable[..., Tensor], pictures: Sequence[Tensor], step: int = 1) -> Tensor:
    """function(*pictures), in bands of rows where the pictures are large: the same values in little memory.

    With gradients, which keep everything alive all the same, there are no bands.

    Args:
        function: sees at most `REACH` steps up and down, and gives as many rows for each step.
        pictures: (N, C, H, W), whose heights are multiples of the least.
        step: rows of the least high one that belong together.
    """
    least = min(picture.shape[-2] for picture in pictures)
    places = max(picture.numel() // picture.shape[1] for picture in pictures)
    steps = -(-least // step)
    core = max(1, steps * (CPU_BAND if pictures[0].device.type == "cpu" else GPU_BAND) // places)
    if core >= steps or torch.is_grad_enabled():
        return function(*pictures)
    rows = [step * (picture.shape[-2] // least) for picture in pictures]  # of a step
    result = None
    for top, start, stop, bottom in spans(steps, core, REACH):
        part = function(*(p[..., top * n : bottom * n, :] for p, n in zip(pictures, rows, strict=True)))
        n = part.shape[-2] // (bottom - top)
        if result is None:
            shape = *part.shape[:2], steps * n, part.shape[-1]
            last = part.is_contiguous(memory_format=torch.channels_last)
            layout = torch.channels_last if last else torch.contiguous_format
            result = torch.empty(shape, dtype=part.dtype, device=part.device, memory_format=layout)
        result[..., start * n : stop * n, :] = part[..., (start - top) * n : (stop - top) * n, :]
    return result


def whole(function: Callable[..., Tensor], pictures: Sequence[Tensor], step: int = 1) -> Tensor:
    """In place of a tiling, or of `in_bands`: all at once."""
    return function(*pictures)


def spans(length: int, core: int, margin: int) -> Iterator[tuple[int, int, int, int]]:
    """Along one axis: where each tile starts, its core starts and ends, and the tile ends."""
    for start in range(0, length, core):
        stop = min(start + core, length)
        yield max(0, start - margin), start, stop, min(length, stop + margin)


def ramps(span: tuple[int, int, int, int], length: int, half: int) -> Tensor:
    """Weights of a tile along one axis that add to 1 with its neighbours': they cross in the `half` pixels on both
    sides of a core's border, along a cosine. A core that is the last one may be narrower than its ramp."""
    tile_start, start, stop, tile_stop = span
    x = torch.arange(tile_start, tile_stop) + 0.5

    def rise(border: int) -> Tensor:
        return 0.5 - 0.5 * torch.cos(((x - border) / (2 * half) + 0.5).clamp(0, 1) * torch.pi)

    ones = torch.ones_like(x)
    return (rise(start) if start > 0 else ones) - (rise(stop) if stop < length else 0 * ones)


def free_memory(device: torch.device) -> int:
    """Bytes that could be allocated now; on Linux without swapping, and within the limit of a container."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return 4 * 1024**3  # other systems do not say it in one place; what a small laptop has to spare
    lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of control groups, versions 2 and 1
        file = Path("/sys/fs/cgroup") / name
        if file.is_file() and (limit := file.read_text().strip()).isdigit():
            free = min(free, max(0, int(limit) - used_memory(device)))
    return free


def used_memory(device: torch.device) -> int:
    """Bytes that this process holds now, on the device."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        return 1024**3  # about what Python with torch takes, and a photo
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Freed memory to the system, which glibc keeps for what may come: of a large tile's, hundreds of megabytes."""
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors made while it is active and still alive; `peak` is the most at one time."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._counted = weakref.WeakSet()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        given = [x.untyped_storage()._cdata for x in args if isinstance(x, Tensor)]  # whose views are nothing new
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage not in self._counted and storage._cdata not in given:
                self._counted.add(storage)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage.nbytes())
                self.peak = max(self.peak, self.now)
        return result

    def _gone(self, size: int) -> None:
        self.now -= size


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be had, whichever allocator it comes from."""
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or ("memory" in text and "alloc" in text)
