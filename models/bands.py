"""The paper's U-Net on large images: the same values as `UNet.forward`, in a fraction of the memory.

Every block runs in bands of rows, so that of an image only what one block hands to the next is there as a whole.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from models.tiling import spans
from models.unet import Denoiser, UNet, UNetPredictor

CPU_BANDS, GPU_BANDS = 64, 8  # bands of the image; memory follows the size of a band, and a GPU wants large ones
CPU_PIXELS, GPU_PIXELS = 1 << 17, 1 << 20  # smaller images are not worth bands
HALO = 2  # rows that a block sees up and down, in steps


class InBands:
    """A predictor or denoiser of `UNet`, called as it is but run in bands. For sampling: there are no gradients."""

    def __init__(self, network: UNetPredictor | Denoiser):
        self.network = network
        self.prediction_type = getattr(network, "prediction_type", None)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What the network gives for these inputs."""
        return self.network(*inputs, run=unet_in_bands)


def is_large(image: Tensor, side: int | None = None) -> bool:
    """Whether bands pay for an image (N, C, H, W), or where it goes in tiles for tiles of that side, halo included."""
    height, width = (length if side is None else min(side, length) for length in image.shape[-2:])
    return height * width > (CPU_PIXELS if image.device.type == "cpu" else GPU_PIXELS)


def unet_in_bands(unet: UNet, *images: Tensor, embedding: Tensor | None = None) -> Tensor:
    """unet(*images, embedding=embedding), block after block in bands of rows."""
    height, width = images[0].shape[-2:]
    places = height * width // (CPU_BANDS if images[0].device.type == "cpu" else GPU_BANDS)  # of a band

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
            upsample = block  # in the bands of the next block: its whole result would be the largest of all
            continue
        h = in_bands(partial(join, upsample, block), [h, skips.pop()], places)
        upsample = None
    return in_bands(unet.leave, [h], places)[..., :height, :width]


def in_bands(function: Callable[..., Tensor], inputs: Sequence[Tensor], places: int, step: int = 1) -> Tensor:
    """function(*inputs), in bands of rows.

    Args:
        function: sees at most `HALO` steps up and down, and gives as many rows for each step.
        inputs: (N, C, H, W), whose heights are multiples of the least.
        places: about as many of them are in a band of the largest input.
        step: rows of the least high input that belong together.
    """
    least = min(x.shape[-2] for x in inputs)
    largest = max(x.shape[-2] * x.shape[-1] for x in inputs)
    steps = -(-least // step)
    core = max(1, steps * places // largest)
    if core >= steps:
        return function(*inputs)
    rows = [step * (x.shape[-2] // least) for x in inputs]  # of a step
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
