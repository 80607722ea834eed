"""Read and write images as tensors: what other packages use of this one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from deblur.data.files.decoding import header_size as header_size
from deblur.data.files.decoding import read_file
from deblur.data.files.decoding import require_end as require_end
from deblur.data.files.encoding import remarks_on as remarks_on
from deblur.data.files.encoding import require_tellable as require_tellable
from deblur.data.files.encoding import write as write
from deblur.data.files.image_file import ImageFile as ImageFile
from deblur.data.files.image_file import to_float as to_float
from deblur.data.files.search import ImageError as ImageError


def read(path: str | Path) -> Tensor:
    """Read an image as (3, H, W) float32 in [0, 1]; metadata is not returned."""
    return read_file(path).values


def read_mask(path: str | Path) -> Tensor:
    """Read a mask as (H, W) float32 in [0, 1]: its brightness where it is opaque, 0 where nothing is painted.

    White on a transparent layer, as painting programs export it, counts by its alpha.
    """
    image = read_file(path)
    brightness = image.values.mean(0)
    return brightness if image.alpha is None else brightness * to_float(image.alpha[0])


def read_raw(path: str | Path) -> Tensor:
    """As `read`, but in the file's own numbers: uint8 to 255, or int32 to 65535 for 16 bits."""
    pixels = read_file(path).pixels
    return pixels if pixels.dtype == torch.uint8 else pixels.int()  # torch cannot slice or rotate uint16
