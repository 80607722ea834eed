"""Datasets: training crops as a pure function of (seed, number), whole frames for validation and test.

A training dataset is an endless, random-access stream: item `number` (0, 1, 2, ...) is decode `number` of the
run. Its file comes from a permutation drawn from (seed, number // files), its crops and turns from (seed,
number), so the stream can be continued anywhere, by any number of workers, knowing only how many items were
consumed.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.utils.data import Dataset, default_collate

from base.seeds import seed_of
from data import images
from data.layouts import DatasetError, Pair


def generator_of(*parts: int | str) -> Generator:
    """A CPU generator seeded by `seed_of(*parts)`."""
    return Generator().manual_seed(seed_of(*parts))


@dataclass(eq=False)
class TrainPairs(Dataset):
    """Random crops of pairs, flipped and turned by right angles, blurry and sharp alike.

    Item `number` >= 0 is a list of `crops_per_image` dicts from one decoded pair: blurry and sharp (3,
    patch_size, patch_size), name. A pair smaller than the patch is continued by reflection at its right and
    lower border.

    Args:
        items: a sequence of pairs, which have a name and read() -> (blurry, sharp), in raw numbers. Its attribute
            `shards`, if any, says how many items lie together in a file.
        patch_size: side of the crops.
        seed: of the order and the crops.
        crops_per_image: crops of each decoded pair.
        scale: factor on width and height before cropping.
        repeat: how often a pair is used before all are put in a new order.
        skip: pass over pairs that cannot be read. Another takes the place, and the first of its crops says
            what was wrong under the key "error".
    """

    items: Sequence[Pair]
    patch_size: int
    seed: int = 0
    crops_per_image: int = 1
    scale: float = 1.0
    repeat: int = 1
    skip: bool = False

    def __len__(self) -> int:
        return len(self.items) * self.repeat  # of one pass; the stream has no end

    def __getitem__(self, number: int) -> list[dict]:
        name, frames, errors = self._load(number)
        generator = generator_of(self.seed, number)
        windows = draw_windows(frames["sharp"], self.patch_size, self.crops_per_image, generator)
        crops = [
            {side: images.to_float(cut(frame, self.patch_size, window)) for side, frame in frames.items()}
            for window in windows
        ]
        items = [crop | {"name": name} for crop in crops]
        if errors:
            items[0]["error"] = "\n".join(errors)
        return items

    def read(self, item: Pair) -> tuple[str, dict[str, Tensor]]:
        """Name and raw frames of an item."""
        blurry, sharp = item.read()
        return item.name, {"blurry": blurry, "sharp": sharp}

    def _load(self, number: int) -> tuple[str, dict[str, Tensor], list[str]]:
        """Load the file of item `number`; with `skip` another one, also drawn from (seed, number), while it is damaged.

        Returns its name, its frames, and what was wrong with the others.
        """
        errors: list[str] = []
        count = len(self.items)
        index = shuffled(number, len(self), self.seed, getattr(self.items, "shards", None)) % count
        while True:
            try:
                name, frames = self.read(self.items[index])
                return name, {side: resize(frame, self.scale) for side, frame in frames.items()}, errors
            except (images.ImageError, DatasetError) as error:
                if not self.skip or len(errors) == 9:  # ten in a row: the dataset is damaged, not a file
                    raise
                errors.append(str(error))
                instead = generator_of(self.seed, "instead", number, len(errors))
                index = int(torch.randint(count, (), generator=instead))


class TrainSharp(TrainPairs):
    """Random crops of sharp photographs, to be blurred on the device.

    As TrainPairs, but its dicts hold sharp (3, patch_size + 2 margin, ...), whose margin the blur needs and
    cuts away, name, and the seed of the blur. `files` may also be pairs, of which the sharp side
    is taken.
    """

    def __init__(self, files: Sequence[Path | Pair], patch_size: int, margin: int, **options):
        super().__init__(files, patch_size + 2 * margin, **options)

    def __getitem__(self, number: int) -> list[dict]:
        items = super().__getitem__(number)
        return [item | {"seed": seed_of(self.seed, number, i)} for i, item in enumerate(items)]

    def read(self, item: Path | Pair) -> tuple[str, dict[str, Tensor]]:
        name, sharp = (item.stem, images.read_raw(item)) if isinstance(item, Path) else (item.name, item.read()[1])
        return name, {"sharp": sharp}


class Mix(Dataset):
    """Several training datasets as one stream: each gives its share of the items, evenly spread.

    Args:
        parts: TrainPairs or TrainSharp datasets, each with a seed of its own.
        weights: the parts' shares, relative to each other; None stands for the length of the part.
    """

    def __init__(self, parts: Sequence[Dataset], weights: Sequence[float | None]):
        self.parts = parts
        # Fractions: the floors below must not disagree about one item through rounding.
        self.weights = [
            Fraction(len(part) if weight is None else weight).limit_denominator(10**6)
            for part, weight in zip(parts, weights, strict=True)
        ]

    def __getitem__(self, number: int) -> list[dict]:
        which, own = self.place(number)
        return self.parts[which][own]

    def place(self, number: int) -> tuple[int, int]:
        """Which part gives item `number`, and which of its own items that is."""
        left = sum(self.weights)
        for which, weight in enumerate(self.weights[:-1]):
            before = floor(number * weight / left)
            if floor((number + 1) * weight / left) > before:
                return which, before
            number -= before
            left -= weight
        return len(self.weights) - 1, number


@dataclass(eq=False)
class FramePairs(Dataset):
    """Whole pairs in order: dicts of blurry, sharp (3, H, W) and name; `crop` limits them to the centre."""

    items: Sequence[Pair]
    crop: int | None = None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict:
        blurry, sharp = (centre_crop(frame, self.crop) for frame in read_pair(self.items[index]))
        return {"blurry": blurry, "sharp": sharp, "name": self.items[index].name}


@dataclass(eq=False)
class FrameSharp(Dataset):
    """Whole sharp photographs in order, to be blurred on the device always alike.

    Each item is a dict of sharp (3, H, W), name (path below `root`, without suffix) and the seed of the blur,
    which comes from (seed, name). `crop` limits the frames to the centre, `margin` more on every side where
    there is more. A photograph must be larger than twice the margin, since the blur's margin is cut away;
    DatasetError otherwise.
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
        name = file.relative_to(self.root).with_suffix("").as_posix()
        return {"sharp": sharp, "name": name, "seed": seed_of(self.seed, name)}


