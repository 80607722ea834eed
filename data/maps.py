"""Maps of a number per pixel, as files to look at and files to compute with."""

from pathlib import Path

import numpy as np
import tifffile
import torch
from torch import Tensor

from base.files import replacing
from data import images

BRIGHTEST = 99.5  # percentile that the brightest colour stands for: a few bright pixels would leave the rest black


def heat_map(values: Tensor) -> tuple[Tensor, float]:
    """The mean of values (C, H, W) over the channels in colours (3, H, W), and what the brightest colour stands for."""
    import matplotlib

    mean = values.cpu().mean(dim=0).numpy()
    white = float(np.percentile(mean, BRIGHTEST))
    colours = matplotlib.colormaps["inferno"](mean / max(white, 1e-6), bytes=True)[..., :3]
    return torch.from_numpy(colours).movedim(-1, 0) / 255, white


def write_map(path: Path, values: Tensor) -> float:
    """Write values (C, H, W), one channel or three, as a heat map and as floats.

    Args:
        path: of the heat map of their mean over the channels, a PNG; the floats stand in the .tif beside it.

    Returns:
        What the brightest colour stands for.
    """
    colours, white = heat_map(values)
    images.write(path, colours)
    floats = values.cpu().expand(3, -1, -1).movedim(0, -1).contiguous().numpy()
    with replacing(path.with_suffix(".tif")) as part:
        tifffile.imwrite(part, floats, photometric="rgb")
    return round(white, 6)
