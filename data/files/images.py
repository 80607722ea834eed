"""Read and write images as tensors. All conversion between files and tensors happens here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deblur.data.files import decoding, encoding
from deblur.data.files.decoding import header_size, require_end
from deblur.data.files.encoding import remarks_on, require_tellable
from deblur.data.files.raster import Raster
from deblur.data.files.search import ImageError

__all__ = [
    "ImageError",
    "ImageFile",
    "header_size",
    "read",
    "read_file",
    "read_mask",
    "read_raw",
    "remarks_on",
    "require_end",
    "require_tellable",
    "to_float",
    "write",
]


@dataclass(frozen=True)
class ImageFile(Raster):
    """A `Raster` of tensors: pixels (3, H, W), alpha (1, H, W) and extra (N, H, W), uint8 or uint16."""

    @property
    def values(self) -> Tensor:
        """(3, H, W) float32 in [0, 1]."""
        return _unit(self.pixels)


def read(path: str | Path) -> Tensor:
    """Read an image as (3, H, W) float32 in [0, 1]; metadata is not returned."""
    return read_file(path).values


def read_mask(path: str | Path) -> Tensor:
    """Read a mask as (H, W) float32 in [0, 1]: its brightness where it is opaque, 0 where nothing is painted.

    White on a transparent layer, as painting programs export it, counts by its alpha.
    """
    image = read_file(path)
    brightness = image.values.mean(0)
    return brightness if image.alpha is None else brightness * _unit(image.alpha[0])


def read_raw(path: str | Path) -> Tensor:
    """As `read`, but in the file's own numbers: uint8 to 255, or int32 to 65535 for 16 bits."""
    pixels = read_file(path).pixels
    return pixels if pixels.dtype == torch.uint8 else pixels.int()  # torch cannot slice or rotate uint16


def to_float(raw: Tensor) -> Tensor:
    """Convert the output of `read_raw`, or a part of it, to float32 in [0, 1]."""
    return raw.float().div_(255 if raw.dtype == torch.uint8 else 65535)


def read_file(path: str | Path) -> ImageFile:
    """As `decoding.read_file`, in tensors."""
    raster = decoding.read_file(path)
    values = {field.name: getattr(raster, field.name) for field in fields(Raster)}
    arrays = {name: torch.from_numpy(value) for name, value in values.items() if isinstance(value, np.ndarray)}
    return ImageFile(**values | arrays)


def write(
    path: str | Path,
    image: Tensor,
    like: ImageFile | None = None,
    depth: int | None = None,
    compress_level: int = 6,
    quality: int | None = None,
) -> None:
    """As `encoding.write`: a (3, H, W) image in [0, 1] on any device."""
    encoding.write(path, image.detach().cpu().float().numpy(), like, depth, compress_level, quality)


def _unit(values: Tensor) -> Tensor:
    """uint8 or uint16 as float32 in [0, 1]."""
    return values.float().div_(torch.iinfo(values.dtype).max)
