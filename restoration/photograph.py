"""A photograph that is restored, and what became of it before anything is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from deblur.data.files.images import ImageFile
from deblur.draft import DeblurOutput
from deblur.image_processor import visible_pixels
from deblur.restoration.outputs import Names


@dataclass(frozen=True)
class Photograph:
    """An image that was read, and the names of its files."""

    path: Path
    names: Names
    image: ImageFile  # with the metadata of its restoration

    @property
    def visible(self) -> Tensor | None:
        """(1, 1, H, W) of bool, where alpha is not 0; None: everywhere."""
        return visible_pixels([self.image.alpha])


@dataclass(frozen=True)
class Restoration:
    """The result for one image, before anything is written."""

    photograph: Photograph
    out: DeblurOutput
    restored: Sequence[Tensor]  # each sample (3, H, W) in [0, 1], or what is written in its place
    amount: float  # how much is restored, by `restored_amount`
    faults: Sequence[str]  # of the samples, in words
    seconds: float  # its share of the batch's time
    notes: Sequence[str] = ()  # what is notable in the image, in words

    @property
    def files(self) -> dict[Path, Tensor]:
        """The files of the restoration, each with its image (3, H, W) in [0, 1]."""
        return dict(zip(self.photograph.names.restored(len(self.restored)), self.restored, strict=True))
