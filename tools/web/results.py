"""A visitor's restoration: kept on disk, and blended again without running a network."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath

import numpy as np
import torch
from torch import Tensor

from deblur.data.files.images import ImageFile
from deblur.image_processor import restorable, visible_pixels, with_hidden_filled
from deblur.keep_sharp import Samples, blended, kept, restored_amount, restored_share, to_world
from deblur.restoration.outputs import Names, named
from deblur.settings import SamplingSettings
from deblur.working_size import reduced, reduced_visible, resized, with_change


@dataclass(frozen=True, eq=False)
class Photo:
    """An opened photograph: its file's name, and its pixels."""

    name: str
    image: ImageFile

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, after rotation to upright."""
        return tuple(self.image.pixels.shape[-2:])

    @cached_property
    def visible(self) -> Tensor | None:
        """Where it is not wholly transparent, (1, 1, H, W) of bool; None: everywhere."""
        return visible_pixels([self.image.alpha])

    @property
    def values(self) -> Tensor:
        """What the networks see: (1, 3, H, W) float32 in [0, 1], whatever colours are hidden."""
        return with_hidden_filled(self.image.values[None], self.visible)


@dataclass(eq=False)
class Result:
    """The result of a run; its strength can be changed.

    Args:
        number: of the run in this visit.
        photo: the input photograph.
        folder: of the inputs of `deblur.keep_sharp.blended`, as files of float32 (1, C, h, w) at the working scale,
            672 MB for 24 megapixels at scale 1: x_init, s, and the samples r_0, r_1 and so on.
        settings: the sampling settings; `blend` is the strength.
        checkpoint, preset: by their names; without a preset it is the sampler's.
        facts: information about the run, by name.
        scale: at which the photograph was restored.
        mask: (H, W) in [0, 1], what was to be restored; None: what looks blurred.
    """

    number: int
    photo: Photo
    folder: Path
    settings: SamplingSettings
    checkpoint: str
    preset: str
    facts: dict[str, str]
    scale: float = 1.0
    mask: Tensor | None = None

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(list(self.folder.glob("r_*.npy")))

    @property
    def kinds(self) -> list[str]:
        """The kinds of images it has: the prediction, each sample, and the mean of several; the last is the result."""
        count = self.samples
        if count < 2:
            return ["prediction", *["restored"] * count]
        return ["prediction", *(f"sample {k + 1} of {count}" for k in range(count)), f"mean of {count} samples"]

    @cached_property
    def share(self) -> Tensor:
        """The weight of what is restored over the upload, (1, 1, h, w) at the working scale, 0 where it is sharp."""
        level = self.settings.keep_sharp if self.mask is None else 0.0
        return restored_share(self._small, self._read("x_init"), level, self._seen)

    @property
    def amount(self) -> float:
        """How much of what is visible in the upload is restored, from 0 to 1."""
        return restored_amount(self.share, self._seen)

    @cached_property
    def _small(self) -> Tensor:
        return reduced(self.photo.values, self.scale)

    @property
    def _seen(self) -> Tensor | None:
        """What is visible, at the working scale."""
        return reduced_visible(self.photo.visible, self.scale)

    def image(self, kind: str) -> Tensor:
        """One of `kinds` as the pipeline returns it: (3, H, W) float32 in [0, 1]."""
        k = self.kinds.index(kind) - 1
        if k < 0:
            small = to_world(self._read("x_init"))
        else:
            small = self._sample(k) if k < self.samples else self._collected().images()
        image = small if self.scale == 1 else with_change(self.photo.values, self._small, small)
        weight = restorable(self.photo.visible, self.mask if k >= 0 else None)
        return (image if weight is None else kept(image, self.photo.image.values[None], weight))[0]

    def std(self) -> Tensor | None:
        """Standard deviation over the samples, (3, H, W) in units of the [0, 1] range; None for one sample."""
        if self.samples < 2:
            return None
        std = resized(self._collected().std(), *self.photo.size).clamp_min_(0)
        weight = restorable(self.photo.visible, self.mask)
        return (std if weight is None else std * weight)[0]

    def file_name(self, kind: str) -> str:
        """The file name that sample.py would use."""
        names, k = Names.of(named(PurePath(self.photo.name), None, False)), self.kinds.index(kind) - 1
        return names.restored(self.samples)[k].name if self.samples > 1 and 0 <= k < self.samples else names.target.name

    def _sample(self, k: int) -> Tensor:
        sample = blended(self._read("x_init"), self._read(f"r_{k}"), self._read("s"), self.settings.blend)
        return kept(sample, self._small, self.share)

    def _collected(self) -> Samples:
        samples = Samples(replace(self.settings, average=True))
        for k in range(self.samples):
            samples.add(self._sample(k))
        return samples

    def _read(self, name: str) -> Tensor:
        return torch.from_numpy(np.load(self.folder / f"{name}.npy", mmap_mode="c"))
