"""An image file's pixels, and all that is kept of the file beside them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deblur.data.files.colour import Codes


def to_float(raw: Tensor) -> Tensor:
    """Numbers of a file, uint8 or of 16 bits in any type, as float32 in [0, 1]."""
    return raw.float().div_(255 if raw.dtype == torch.uint8 else 65535)


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
        density: pixels across and down in an inch, or None.
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
    density: tuple[float, float] | None = None
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
