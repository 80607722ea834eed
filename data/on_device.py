"""Training frames that are decoded once and stay in the memory of the training device, where they are cut and turned.

No step then waits for a disk, a decoder or a loader: a whole batch is one gather for each kind of frame.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, islice

import torch
from torch import Tensor

from deblur.data.files.images import header_size, to_float
from deblur.data.layouts import DatasetError
from deblur.data.pairs import Mix, reflect_to
from deblur.data.predictions import to_log_size
from deblur.progress import ProgressBar
from deblur.tiling import free_memory

DECODING_THREADS = 12


class FramesOnDevice:
    """All frames of a training dataset, from which whole batches are cut.

    A batch equals the crops that the dataset itself reads, turns and flips, bit for bit on a CPU. Frames of 8 bits are
    kept as they are; where a kind of frame has 16 bits in one file, all of that kind take 16.

    Args:
        dataset: a Mix of TrainPairs or of TrainSharp.
        device: where the frames are kept.

    Raises:
        DatasetError: the frames need more memory than is free.
    """

    def __init__(self, dataset: Mix, device: torch.device):
        self.dataset, self.device = dataset, device
        self.side = dataset.parts[0].patch_size
        self.firsts = [0, *accumulate(len(part.items) for part in dataset.parts)]  # frame of each part
        items = [(part, item) for part in dataset.parts for item in part.items]
        headers = [header_size(getattr(item, "sharp", item)) for _, item in items]
        areas = [max(width, self.side) * max(height, self.side) for width, height in headers]
        self.starts = [0, *accumulate(areas)]
        self.sizes: list[tuple[int, int]] = []  # (height, width) of each frame, padded to the side of a crop
        self.pixels: dict[str, Tensor] = {}  # (all pixels, channels), as `_kept` has them
        self.free = free_memory(device)  # before the first frame is kept
        with ThreadPoolExecutor(DECODING_THREADS) as threads:
            read = threads.map(lambda given: given[0].read(given[1]), items)
            for frames in ProgressBar(read, desc=f"reading to {device}", total=len(items), leave=False, delay=2):
                self._keep(frames)

    def _keep(self, frames: dict[str, Tensor]) -> None:
        """Store the next item's frames."""
        kept = {kind: _kept(reflect_to(frame, self.side)) for kind, frame in frames.items()}
        if not self.pixels:
            self._make_room(kept)
        start = self.starts[len(self.sizes)]
        for kind, frame in kept.items():
            if frame.dtype == torch.int16 and self.pixels[kind].dtype == torch.uint8:
                self._widen(kind)
            if self.pixels[kind].dtype == torch.int16:
                frame = _to_16_bits(frame)
            values = frame.flatten(1).T
            self.pixels[kind][start : start + len(values)] = values.to(self.device)
        self.sizes.append(tuple(kept["sharp"].shape[1:]))

    def _make_room(self, kept: dict[str, Tensor]) -> None:
        count = self.starts[-1]
        self._require_free(sum(count * len(frame) * frame.element_size() for frame in kept.values()))
        for kind, frame in kept.items():
            self.pixels[kind] = torch.empty(count, len(frame), dtype=frame.dtype, device=self.device)

    def _widen(self, kind: str) -> None:
        """Let all frames of a kind take 16 bits; for a moment they are there in 8, too."""
        narrow = self.pixels[kind]
        self._require_free(sum(pixels.nbytes for pixels in self.pixels.values()) + 2 * narrow.nbytes)
        self.pixels[kind] = _to_16_bits(narrow)

    def _require_free(self, needed: int) -> None:
        if needed > self.free:
            raise DatasetError(
                f"data.keep_on_device needs {needed / 1e9:.1f} GB for all frames, and {self.device} has"
                f" {self.free / 1e9:.1f} GB: train on regions of them (tools.make_pairs --crops), or omit it."
            )

    def batch(self, numbers: Iterable[int]) -> dict:
        """The crops of these items of the dataset's stream, (N, channels, side, side), and their names and seeds."""
        places, labels = [], []
        for number in numbers:
            part, position = self.dataset.place(number)
            dataset = self.dataset.parts[part]
            index = dataset.index(position)
            frame = self.firsts[part] + index
            for window in dataset.windows(position, *self.sizes[frame]):
                places.append(_strides(self.starts[frame], self.sizes[frame][1], self.side, window))
            labels += dataset.labels(position, index)
        start, down, right = torch.tensor(places).to(self.device, non_blocking=True).T[:, :, None, None]
        steps = torch.arange(self.side, device=self.device)
        chosen = start + down * steps[:, None] + right * steps  # (N, side, side)
        crops = {}
        for kind, pixels in self.pixels.items():
            values = pixels.index_select(0, chosen.flatten()).view(*chosen.shape, -1)  # twice as fast as pixels[chosen]
            raw = values if values.dtype == torch.uint8 else values.int() & 0xFFFF
            crops[kind] = to_float(raw.permute(0, 3, 1, 2))
        if "log_size" in crops:
            crops["log_size"] = to_log_size(crops["log_size"])
        crops["name"] = [label["name"] for label in labels]
        if "seed" in labels[0]:
            crops["seed"] = torch.tensor([label["seed"] for label in labels])
        return crops


def _kept(raw: Tensor) -> Tensor:
    """Raw numbers as they are kept: uint8, or for 16 bits in int32 the same bits as int16."""
    return raw if raw.dtype == torch.uint8 else raw.to(torch.int16)


def _to_16_bits(kept: Tensor) -> Tensor:
    """The same values, from 0 to 65535."""
    return kept.short().mul_(257) if kept.dtype == torch.uint8 else kept


def _strides(start: int, width: int, side: int, window: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """Where a crop's upper left pixel stands in a frame of this width, and the steps to those below it and beside it.

    `pairs.cut` makes the same crop of an image.
    """
    top, left, turns, flip = window
    last = side - 1
    first, down, right = [
        (0, width, 1),
        (last, -1, width),
        (last * width + last, -width, -1),
        (last * width, 1, -width),
    ][turns]
    if flip:
        first, right = first + last * right, -right
    return start + top * width + left + first, down, right


@dataclass(eq=False)
class DeviceBatches:
    """Batches without end of the numbers of a stream, cut on the device."""

    frames: FramesOnDevice
    stream: Iterable[int]
    per_batch: int  # numbers in a batch

    def __iter__(self) -> Iterator[dict]:
        numbers = iter(self.stream)
        while True:
            yield self.frames.batch(islice(numbers, self.per_batch))
