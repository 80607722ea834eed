"""A visitor's restoration: kept on disk, and blended again without running a network."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath

import numpy as np
import torch
from torch import Tensor

from deblur.data.files.images import ImageFile
from deblur.draft import Blurry, DeblurOutput, Draft, Prediction
from deblur.image_processor import visible_pixels, with_hidden_filled
from deblur.keep_sharp import restored_amount
from deblur.restoration.outputs import Names, named
from deblur.settings import SamplingSettings


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
        folder: of what a `deblur.draft.Draft` is made of, as files of float32 (1, C, h, w) at the working scale,
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
    def draft(self) -> Draft:
        """What does not depend on the strength."""
        blurry = Blurry(self.photo.image.values[None], self.photo.visible, self.mask, self.scale)
        return Draft(blurry, Prediction(self._read("x_init")), self._read("s") if self.samples else None)

    @property
    def share(self) -> Tensor:
        """The weight of what is restored over the upload, (1, 1, h, w) at the working scale, 0 where it is sharp."""
        return self.draft.share(self.settings.keep_sharp)

    @property
    def amount(self) -> float:
        """How much of what is visible in the upload is restored, from 0 to 1."""
        return restored_amount(self.share, self.draft.blurry.small_visible)

    def image(self, kind: str) -> Tensor:
        """One of `kinds` as the pipeline returns it: (3, H, W) float32 in [0, 1]."""
        k = self.kinds.index(kind) - 1
        if k < 0:
            return self.draft.restored([], [SamplingSettings(blend=0.0)])[0].predictions[0]
        return self._restored([k] if k < self.samples else range(self.samples)).images[0]

    def std(self) -> Tensor | None:
        """Standard deviation over the samples, (3, H, W) in units of the [0, 1] range; None for one sample."""
        return None if self.samples < 2 else self._restored(range(self.samples)).std[0]

    def file_name(self, kind: str) -> str:
        """The file name that sample.py would use."""
        names, k = Names.of(named(PurePath(self.photo.name), None, False)), self.kinds.index(kind) - 1
        return names.restored(self.samples)[k].name if self.samples > 1 and 0 <= k < self.samples else names.target.name

    def _restored(self, numbers: Sequence[int]) -> DeblurOutput:
        """The sample of this number, or the mean of several."""
        samples = (self._read(f"r_{k}") for k in numbers)
        settings = replace(self.settings, num_samples=len(numbers), average=len(numbers) > 1)
        return self.draft.restored(samples, [settings])[0]

    def _read(self, name: str) -> Tensor:
        return torch.from_numpy(np.load(self.folder / f"{name}.npy", mmap_mode="c"))
