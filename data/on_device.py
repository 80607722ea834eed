"""Training frames that are decoded once and stay in the memory of the training device, where they are cut and turned.

No step then waits for a disk, a decoder or a loader.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, islice

import torch
from torch import Tensor

from deblur.data.files.images import header_size, to_float
from deblur.data.layouts import DatasetError
from deblur.data.pairs import Mix, cut, reflect_to
from deblur.data.predictions import to_log_size
from deblur.progress import ProgressBar
from deblur.tiling import free_memory

DECODING_THREADS = 12


class FramesOnDevice:
    """All frames of a training dataset, each in its own depth, from which whole batches are cut.

    A batch equals the crops that the dataset itself reads, turns and flips, bit for bit on a CPU.

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
        self.frames: list[dict[str, Tensor]] = []  # of each item, padded to the side of a crop
        items = [(part, item) for part in dataset.parts for item in part.items]
        headers = [header_size(getattr(item, "sharp", item)) for _, item in items]
        areas = [*accumulate(max(width, self.side) * max(height, self.side) for width, height in headers)]
        free, used = free_memory(device), 0
        with ThreadPoolExecutor(DECODING_THREADS) as threads:
            read = threads.map(lambda given: given[0].read(given[1]), items)
            for frames in ProgressBar(read, desc=f"reading to {device}", total=len(items), leave=False, delay=2):
                kept = {kind: _kept(reflect_to(frame, self.side)) for kind, frame in frames.items()}
                used += sum(frame.nbytes for frame in kept.values())
                needed = used * areas[-1] / areas[len(self.frames)]  # as many bytes a pixel as of those so far
                if needed > free:
                    raise DatasetError(
                        f"data.keep_on_device needs {needed / 1e9:.1f} GB for all frames, and {device} has"
                        f" {free / 1e9:.1f} GB: train on regions of them (tools.make_pairs --crops), or omit it."
                    )
                self.frames.append({kind: frame.to(device) for kind, frame in kept.items()})

    def batch(self, numbers: Iterable[int]) -> dict:
        """The crops of these items of the dataset's stream, (N, channels, side, side), and their names and seeds."""
        crops: dict[str, list[Tensor]] = {kind: [] for kind in self.frames[0]}
        labels = []
        for number in numbers:
            part, position = self.dataset.place(number)
            dataset = self.dataset.parts[part]
            index = dataset.index(position)
            frames = self.frames[self.firsts[part] + index]
            for window in dataset.windows(position, *frames["sharp"].shape[1:]):
                for kind, frame in frames.items():
                    crops[kind].append(cut(frame, self.side, window))
            labels += dataset.labels(position, index)
        batch = {kind: _together(own) for kind, own in crops.items()}
        if "log_size" in batch:
            batch["log_size"] = to_log_size(batch["log_size"])
        batch["name"] = [label["name"] for label in labels]
        if "seed" in labels[0]:
            batch["seed"] = torch.tensor([label["seed"] for label in labels])
        return batch


def _kept(raw: Tensor) -> Tensor:
    """Raw numbers as they are kept: uint8, or for 16 bits in int32 the same bits as int16."""
    return raw if raw.dtype == torch.uint8 else raw.to(torch.int16)


def _together(crops: list[Tensor]) -> Tensor:
    """Crops as they are kept -> (N, channels, side, side) in [0, 1]; at once if all have one depth, which is faster."""
    if len({crop.dtype for crop in crops}) > 1:
        return torch.cat([_together([crop]) for crop in crops])
    raw = torch.stack(crops)
    return to_float(raw if raw.dtype == torch.uint8 else raw.int() & 0xFFFF)


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
