"""Datasets: training crops as a pure function of (seed, number), whole frames for validation and test.

A training dataset is an endless, random-access stream: item `number` (0, 1, 2, ...) is decode `number` of the
run. Its file comes from a permutation drawn from (seed, number // files), its crops and turns from (seed,
number), so the stream can be continued anywhere, by any number of workers, knowing only how many items were
consumed.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset, default_collate

from data import images
from data.layouts import DatasetError, Pair


def seed_of(*parts: int | str) -> int:
    """A generator seed in [0, 2^63) from any numbers and names, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def generator_of(*parts: int | str) -> Generator:
    """A CPU generator seeded by `seed_of(*parts)`."""
    return Generator().manual_seed(seed_of(*parts))


class TrainPairs(Dataset):
    """Random crops of pairs, flipped and turned by right angles, blurry and sharp alike.

    Item `number` >= 0 is a list of `crops_per_image` dicts from one decoded pair: blurry and sharp (3,
    patch_size, patch_size), name. A pair smaller than the patch is continued by reflection at its right and
    lower border.
    """

    def __init__(self, pairs: Sequence[Pair], patch_size: int, seed: int = 0, crops_per_image: int = 1):
        self.pairs = pairs
        self.patch_size = patch_size
        self.seed = seed
        self.crops_per_image = crops_per_image

    def __getitem__(self, number: int) -> list[dict]:
        pair = self.pairs[shuffled(number, len(self.pairs), self.seed)]
        frames = torch.stack(read_pair(pair))
        crops = random_crops(frames, self.patch_size, self.crops_per_image, generator_of(self.seed, number))
        return [{"blurry": crop[0], "sharp": crop[1], "name": pair.name} for crop in crops]


class TrainSharp(Dataset):
    """Random crops of sharp photographs, to be blurred on the device.

    As TrainPairs, but its dicts hold sharp (3, patch_size + 2 margin, ...), whose margin the blur needs and
    the caller cuts away, name, and the seed of the blur.
    """

    def __init__(
        self, files: Sequence[Path], patch_size: int, margin: int, seed: int = 0, crops_per_image: int = 1
    ):
        self.files = files
        self.size = patch_size + 2 * margin
        self.seed = seed
        self.crops_per_image = crops_per_image

    def __getitem__(self, number: int) -> list[dict]:
        file = self.files[shuffled(number, len(self.files), self.seed)]
        crops = random_crops(
            images.read(file), self.size, self.crops_per_image, generator_of(self.seed, number)
        )
        return [
            {"sharp": crop, "name": file.stem, "seed": seed_of(self.seed, number, i)}
            for i, crop in enumerate(crops)
        ]


class FramePairs(Dataset):
    """Whole pairs in order: dicts of blurry, sharp (3, H, W) and name; `crop` limits them to the centre."""

    def __init__(self, pairs: Sequence[Pair], crop: int | None = None):
        self.pairs = pairs
        self.crop = crop

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict:
        blurry, sharp = (centre_crop(frame, self.crop) for frame in read_pair(self.pairs[index]))
        return {"blurry": blurry, "sharp": sharp, "name": self.pairs[index].name}


class FrameSharp(Dataset):
    """Whole sharp photographs in order, to be blurred on the device always alike.

    Each item is a dict of sharp (3, H, W), name (path below `root`, without suffix) and the seed of the blur,
    which comes from (seed, name). `crop` limits the frames to the centre, `margin` more on every side where
    there is more. A photograph must be larger than twice the margin, since the blur's margin is cut away;
    DatasetError otherwise.
    """

    def __init__(self, root: str | Path, margin: int, seed: int = 0, crop: int | None = None):
        self.files = images.find(root)
        self.root = Path(root) if Path(root).is_dir() else Path(root).parent
        self.margin = margin
        self.seed = seed
        self.crop = None if crop is None else crop + 2 * margin

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict:
        file = self.files[index]
        sharp = centre_crop(images.read(file), self.crop)
        if min(sharp.shape[1:]) <= 2 * self.margin:
            size = f"{sharp.shape[2]}x{sharp.shape[1]}"
            raise DatasetError(
                f"{file} has {size} pixels, too few for blur that needs a margin of {self.margin}."
            )
        name = file.relative_to(self.root).with_suffix("").as_posix()
        return {"sharp": sharp, "name": name, "seed": seed_of(self.seed, name)}


def shuffled(number: int, count: int, seed: int) -> int:
    """The file index of item `number` of a stream that passes over `count` files, each time reordered."""
    epoch, position = divmod(number, count)
    return int(torch.randperm(count, generator=generator_of(seed, "order", epoch))[position])


def read_pair(pair: Pair) -> tuple[Tensor, Tensor]:
    """Read (blurry, sharp), each (3, H, W) in [0, 1]. Raises DatasetError where the sizes differ."""
    blurry, sharp = images.read(pair.blurry), images.read(pair.sharp)
    if blurry.shape != sharp.shape:
        ours, theirs = (f"{frame.shape[2]}x{frame.shape[1]}" for frame in (blurry, sharp))
        raise DatasetError(f"A pair differs in size: {pair.blurry} has {ours}, {pair.sharp} has {theirs}.")
    return blurry, sharp


def random_crops(frames: Tensor, size: int, count: int, generator: Generator) -> list[Tensor]:
    """Cut `count` random squares (..., size, size) out of (..., H, W), each flipped and turned at random.

    All leading dimensions are cut and turned alike, which keeps stacked pairs aligned.
    """
    frames = reflect_to(frames, size)

    def draw(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    crops = []
    for _ in range(count):
        top, left = draw(frames.shape[-2] - size + 1), draw(frames.shape[-1] - size + 1)
        crop = frames[..., top : top + size, left : left + size].rot90(draw(4), (-2, -1))
        crops.append((crop.flip(-1) if draw(2) else crop).contiguous())
    return crops


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
    """Collate the crops of several decoded files into one batch: tensors stacked, names in a list."""
    return default_collate([crop for item in items for crop in item])
