"""Images to look at: reduced copies, and maps of one number per pixel as heat maps and as floats."""

from pathlib import Path

import numpy as np
import tifffile
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from deblur.data.files import images
from deblur.storage import replacing

BRIGHTEST = 99.5  # percentile shown in the brightest colour; the maximum would make most of the map black


def heat_map(values: Tensor) -> tuple[Tensor, float]:
    """The channel mean of values (C, H, W) as colours (3, H, W), and the value of the brightest colour."""
    import matplotlib

    mean = values.cpu().mean(dim=0).numpy()
    white = float(np.percentile(mean, BRIGHTEST))
    colours = matplotlib.colormaps["inferno"](mean / max(white, 1e-6), bytes=True)[..., :3]
    return torch.from_numpy(colours).movedim(-1, 0) / 255, white


def reduced(image: Tensor, most: int) -> Tensor:
    """An image (C, H, W), reduced by area averaging if it has more than `most` pixels."""
    height, width = image.shape[-2:]
    if height * width <= most:
        return image
    scale = (most / (height * width)) ** 0.5
    return interpolate(image[None], (max(1, int(height * scale)), max(1, int(width * scale))), mode="area")[0]


def write_map(path: Path, values: Tensor) -> float:
    """Write values (1 or 3, H, W) as a heat map (PNG) and as floats in a .tif beside it.

    Returns the value of the brightest colour.
    """
    colours, white = heat_map(values)
    images.write(path, colours)
    floats = values.cpu().expand(3, -1, -1).movedim(0, -1).contiguous().numpy()
    with replacing(path.with_suffix(".tif")) as part:
        tifffile.imwrite(part, floats, photometric="rgb")
    return round(white, 6)