def shuffled(number: int, count: int, seed: int, shards: Sequence[int] | None = None) -> int:
    """The file index of item `number` of a stream that passes over `count` files, each time reordered.

    With `shards`, the numbers of files that lie together (their sum divides `count`), the order is one of whole
    shards, eight at a time with their files mixed, so that a shard that comes from afar is used while it is here.
    """
    epoch, position = divmod(number, count)
    generator = generator_of(seed, "order", epoch)
    if shards is None:
        return int(torch.randperm(count, generator=generator)[position])
    starts = torch.tensor([0, *shards]).cumsum(0)
    total = int(starts[-1])
    position %= total
    order = torch.randperm(len(shards), generator=generator).tolist()
    for first in range(0, len(order), 8):
        group = torch.cat([torch.arange(starts[at], starts[at + 1]) for at in order[first : first + 8]])
        mixed = group[torch.randperm(len(group), generator=generator)]
        if position < len(mixed):
            return int(mixed[position])
        position -= len(mixed)
    raise IndexError(number)


def read_pair(pair: Pair) -> tuple[Tensor, Tensor]:
    """Read (blurry, sharp), each (3, H, W) in [0, 1]. Raises DatasetError where the sizes differ."""
    blurry, sharp = (images.to_float(frame).contiguous() for frame in pair.read())
    return blurry, sharp


def resize(frame: Tensor, scale: float) -> Tensor:
    """Reduce a raw (3, H, W) frame by the factor `scale`, antialiased, rounded to the same numbers; 1: as it is."""
    if scale == 1:
        return frame
    size = [max(1, round(side * scale)) for side in frame.shape[1:]]
    smaller = F.interpolate(frame[None].float(), size=size, mode="bicubic", antialias=True)[0]
    return smaller.round().clamp(0, 255 if frame.dtype == torch.uint8 else 65535).to(frame.dtype)


def draw_windows(frame: Tensor, size: int, count: int, generator: Generator) -> list[tuple[int, int, int, int]]:
    """Draw `count` places and symmetries for `cut`: (top, left, quarter turns, flip)."""
    height, width = (max(side, size) for side in frame.shape[-2:])

    def draw(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    return [(draw(height - size + 1), draw(width - size + 1), draw(4), draw(2)) for _ in range(count)]


def cut(frame: Tensor, size: int, window: tuple[int, int, int, int]) -> Tensor:
    """Cut (..., size, size) out of (..., H, W) at a window, turn and flip it; contiguous."""
    top, left, turns, flip = window
    crop = reflect_to(frame, size)[..., top : top + size, left : left + size].rot90(turns, (-2, -1))
    return (crop.flip(-1) if flip else crop).contiguous()


def reflect_to(frames: Tensor, size: int) -> Tensor:
    """Continue (..., H, W) by reflection to the right and below until both sides reach `size`."""
    for dim in (-2, -1):
        length = frames.shape[dim]
        if length < size:
            period = max(2 * length - 2, 1)
            index = torch.arange(size) % period
            frames = frames.index_select(dim, torch.minimum(index, period - index) if length > 1 else index)
    return frames


def centre_crop(frame: Tensor, size: int | None) -> Tensor:
    """Cut the centre of (..., H, W) to at most size x size; None leaves it whole."""
    height, width = frame.shape[-2:]
    if size is None:
        return frame
    top, left = max(height - size, 0) // 2, max(width - size, 0) // 2
    return frame[..., top : top + size, left : left + size].contiguous()


def flatten(items: list[list[dict]]) -> dict:
    """Collate the crops of several decoded files into one batch: tensors stacked, names in a list.

    What was passed over comes as "errors", a list of sentences, where there is any.
    """
    crops = [crop for item in items for crop in item]
    errors = [line for crop in crops for line in crop.pop("error", "").splitlines()]
    return default_collate(crops) | ({"errors": errors} if errors else {})


@dataclass(eq=False)
class Window:
    """Batches whose crops are mixed over several batches of a loader, so that crops of one file are spread.

    The next `batches` batches are read, their crops reordered by (seed, window) and dealt out as `batches` batches
    of the same size. `first()` says how many batches of the stream were used before: the window it lies in is read
    again, so that a resumed run sees exactly the batches it would have seen.
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
            errors = [line for batch in read for line in batch.pop("errors", [])]
            per_batch = len(read[0]["name"])
            names = [name for batch in read for name in batch.pop("name")]
            together = {key: torch.cat([batch[key] for batch in read]) for key in read[0]}
            order = torch.randperm(len(names), generator=generator_of(self.seed, "window", window))
            for place, chosen in enumerate(order.split(per_batch)):
                if place < used:
                    continue
                batch = {key: value[chosen] for key, value in together.items()}
                if torch.cuda.is_available():
                    batch = {key: value.pin_memory() for key, value in batch.items()}
                batch["name"] = [names[at] for at in chosen.tolist()]
                yield batch | ({"errors": errors} if errors and place == used else {})
            window, used = window + 1, 0
