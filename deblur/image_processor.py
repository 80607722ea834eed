"""Convert PIL images, arrays and image files to tensors and back, keeping alpha, bit depth and greyscale."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

OUTPUT_TYPES = ("pil", "np", "pt")
LARGEST_OVERSHOOT = 1e-3  # how far floats may lie outside [0, 1], to allow for rounding

Image = PIL.Image.Image | np.ndarray | str | Path  # a str is a file's name, too


@dataclass(frozen=True)
class Layout:
    """What a restored image keeps from its input.

    Args:
        dtype: the array's type: uint8, uint16 or a float type.
        channels: 0 for an array (H, W), otherwise 1 to 4.
        alpha: (H, W, 1) of that type, or None.
    """

    dtype: np.dtype
    channels: int
    alpha: np.ndarray | None

    def alpha_plane(self) -> Tensor | None:
        """The alpha channel as a tensor (1, H, W); None if there is none."""
        return None if self.alpha is None else torch.from_numpy(np.moveaxis(self.alpha, -1, 0).copy())

    def image(self, restored: Tensor, output_type: str) -> PIL.Image.Image | np.ndarray:
        """Convert a restored image (3, H, W) in [0, 1] to a PIL image or an array with the input's layout."""
        # The median keeps equal channels exactly as they are; a mean would round.
        colours = restored.median(dim=0, keepdim=True).values if self.channels < 3 else restored
        array = colours.cpu().movedim(0, -1).numpy()
        sixteen = self.dtype == np.uint16 and (output_type == "np" or (self.channels < 2))
        dtype = np.dtype(np.uint16 if sixteen else np.uint8) if output_type == "pil" else self.dtype
        levels = _levels(dtype)
        array = array.astype(dtype) if levels == 1 else np.rint(array * levels).astype(dtype)
        if self.alpha is not None:
            alpha = self.alpha if self.dtype == dtype else np.rint(self.alpha * (levels / _levels(self.dtype)))
            array = np.concatenate([array, alpha.astype(dtype)], axis=-1)
        if output_type == "np":
            return array[..., 0] if self.channels == 0 else array
        return PIL.Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)


def as_array(image: Image) -> np.ndarray:
    """An image as an array (H, W) or (H, W, 1 to 4), upright. ValueError for an unknown type, shape or file."""
    if isinstance(image, str | os.PathLike):
        return _read(image)
    if isinstance(image, PIL.Image.Image):
        upright = PIL.ImageOps.exif_transpose(image)
        if upright.mode.startswith("I;16"):
            return np.asarray(upright).astype(np.uint16)  # which may be of the other byte order
        if upright.mode in ("I", "F"):
            raise ValueError(f"a PIL image of mode {upright.mode} has no known range: give 8 bits, I;16 or an array")
        grey = upright.mode in ("1", "L", "LA", "La")
        has_alpha = upright.has_transparency_data
        return np.asarray(upright.convert(("LA" if grey else "RGBA") if has_alpha else "L" if grey else "RGB"))
    if not isinstance(image, np.ndarray):
        raise ValueError(
            f"an image must be a PIL image, an array, a tensor or a file's name, got {type(image).__name__}"
        )
    image = image.astype(image.dtype.newbyteorder("="), copy=False)  # torch knows the machine's byte order alone
    if image.ndim not in (2, 3) or (image.ndim == 3 and not 1 <= image.shape[-1] <= 4):
        raise ValueError(f"an image array must be (H, W) or (H, W, 1 to 4), got {image.shape}")
    return image


def read_images(images: Any) -> tuple[Tensor, list[Layout]]:
    """Read images of one size as a tensor (N, 3, H, W) in [0, 1], with the `Layout` of each.

    Args:
        images: a tensor (3, H, W) or (N, 3, H, W) of floats in [0, 1], uint8 or uint16; or one of these, or a list of
            them: PIL images (8 bits, or 16-bit grey), which are rotated upright; arrays (H, W) or (H, W, C) of uint8,
            uint16 or floats in [0, 1], where C is 1 (grey), 2 (grey and alpha), 3 (RGB) or 4 (RGBA); names of image
            files, which are read as sample.py reads them.

    Raises:
        ValueError: an unknown type, shape or range, images of different sizes, or a file that cannot be read.
    """
    if isinstance(images, Tensor):
        batch = images[None] if images.ndim == 3 else images
        if batch.ndim != 4 or batch.shape[1] != 3:
            raise ValueError(f"an image tensor must be (3, H, W) or (N, 3, H, W), got {tuple(images.shape)}")
        return _unit(batch), [Layout(np.dtype(np.uint8), 3, None)] * len(batch)
    is_batch = isinstance(images, list | tuple) or (isinstance(images, np.ndarray) and images.ndim == 4)
    arrays = [as_array(image) for image in (images if is_batch else [images])]
    sizes = {array.shape[:2] for array in arrays}
    if len(sizes) != 1:
        raise ValueError(f"a batch needs images of one size, got {sorted((w, h) for h, w in sizes)}")
    tensors, layouts = [], []
    for array in arrays:
        planes = array[..., None] if array.ndim == 2 else array
        grey, has_alpha = planes.shape[-1] < 3, planes.shape[-1] in (2, 4)
        colours = torch.from_numpy(np.array(planes[..., : 1 if grey else 3])).movedim(-1, 0)
        tensors.append(_unit(colours).expand(3, -1, -1))
        alpha = planes[..., -1:] if has_alpha else None
        layouts.append(Layout(array.dtype, 0 if array.ndim == 2 else planes.shape[-1], alpha))
    return torch.stack(tensors), layouts


