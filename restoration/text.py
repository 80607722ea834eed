"""Recognise a page of text, for which photographs' checkpoints are not made."""

from torch import Tensor
from torch.nn.functional import interpolate

# Tried on 408 photographs, of which none is taken for a page, and on 72 pages, sharp or blurred by a sigma of up to 4
# pixels, of which 70 are.
LOOKED_AT = 512  # pixels, the longer side of the copy that is looked at
BLOCK = 32  # pixels a side, of its parts
PAPER = 0.85  # quantile of a block's brightness that is the ground: letters cover less than the rest of it
BRIGHT = 0.6  # the least brightness of the ground; light letters on a dark one are those of a night, too
SHADE = 0.065  # the standard deviation of the ground's brightness over the page, at most
COLOURED = 0.08  # the mean difference between the channels, at most
INK, GLARE = 0.12, 0.06  # darker and lighter than the ground, from which on a pixel is a letter's or something else's
FEW_PIXELS = 0.04, 0.02  # shares of a block: of letters and of something else, up to which it has none
FEWEST_LETTERS, FEWEST_ALIKE = 0.3, 0.9  # shares of the page: of blocks with letters, and of these and empty ones


def looks_like_text(image: Tensor) -> bool:
    """Whether an image (3, H, W) in [0, 1] is dark letters on an even, bright ground, in most of its parts."""
    height, width = image.shape[-2:]
    scale = min(1.0, LOOKED_AT / max(height, width))
    size = [max(BLOCK, int(scale * side)) for side in (height, width)]
    small = interpolate(image[None], size, mode="area")[0]
    rows, columns = (side // BLOCK * BLOCK for side in size)
    blocks = small.mean(0)[:rows, :columns].unfold(0, BLOCK, BLOCK).unfold(1, BLOCK, BLOCK).flatten(2).flatten(0, 1)
    ground = blocks.quantile(PAPER, dim=1)
    darker = ground[:, None] - blocks
    letters = (darker > INK).float().mean(1) > FEW_PIXELS[0]
    others = (darker < -GLARE).float().mean(1) > FEW_PIXELS[1]
    colour = (small.amax(0) - small.amin(0)).mean()
    is_even = ground.mean() > BRIGHT and ground.std(correction=0) < SHADE and colour < COLOURED
    has_letters = (letters & ~others).float().mean() > FEWEST_LETTERS
    return bool(is_even and has_letters and (~others).float().mean() > FEWEST_ALIKE)
