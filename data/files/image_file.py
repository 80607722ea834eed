"""An image file's pixels, their density, and all that is kept of the file beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from PIL import ExifTags, Image
from torch import Tensor

from deblur.data.files.colour import Codes

NO_UNIT, INCH, CENTIMETRE = 1, 2, 3  # EXIF's ResolutionUnit
LARGEST_PER_INCH = (1 << 16) - 1  # JPEG's number has 16 bits
LARGEST_OF_RATIO = (1 << 31) - 1  # PNG's has 31


def to_float(raw: Tensor) -> Tensor:
    """Numbers of a file, uint8 or of 16 bits in any type, as float32 in [0, 1]."""
    return raw.float().div_(255 if raw.dtype == torch.uint8 else 65535)


@dataclass(frozen=True)
class Density:
    """Pixels across and down in an inch, or in a length that is not said: their ratio alone.

    `of`, `of_info` and `of_exif` return None for one that says nothing or that no format can hold.
    """

    across: float
    down: float
    is_per_inch: bool = True

    @classmethod
    def of(cls, across: float, down: float, is_per_inch: bool) -> Density | None:
        """A density in one of the two forms. A ratio of 1 says nothing: pixels are square without one."""
        if is_per_inch:
            is_usable = all(0.5 <= value < LARGEST_PER_INCH for value in (across, down))
        else:
            is_usable = across != down and all(0 < value <= LARGEST_OF_RATIO for value in (across, down))
        return cls(across, down, is_per_inch) if is_usable else None

    @classmethod
    def of_info(cls, info: Mapping[str, Any]) -> Density | None:
        """What Pillow says of a PNG, JPEG or BMP."""
        if info.get("dpi"):
            return cls.of(*info["dpi"], True)
        ratio = info.get("jfif_density") if info.get("jfif_unit") == 0 else info.get("aspect")
        return cls.of(*ratio, False) if ratio else None

    @classmethod
    def of_exif(cls, exif: Image.Exif) -> Density | None:
        """What EXIF or a TIFF's tags say."""
        unit = exif.get(ExifTags.Base.ResolutionUnit, INCH)
        per_inch = {NO_UNIT: 1.0, INCH: 1.0, CENTIMETRE: 2.54}.get(unit)
        try:
            across, down = (float(exif[ExifTags.Base[name]]) for name in ("XResolution", "YResolution"))
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return None
        return cls.of(across * per_inch, down * per_inch, unit != NO_UNIT) if per_inch else None

    def turned(self) -> Density:
        """Of the image turned by a quarter."""
        return Density(self.down, self.across, self.is_per_inch)

    def put_into(self, exif: Image.Exif) -> None:
        """Let EXIF, or a TIFF's tags, say it, if they say none."""
        if ExifTags.Base.XResolution not in exif:
            exif[ExifTags.Base.XResolution], exif[ExifTags.Base.YResolution] = self.across, self.down
            exif[ExifTags.Base.ResolutionUnit] = INCH if self.is_per_inch else NO_UNIT

    def whole(self, most: int) -> tuple[int, int]:
        """Rounded, if it is per inch; otherwise two whole numbers up to `most` in as nearly as possible its ratio."""
        if self.is_per_inch:
            return round(self.across), round(self.down)
        ratio = Fraction(self.across) / Fraction(self.down)
        if ratio > 1:
            down, across = self.turned().whole(most)
            return across, down
        ratio = ratio.limit_denominator(most)
        return max(1, ratio.numerator), ratio.denominator


@dataclass(frozen=True)
class ImageFile:
    """An image file's pixels, rotated upright, and what is kept when its restoration is written.

    Args:
        pixels: (3, H, W) uint8 or uint16; a grey image has three equal channels.
        alpha: (1, H, W) of the same type, or None. The colours are not multiplied with it.
        grey: whether the file has one colour channel.
        exif, xmp: the metadata, without the orientation; None if the file has none.
        icc: the colour profile, or one made of what the file says otherwise; None: the colours are sRGB's, or `codes`.
        codes: code points of the colours, without a profile.
        remarks: what is unusual about the file, or not restored; each follows its name.
        density: of the pixels, or None.
        quantisation: a JPEG's tables, by number; None of other formats.
        associated: whether a TIFF of it has colours that are multiplied with alpha, as its file has.
        extra: (N, H, W) of the same type, the samples of a TIFF that are neither colours nor alpha; or None.
    """

    pixels: Tensor
    alpha: Tensor | None = None
    grey: bool = False
    exif: bytes | None = None
    icc: bytes | None = None
    xmp: bytes | None = None
    remarks: tuple[str, ...] = ()
    codes: Codes | None = None
    density: Density | None = None
    quantisation: dict[int, list[int]] | None = None
    associated: bool = False
    extra: Tensor | None = None

    @property
    def has_16_bits(self) -> bool:
        """Whether it has 16 bits."""
        return self.pixels.dtype == torch.uint16

    @property
    def values(self) -> Tensor:
        """(3, H, W) float32 in [0, 1]."""
        return to_float(self.pixels)
