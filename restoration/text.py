"""Recognise a page of text, for which photographs' checkpoints are not made."""

from torch import Tensor
from torch.nn.functional import interpolate

# Tried on 408 photographs, of which none is taken for a page, and on 72 pages, sharp or blurred by a sigma of up to 4
# pixels, of which 70 are.
LONGER_SIDE = 512  # pixels, of the copy that is looked at
BLOCK_SIDE = 32  # pixels, of its parts
GROUND_QUANTILE = 0.85  # of a block's brightness: the ground, since letters cover less than the rest of it
DARKEST_GROUND = 0.6  # mean brightness; light letters on a dark ground are those of a night, too
LARGEST_SHADING = 0.065  # standard deviation of the ground's brightness over the page
LARGEST_COLOUR = 0.08  # mean difference between the channels
LEAST_INK = 0.12  # darker than the ground: a pixel of a letter
LEAST_GLARE = 0.06  # lighter than the ground: a pixel of something else
LARGEST_STRAY_INK = 0.04  # share of a block's pixels, up to which it has no letters
LARGEST_STRAY_GLARE = 0.02  # the same of something else
SMALLEST_TEXT_SHARE = 0.3  # of the blocks: those with letters
SMALLEST_PLAIN_SHARE = 0.9  # of the blocks: these and the empty ones


def looks_like_text(image: Tensor) -> bool:
    """Whether an image (3, H, W) in [0, 1] is dark letters on an even, bright ground, in most of its parts."""
    height, width = image.shape[-2:]
    scale = min(1.0, LONGER_SIDE / max(height, width))
    size = [max(BLOCK_SIDE, int(scale * side)) for side in (height, width)]
    small = interpolate(image[None], size, mode="area")[0]
    rows, columns = (side // BLOCK_SIDE * BLOCK_SIDE for side in size)
    strips = small.mean(0)[:rows, :columns].unfold(0, BLOCK_SIDE, BLOCK_SIDE)
    blocks = strips.unfold(1, BLOCK_SIDE, BLOCK_SIDE).flatten(2).flatten(0, 1)  # (blocks, pixels)
    ground = blocks.quantile(GROUND_QUANTILE, dim=1)
    darker = ground[:, None] - blocks
    has_letters = (darker > LEAST_INK).float().mean(1) > LARGEST_STRAY_INK
    has_others = (darker < -LEAST_GLARE).float().mean(1) > LARGEST_STRAY_GLARE
    colour = (small.amax(0) - small.amin(0)).mean()
    is_even = ground.mean() > DARKEST_GROUND and ground.std(correction=0) < LARGEST_SHADING and colour < LARGEST_COLOUR
    is_text = (has_letters & ~has_others).float().mean() > SMALLEST_TEXT_SHARE
    return bool(is_even and is_text and (~has_others).float().mean() > SMALLEST_PLAIN_SHARE)
