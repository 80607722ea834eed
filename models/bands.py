"""The paper's U-Net on large images: the same values as `UNet.forward`, in a fraction of the memory.

Every block runs in bands of rows, so only the features between two blocks are held for the whole image.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from models.tiling import spans
from models.unet import Denoiser, UNet, UNetPredictor

CPU_BANDS, GPU_BANDS = 64, 8  # bands per image; memory follows the size of a band, and a GPU needs large ones
CPU_PIXELS, GPU_PIXELS = 1 << 17, 1 << 20  # smaller images gain nothing from bands
HALO = 2  # rows above and below that a block sees, in steps


class InBands:
    """A `UNet` predictor or denoiser that is called as usual but runs in bands. For sampling: it has no gradients."""

    def __init__(self, network: UNetPredictor | Denoiser):
        self.network = network
        self.prediction_type = getattr(network, "prediction_type", None)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The network's output for these inputs."""
        return self.network(*inputs, run=unet_in_bands)


def is_large(image: Tensor, side: int | None = None) -> bool:
    """Whether bands pay off for an image (N, C, H, W), or for its tiles of that side, halo included."""
    height, width = (length if side is None else min(side, length) for length in image.shape[-2:])
    return height * width > (CPU_PIXELS if image.device.type == "cpu" else GPU_PIXELS)


def unet_in_bands(unet: UNet, *images: Tensor, embedding: Tensor | None = None) -> Tensor:
    """Compute unet(*images, embedding=embedding), each block in bands of rows."""
    height, width = images[0].shape[-2:]
    places = height * width // (CPU_BANDS if images[0].device.type == "cpu" else GPU_BANDS)  # pixels per band

    def join(upsample: nn.Module | None, block: nn.Module, h: Tensor, skip: Tensor) -> Tensor:
        h = h if upsample is None else upsample(h, embedding)
        return block(torch.cat([h, skip], dim=1), embedding)

    h = in_bands(unet.enter, images, places, unet.stride)  # (N, c, H, W)
    skips = [h]
    for block in unet.down:
        step = 2 if isinstance(block.resample, nn.AvgPool2d) else 1
        h = in_bands(partial(block, embedding=embedding), [h], places, step)
        skips.append(h)
    for block in unet.middle:
        h = in_bands(partial(block, embedding=embedding), [h], places)
    upsample = None
    for block in unet.up:
        if isinstance(block.resample, nn.Upsample):
            upsample = block  # done within the bands of the next block: its full output would be the largest tensor
            continue
        h = in_bands(partial(join, upsample, block), [h, skips.pop()], places)
        upsample = None
    return in_bands(unet.leave, [h], places)[..., :height, :width]


def in_bands(function: Callable[..., Tensor], inputs: Sequence[Tensor], places: int, step: int = 1) -> Tensor:
    """Compute function(*inputs) in bands of rows.

    Args:
        function: sees at most `HALO` steps up and down, and returns the same number of rows for each step.
        inputs: (N, C, H, W); every height is a multiple of the smallest one.
        places: approximate number of pixels in a band of the largest input.
        step: rows of the input with the fewest rows that belong together.
    """
    least = min(x.shape[-2] for x in inputs)
    largest = max(x.shape[-2] * x.shape[-1] for x in inputs)
    steps = -(-least // step)
    core = max(1, steps * places // largest)
    if core >= steps:
        return function(*inputs)
    rows = [step * (x.shape[-2] // least) for x in inputs]  # rows per step
    result = None
    for top, start, stop, bottom in spans(steps, core, HALO):
        part = function(*(x[..., top * n : bottom * n, :] for x, n in zip(inputs, rows, strict=True)))
        n = part.shape[-2] // (bottom - top)
        if result is None:
            shape = *part.shape[:2], steps * n, part.shape[-1]
            last = part.is_contiguous(memory_format=torch.channels_last)
            layout = torch.channels_last if last else torch.contiguous_format
            result = torch.empty(shape, dtype=part.dtype, device=part.device, memory_format=layout)
        result[..., start * n : stop * n, :] = part[..., (start - top) * n : (stop - top) * n, :]
    return result
