"""The input of every metric, and the metrics without a network: PSNR, SSIM, sharpness, consistency with the blur.

All of them score the image as a file would hold it: RGB, clipped to [0, 1], rounded to 8 bits, the whole image. They
are called as `evaluation.metrics.Metric`, which states shapes, ranges and errors. PSNR and SSIM are own code because
scikit-image's, with which they agree, score one NumPy array at a time and so would copy every image to the host.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import kornia
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

IMAGE = "RGB, clipped to [0, 1], rounded to 8 bits, full frame without a crop"
_HERE = f"own code on torch {torch.__version__}"

PSNR_RECIPE = f"PSNR in dB: {IMAGE}; range 255, one mean squared error over pixels and channels; {_HERE}"
_SSIM_CONSTANTS = "range 255, K1 0.01, K2 0.03"
SSIM_RECIPE = (
    f"SSIM: {IMAGE}; Gaussian window 11 with sigma 1.5 and population covariance, as in the paper's own code, "
    f"{_SSIM_CONSTANTS}, mean over the pixels whose window lies inside the frame, then over the channels; {_HERE}"
)
SSIM_MATLAB_RECIPE = (
    f"SSIM, MATLAB: {IMAGE}; Gaussian window 11 x 11 x 11 with sigma 1.5 over rows, columns and channels, the edge "
    f"repeated, population covariance, as MATLAB's ssim of a colour image, {_SSIM_CONSTANTS}, mean over all values; "
    f"{_HERE}"
)
SHARPNESS_RECIPE = (
    f"Sharpness: {IMAGE}; sum of the squared differences of neighbouring pixels, to the right and downwards, of the "
    f"restored image over that of the ground truth, 1 is as sharp as the ground truth; {_HERE}"
)
_CONSISTENCY_RECIPE = (
    f"Consistency in dB: {IMAGE}; the restored image averaged over its blur kernel in linear light (sRGB curve), "
    f"rounded to 8 bits, PSNR to the blurry image over the pixels whose window lies inside the frame; "
    f"kornia {kornia.__version__}"
)

_GAUSSIAN = torch.exp(-(torch.arange(-5.0, 6.0) ** 2) / (2 * 1.5**2))
_GAUSSIAN /= _GAUSSIAN.sum()


def full_precision() -> AbstractContextManager:
    """Disable TF32 within: its 10 bits are too few for a variance and would affect the last digits of a distance."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


class MetricError(ValueError):
    """A metric cannot be computed; the message says why."""


def whole_numbers(image: Tensor) -> Tensor:
    """Convert an image of about [0, 1] to the whole numbers 0..255 of a file, as float32."""
    return image.float().clamp(0, 1).mul(255).round()


def check_pair(restored: Tensor, sharp: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 3, H, W) pairs of about [0, 1] as whole numbers 0..255; MetricError if they cannot be compared."""
    if restored.shape != sharp.shape or sharp.ndim != 4:
        raise MetricError(f"the restored image is {tuple(restored.shape)} and the sharp one {tuple(sharp.shape)}")
    require_finite(restored)
    return whole_numbers(restored), whole_numbers(sharp)


def require_finite(restored: Tensor) -> None:
    """Raise MetricError if a value is not finite."""
    if not restored.isfinite().all():
        raise MetricError("the restored image holds values that are not finite")


def require_side(image: Tensor, side: int, metric: str) -> None:
    """Raise MetricError if an image has fewer than `side` rows or columns."""
    if min(image.shape[-2:]) < side:
        raise MetricError(f"{metric} needs {side} pixels a side and the image is {image.shape[-1]}x{image.shape[-2]}")


@torch.no_grad()
def psnr(restored: Tensor, sharp: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB by PSNR_RECIPE; infinite if the rounded images are equal."""
    restored, sharp = check_pair(restored, sharp)
    return _decibels((restored - sharp).square().mean((1, 2, 3)))


def _decibels(squared_error: Tensor) -> Tensor:
    return 10 * torch.log10(255**2 / squared_error)


@torch.no_grad()
def ssim(restored: Tensor, sharp: Tensor) -> Tensor:
    """Structural similarity of each image (Wang et al. 2004), at most 1, by SSIM_RECIPE."""
    restored, sharp = check_pair(restored, sharp)
    require_side(sharp, len(_GAUSSIAN), "SSIM")
    return ssim_map(restored, sharp).mean((1, 2, 3))


@torch.no_grad()
def ssim_matlab(restored: Tensor, sharp: Tensor) -> Tensor:
    """The same as `ssim`, by SSIM_MATLAB_RECIPE; for an image of any size."""
    restored, sharp = check_pair(restored, sharp)
    radius = len(_GAUSSIAN) // 2
    # Weight of each channel in the window of each channel; beyond the first and the last channel the edge repeats.
    channels = torch.zeros(3, 3)
    for channel in range(3):
        at = (channel + torch.arange(-radius, radius + 1)).clamp(0, 2)
        channels[channel].index_add_(0, at, _GAUSSIAN)
    channels = channels.to(sharp.device)

    def average(maps: Tensor) -> Tensor:
        blurred = _weighted_mean(F.pad(maps, (radius,) * 4, mode="replicate"), _GAUSSIAN)
        return torch.einsum("dc,nchw->ndhw", channels, blurred)

    return _similarity(restored, sharp, average).mean((1, 2, 3))