def visible_pixels(alphas: Sequence[Tensor | None]) -> Tensor | None:
    """Where images of one size with these alphas (1, H, W) are not wholly transparent, (N, 1, H, W) of bool.

    None if all pixels are visible.
    """
    planes = [None if alpha is None else alpha.bool() for alpha in alphas]
    hiding = next((plane for plane in planes if plane is not None and not plane.all()), None)
    if hiding is None:
        return None
    return torch.stack([torch.ones_like(hiding) if plane is None else plane for plane in planes])


def with_hidden_filled(images: Tensor, visible: Tensor | None) -> Tensor:
    """Images (N, 3, H, W) whose hidden pixels continue the colours of the visible ones, whatever theirs were.

    A network sees hidden pixels beside visible ones, so that their colours would change these. A hidden pixel gets the
    mean colour of the smallest block around it that has visible pixels, of 2, 4, 8 and so on pixels a side, with smooth
    transitions (pull-push interpolation, Gortler et al., SIGGRAPH 1996).

    Args:
        images: any range.
        visible: (N, 1, H, W) of bool; None: all pixels are, and the images are returned themselves.
    """
    if visible is None:
        return images
    weights = visible.to(images)
    return torch.where(visible, images, _spread(torch.where(visible, images, 0.0), weights))


def _spread(sums: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums (N, 3, h, w) over their weights (N, 1, h, w), and where those are 0 what lies around."""
    means = sums / torch.where(weights > 0, weights, 1.0)
    if (weights > 0).all() or means.shape[-2:] == (1, 1):
        return means
    halves = (avg_pool2d(values, 2, ceil_mode=True, count_include_pad=False) for values in (sums, weights))
    around = interpolate(_spread(*halves), size=means.shape[-2:], mode="bilinear")
    return torch.where(weights > 0, means, around)


def restorable(visible: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """The weight (N, 1, H, W), or of a mask alone (H, W), of what may be restored; None: everything.

    Args:
        visible: (N, 1, H, W) of bool, what is not transparent; None: all is.
        mask: (H, W) in [0, 1], what is to be restored; None: anything.
    """
    if mask is None:
        return None if visible is None else visible.float()
    return mask if visible is None else mask * visible


def write_images(restored: Tensor, layouts: Sequence[Layout], output_type: str) -> list:
    """Convert a tensor (N * K, 3, H, W), with the K samples of each image in a row, to PIL images or arrays."""
    count = len(restored) // len(layouts)
    return [layouts[i // count].image(image, output_type) for i, image in enumerate(restored)]


def _read(path: str | os.PathLike) -> np.ndarray:
    """An image file as an array (H, W, 1 to 4), upright; its metadata are not kept."""
    # Not at the top: networks know nothing of files, and its packages are not needed for images in memory.
    from deblur.data.files.decoding import read_file

    raster = read_file(path)
    planes = [raster.pixels[:1] if raster.grey else raster.pixels]
    if raster.alpha is not None:
        planes.append(raster.alpha)
    return np.moveaxis(np.concatenate([plane.numpy() for plane in planes]), 0, -1)


def _unit(values: Tensor) -> Tensor:
    """Convert to floats in [0, 1], whatever the channels."""
    if values.dtype in (torch.uint8, torch.uint16):
        return values.float().div_(torch.iinfo(values.dtype).max)
    if not values.is_floating_point():
        raise ValueError(f"pixels must be uint8, uint16 or floats in [0, 1], got {values.dtype}")
    low, high = (values.min().item(), values.max().item()) if values.numel() else (0.0, 1.0)
    if not (low >= -LARGEST_OVERSHOOT and high <= 1 + LARGEST_OVERSHOOT):
        raise ValueError(f"pixels that are floats must lie in [0, 1], got {low:g} to {high:g}: divide them")
    return values.float()


def _levels(dtype: np.dtype) -> int:
    """The value that stands for 1.0 in this type."""
    return np.iinfo(dtype).max if dtype.kind == "u" else 1
