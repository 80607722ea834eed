"""Two controls without a denoiser, which a sampling setting must beat to count as perceptual.

LPIPS falls when a prediction is sharpened, or when a little noise is added where it differs from the input. So a
sample's LPIPS is informative only beside those of the sharpened and of the noised prediction at equal PSNR
(`statistics.judge`).
"""

from collections.abc import Iterator

import kornia
import numpy as np
import torch
from torch import Tensor

from deblur.evaluation.grid import LABELS, NOISED, SHARPENED, STRENGTHS
from deblur.evaluation.pixels import full_precision

_SIGMA, _KERNEL = 1.5, 13  # of the unsharp mask, in pixels; the kernel ends at four standard deviations
_WINDOW = 9  # side of the local mean, in pixels
_FLOOR = 1e-6  # makes the noise uniform if the prediction equals the blurry image
RECIPES = {
    SHARPENED: f"x + a (x - G x): x is the prediction, G a Gaussian of {_SIGMA} px, a the number in the row's name",
    NOISED: (
        f"x + n: x is the prediction, n Gaussian noise whose standard deviation is proportional to the {_WINDOW} x "
        f"{_WINDOW} mean of |x - blurry| over the channels, too; the root of its mean variance is the number in the "
        "row's name, in 8-bit levels; drawn from the seed and the image's name"
    ),
}


def control_images(prediction: Tensor, blurry: Tensor, seed: int, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield every control of one image as (label, image (3, H, W), not clipped).

    Args:
        prediction: (3, H, W) in [0, 1].
        blurry: (3, H, W) in [0, 1].
        seed, name: determine the noise, which is the same field at every strength.
    """
    shape = noise_shape(prediction, blurry)
    drawn = np.random.default_rng([seed, *name.encode("utf-8", "surrogateescape")])
    field = drawn.standard_normal(prediction.shape, dtype=np.float32)
    noise = torch.from_numpy(field).to(prediction)
    for label, amount in zip(LABELS[SHARPENED], STRENGTHS[SHARPENED], strict=True):
        yield label, sharpen(prediction, amount)
    for label, level in zip(LABELS[NOISED], STRENGTHS[NOISED], strict=True):
        yield label, prediction + level / 255 * shape * noise


def sharpen(image: Tensor, amount: float) -> Tensor:
    """Unsharp mask: x + amount (x - G x), with G a Gaussian of 1.5 px and a repeated edge. (3, H, W) -> the same."""
    with full_precision():
        blurred = kornia.filters.gaussian_blur2d(image[None], (_KERNEL,) * 2, (_SIGMA,) * 2, "replicate")[0]
    return image + amount * (image - blurred)


def noise_shape(prediction: Tensor, blurry: Tensor) -> Tensor:
    """Local standard deviation of the noise, scaled to mean square 1: (1, H, W), from two images (3, H, W).

    Proportional to the mean of |prediction - blurry| over 9 x 9 pixels and the channels, with a repeated edge; 1
    everywhere if the two are equal.
    """
    change = (prediction - blurry).abs().mean(0, keepdim=True)
    with full_precision():
        local = kornia.filters.box_blur(change[None], _WINDOW, "replicate")[0] + _FLOOR
    return local / local.square().mean().sqrt()