def ssim_map(restored: Tensor, sharp: Tensor, levels: float = 255.0) -> Tensor:
    """SSIM by SSIM_RECIPE where the window fits inside: (N, C, H, W) in [0, levels] -> (N, C, H-10, W-10)."""
    return _similarity(restored, sharp, lambda maps: _weighted_mean(maps, _GAUSSIAN), levels=levels)


def _similarity(restored: Tensor, sharp: Tensor, average: Callable[[Tensor], Tensor], levels: float = 255.0) -> Tensor:
    """Equation 13 of Wang et al. 2004 at each pixel, with population covariance."""
    middle = levels / 2  # centring the values keeps more digits of a variance
    x, y = restored - middle, sharp - middle
    mean_x, mean_y, xx, yy, xy = average(torch.cat([x, y, x * x, y * y, x * y])).chunk(5)
    variances = xx - mean_x**2 + yy - mean_y**2
    covariance = xy - mean_x * mean_y
    mean_x, mean_y = mean_x + middle, mean_y + middle
    c1, c2 = (0.01 * levels) ** 2, (0.03 * levels) ** 2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    return luminance * (2 * covariance + c2) / (variances + c2)


def _weighted_mean(maps: Tensor, window: Tensor) -> Tensor:
    """Mean over a separable window at each pixel where it fits: (N, C, H, W) -> (N, C, H-K+1, W-K+1)."""
    channels = maps.shape[1]
    window = window.to(maps).expand(channels, 1, -1)
    with full_precision():
        rows = F.conv2d(maps, window.unsqueeze(3), groups=channels)
        return F.conv2d(rows, window.unsqueeze(2), groups=channels)


@torch.no_grad()
def sharpness(restored: Tensor, sharp: Tensor) -> Tensor:
    """Gradient energy of each image over that of its ground truth, 0 or more, by SHARPNESS_RECIPE.

    1 is as sharp as the ground truth. Noise and ringing count as sharpness.
    """

    def energy(image: Tensor) -> Tensor:
        return sum(image.diff(dim=dim).square().sum((1, 2, 3)) for dim in (2, 3))

    restored, sharp = check_pair(restored, sharp)
    expected = energy(sharp)
    if not expected.all():
        raise MetricError("sharpness compares with the ground truth's gradients and the sharp image has none")
    return energy(restored) / expected


class Consistency:
    """How well restored images, blurred again, match the blurry ones, in dB; needs the blur kernels.

    `reason`, `recipe` and calls are those of `evaluation.metrics.Metric`; `sharp` is not used.

    Args:
        kernels: .npz file with a (K, K) array, K odd, under the name of each image;
            blurry(p) = sum over d of kernel(d) sharp(p + d). None: the metric is missing.

    Raises:
        MetricError: the file cannot be read or holds an array that is not a kernel.
    """

    def __init__(self, kernels: str | Path | None):
        self.reason, self.recipe = None, _CONSISTENCY_RECIPE
        if kernels is None:
            self.recipe = None
            self.reason = (
                "Consistency is missing: it needs the blur kernel of every image; give them with --kernels FILE "
                "(.npz, one array under each image's name)."
            )
            return
        try:
            with np.load(kernels, allow_pickle=False) as arrays:
                self.kernels = {name: torch.from_numpy(arrays[name]).float() for name in arrays.files}
        except OSError as error:
            raise MetricError(f"Kernels {kernels} cannot be read: {error.strerror or error}.") from error
        except (ValueError, TypeError, AttributeError) as error:  # not an archive, pickled objects, not numbers
            raise MetricError(f"Kernels {kernels} are no .npz file of numbers.") from error
        for name, kernel in self.kernels.items():
            square = kernel.ndim == 2 and kernel.shape[0] == kernel.shape[1] and len(kernel) % 2
            if not square or not kernel.isfinite().all() or not kernel.sum() > 0:
                raise MetricError(f"Kernels {kernels}: {name} is no square array of odd size and positive sum.")

    @torch.no_grad()
    def __call__(self, restored: Tensor, sharp: Tensor, blurry: Tensor, names: Sequence[str]) -> Tensor:
        """PSNR of each re-blurred image to its blurry one by the recipe; `names` are those of the kernel file."""
        require_finite(restored)
        light = kornia.color.rgb_to_linear_rgb(whole_numbers(restored) / 255)
        values = []
        for image, seen, name in zip(light, blurry, names, strict=True):
            if name not in self.kernels:
                raise MetricError(f"no blur kernel is known for {name}")
            kernel = self.kernels[name].to(light.device)
            require_side(image, len(kernel), "consistency")
            with full_precision():
                blurred = kornia.filters.filter2d(
                    image[None], kernel[None], normalized=True, padding="valid", behaviour="corr"
                )
            again = whole_numbers(kornia.color.linear_rgb_to_rgb(blurred))[0]
            border = len(kernel) // 2
            inside = whole_numbers(seen)[:, border : seen.shape[1] - border, border : seen.shape[2] - border]
            values.append(_decibels((again - inside).square().mean()))
        return torch.stack(values)
