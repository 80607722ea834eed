"""Images to look at: comparisons, and maps of one number per pixel as heat maps and as floats."""

from pathlib import Path

import tifffile
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from deblur.data.files import images
from deblur.storage import replacing

SEARCH_STEP = 16  # pixels, between the places where the part that changed most is looked for
DETAIL_SIDE = 480  # pixels, of the part that a comparison shows at full size


def write_map(path: Path, values: Tensor) -> float:
    """Write values (1 or 3, H, W) as a heat map (PNG) and as floats in a .tif beside it.

    Returns the value of the brightest colour.
    """
    from deblur.evaluation.plots import heat_map  # not at the top: slow to import

    colours, white = heat_map(values)
    images.write(path, colours)
    floats = values.cpu().expand(3, -1, -1).movedim(0, -1).contiguous().numpy()
    with replacing(path.with_suffix(".tif")) as part:
        tifffile.imwrite(part, floats, photometric="rgb")
    return round(white, 6)


def write_before_and_after(path: Path, blurry: Tensor, restored: Tensor, prediction: Tensor | None) -> None:
    """Write a panel of the blurry and the restored image, and of the prediction if a sample made another one of it.

    It shows the whole images (3, H, W) and, if those are reduced in it, below them the part that changed most at full
    size.
    """
    from deblur.evaluation.plots import panel  # not at the top: slow to import

    shown = {"blurry": blurry, "restored": restored}
    if prediction is not None and not torch.equal(prediction, restored):
        shown["prediction"] = prediction
    columns = {}
    top, left = _most_changed(blurry, restored)
    for label, image in shown.items():
        height, width = image.shape[-2:]
        columns[label] = [image]
        if width > DETAIL_SIDE:
            size = max(1, height * DETAIL_SIDE // width), DETAIL_SIDE
            small = interpolate(image[None], size, mode="area")[0]
            columns[label] = [small, image[:, top : top + DETAIL_SIDE, left : left + DETAIL_SIDE]]
    panel(columns, path)


def _most_changed(blurry: Tensor, restored: Tensor) -> tuple[int, int]:
    """Top and left of the part of DETAIL_SIDE pixels a side in which two images (3, H, W) differ most."""
    squares = (restored - blurry).square_().mean(0, keepdim=True)
    blocks = avg_pool2d(squares[None], SEARCH_STEP, ceil_mode=True)
    rows, columns = (min(DETAIL_SIDE // SEARCH_STEP, side) for side in blocks.shape[-2:])
    sums = avg_pool2d(blocks, (rows, columns), stride=1)[0, 0]
    places = divmod(int(sums.flatten().argmax()), sums.shape[1])
    sides = blurry.shape[-2:]
    return tuple(max(0, min(SEARCH_STEP * at, side - DETAIL_SIDE)) for at, side in zip(places, sides, strict=True))
