"""Datasets: training crops as a function of (seed, number) alone, whole frames for validation and test.

A training dataset is an endless random-access stream. Item `number` (0, 1, 2, ...) is the crops of one decoded file.
The file comes from a permutation drawn from (seed, number // files), the crops and rotations from (seed, number). So
any number of workers can continue the stream anywhere, knowing only how many items were consumed.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset, default_collate

from deblur.data.files import images, search
from deblur.data.layouts import DatasetError, Pair
from deblur.data.predictions import Predictions, to_log_size
from deblur.seeds import seed_of


def generator_of(*parts: int | str) -> Generator:
    """A CPU generator seeded by `seed_of(*parts)`."""
    return Generator().manual_seed(seed_of(*parts))


@dataclass(eq=False)
class TrainPairs(Dataset):
    """Random crops of pairs, flipped and rotated by right angles, blurry and sharp alike.

    Item `number` >= 0 is a list of `crops_per_image` dicts from one decoded pair: blurry and sharp (3, patch_size,
    patch_size), name. A pair smaller than the patch is padded by reflection at its right and lower border. Stored
    predictions are cut and turned like their pair: x_init (3, ...) in [0, 1] and, of a size head, log_size (1, ...).

    Args:
        items: a sequence of pairs with a name and read() -> (blurry, sharp), in raw numbers.
        patch_size: side of the crops.
        seed: of the order and the crops.
        crops_per_image: crops per decoded pair.
        predictions: of these pairs; None: no prediction is read.
    """

    items: Sequence[Pair]
    patch_size: int
    seed: int = 0
    crops_per_image: int = 1
    predictions: Predictions | None = None

    def __len__(self) -> int:
        return len(self.items)  # length of one pass; the stream has no end

    def __getitem__(self, number: int) -> list[dict]:
        index = self.index(number)
        frames = self.read(self.items[index])
        windows = self.windows(number, *frames["sharp"].shape[1:])
        crops = [
            {side: images.to_float(cut(frame, self.patch_size, window)) for side, frame in frames.items()}
            for window in windows
        ]
        for crop in crops:
            if "log_size" in crop:
                crop["log_size"] = to_log_size(crop["log_size"])
        return [crop | label for crop, label in zip(crops, self.labels(number, index), strict=True)]

    def index(self, number: int) -> int:
        """Which of `items` an item of the stream decodes."""
        return shuffled(number, len(self.items), self.seed)

    def windows(self, number: int, height: int, width: int) -> list[tuple[int, int, int, int]]:
        """Positions and symmetries of the crops that item `number` takes from frames of this size."""
        generator = generator_of(self.seed, number)
        return draw_windows(height, width, self.patch_size, self.crops_per_image, generator)

    def labels(self, number: int, index: int) -> list[dict]:
        """What each crop of item `number` has beside its frames, decoded from `items[index]`."""
        return [{"name": self.items[index].name}] * self.crops_per_image

    def read(self, item: Pair) -> dict[str, Tensor]:
        """The raw frames of an item."""
        blurry, sharp = item.read()
        frames = {"blurry": blurry, "sharp": sharp}
        if self.predictions is not None:
            frames |= self.predictions.read(item.name)
        return frames


class TrainSharp(TrainPairs):
    """Random crops of sharp photographs, to be blurred on the device.

    As TrainPairs, but its dicts hold sharp (3, patch_size + 2 margin, ...), name, and the seed of the blur. The blur
    needs the margin and crops it.
    """

    def __init__(self, files: Sequence[Path], patch_size: int, margin: int, **options: Any):
        super().__init__(files, patch_size + 2 * margin, **options)

    def labels(self, number: int, index: int) -> list[dict]:
        name = self.items[index].stem
        return [{"name": name, "seed": seed_of(self.seed, number, i)} for i in range(self.crops_per_image)]

    def read(self, item: Path) -> dict[str, Tensor]:
        return {"sharp": images.read_raw(item)}


class Mix(Dataset):
    """One or more training datasets as one stream, in which each has its share of the items, evenly spread.

    Args:
        parts: TrainPairs or TrainSharp datasets, each with its own seed.
        weights: the parts' relative shares; None stands for the length of the part.
    """

    def __init__(self, parts: Sequence[Dataset], weights: Sequence[float | None]):
        self.parts = parts
        # Fractions, because rounding must not make the floors below disagree about an item.
        self.weights = [
            Fraction(len(part) if weight is None else weight).limit_denominator(10**6)
            for part, weight in zip(parts, weights, strict=True)
        ]

    def __getitem__(self, number: int) -> list[dict]:
        part, position = self.place(number)
        return self.parts[part][position]

    def place(self, number: int) -> tuple[int, int]:
        """The index of the part that item `number` belongs to, and the number of that item in the part."""
        left = sum(self.weights)
        for part, weight in enumerate(self.weights[:-1]):
            before = floor(number * weight / left)
            if floor((number + 1) * weight / left) > before:
                return part, before
            number -= before
            left -= weight
        return len(self.weights) - 1, number


@dataclass(eq=False)
class FramePairs(Dataset):
    """Whole pairs in order: dicts of blurry, sharp (3, H, W) and name; `crop` limits them to a centre crop."""

    items: Sequence[Pair]
    crop: int | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict:
        blurry, sharp = (centre_crop(frame, self.crop) for frame in read_pair(self.items[index]))
        return {"blurry": blurry, "sharp": sharp, "name": self.items[index].name}


@dataclass(eq=False)
class FrameSharp(Dataset):
    """Whole sharp photographs in order, to be blurred reproducibly on the device.

    Each item is a dict of sharp (3, H, W), name (path below `root`, without suffix) and the seed of the blur, which
    comes from (seed, name). `crop` limits the frames to a centre crop, plus `margin` on every side where available. A
    photograph must be larger than twice the margin, which the blur crops; DatasetError otherwise.
    """

    items: Sequence[Path]
    root: Path
    margin: int
    seed: int = 0
    crop: int | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict:
        file = self.items[index]
        sharp = centre_crop(images.read(file), None if self.crop is None else self.crop + 2 * self.margin)
        if min(sharp.shape[1:]) <= 2 * self.margin:
            size = f"{sharp.shape[2]}x{sharp.shape[1]}"
            raise DatasetError(f"{file} has {size} pixels, too few for blur that needs a margin of {self.margin}.")
        name = search.name_below(file, self.root)
        return {"sharp": sharp, "name": name, "seed": seed_of(self.seed, name)}


def shuffled(number: int, count: int, seed: int) -> int:
    """The file index of item `number` in a stream that passes over `count` files repeatedly, reshuffled each time."""
    epoch, position = divmod(number, count)
    return int(_order(epoch, count, seed)[position])


@lru_cache(maxsize=64)  # parts of a mix that are read in turn; 20,000 files take 160 kB each
def _order(epoch: int, count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=generator_of(seed, "order", epoch))


def read_pair(pair: Pair) -> tuple[Tensor, Tensor]:
    """Read (blurry, sharp), each (3, H, W) in [0, 1]. Raises DatasetError if their sizes differ."""
    blurry, sharp = (images.to_float(frame).contiguous() for frame in pair.read())
    return blurry, sharp


def draw_windows(
    height: int, width: int, size: int, count: int, generator: Generator
) -> list[tuple[int, int, int, int]]:
    """Draw `count` positions and symmetries for `cut` of a frame: (top, left, quarter turns, flip)."""
    height, width = max(height, size), max(width, size)

    def draw(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    return [(draw(height - size + 1), draw(width - size + 1), draw(4), draw(2)) for _ in range(count)]


def cut(frame: Tensor, size: int, window: tuple[int, int, int, int]) -> Tensor:
    """Crop (..., H, W) to (..., size, size) at a window, rotate and flip it; contiguous."""
    top, left, turns, flip = window
    crop = reflect_to(frame[..., top : top + size, left : left + size], size).rot90(turns, (-2, -1))
    return (crop.flip(-1) if flip else crop).contiguous()


def reflect_to(frames: Tensor, size: int) -> Tensor:
    """Pad (..., H, W) by reflection to the right and below until both sides reach `size`."""
    if min(frames.shape[-2:]) >= size:
        return frames
    padding = [(0, max(0, size - side)) for side in frames.shape[-2:]]
    return torch.from_numpy(np.pad(frames.numpy(), [(0, 0)] * (frames.ndim - 2) + padding, mode="reflect"))


def centre_crop(frame: Tensor, size: int | None) -> Tensor:
    """Crop (..., H, W) to its centre, at most size x size; None returns it whole."""
    height, width = frame.shape[-2:]
    if size is None:
        return frame
    top, left = max(height - size, 0) // 2, max(width - size, 0) // 2
    return frame[..., top : top + size, left : left + size].contiguous()


def flatten(items: list[list[dict]]) -> dict:
    """Collate the crops of several decoded files into one batch: tensors stacked, names in a list."""
    return default_collate([crop for item in items for crop in item])


@dataclass(eq=False)
class Window:
    """Batches whose crops are shuffled over several batches of a loader, so that the crops of one file are spread.

    The next `batches` batches are read, their crops shuffled by (seed, window) and divided into `batches` batches of
    the same size. `first()` returns how many batches of the stream were already used. The window that contains this
    position is read again, so that a resumed run sees exactly the batches of an uninterrupted one.
    """

    loader: Iterable[dict]
    batches: int
    seed: int
    first: Callable[[], int]

    def __iter__(self) -> Iterator[dict]:
        window, used = divmod(self.first(), self.batches)
        stream = iter(self.loader)
        while True:
            read = list(itertools.islice(stream, self.batches))
            if not read:
                return
            per_batch = len(read[0]["name"])
            names = [name for batch in read for name in batch.pop("name")]
            together = {key: torch.cat([batch[key] for batch in read]) for key in read[0]}
            order = torch.randperm(len(names), generator=generator_of(self.seed, "window", window))
            for place, chosen in enumerate(order.split(per_batch)):
                if place < used:
                    continue
                batch = {key: value[chosen] for key, value in together.items()}
                if torch.cuda.is_available():
                    batch = {key: value if value.is_cuda else value.pin_memory() for key, value in batch.items()}
                yield batch | {"name": [names[at] for at in chosen.tolist()]}
            window, used = window + 1, 0
