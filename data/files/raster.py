"""An image file's pixels, and all that is kept of the file beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deblur.data.files.colour import Colour
from deblur.data.files.density import Density


@dataclass(frozen=True)
class Raster:
    """An image file's pixels, rotated upright, and what is kept when its restoration is written.

    Args:
        pixels: (3, H, W) uint8 or uint16; a grey image has three equal channels.
        alpha: (1, H, W) of the same type, or None. The colours are not multiplied with it.
        grey: whether the file has one colour channel.
        exif, icc, xmp: the metadata, without the orientation, and the colour profile; None if the file has none.
        remarks: what is unusual about the file, or not restored; each follows its name.
        colour: what the numbers stand for, if the file says it other than by a profile.
        density: of the pixels, or None.
        quantisation: a JPEG's tables, by number; None of other formats.
        associated: whether a TIFF of it has colours that are multiplied with alpha, as its file has.
        extra: (N, H, W) of the same type, the samples of a TIFF that are neither colours nor alpha; or None.
    """

    pixels: Any
    alpha: Any | None = None
    grey: bool = False
    exif: bytes | None = None
    icc: bytes | None = None
    xmp: bytes | None = None
    remarks: tuple[str, ...] = ()
    colour: Colour | None = None
    density: Density | None = None
    quantisation: dict[int, list[int]] | None = None
    associated: bool = False
    extra: Any | None = None

    @property
    def is_deep(self) -> bool:
        """Whether it has 16 bits."""
        return self.pixels.dtype.itemsize == 2
