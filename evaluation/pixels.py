"""The input of every metric, and PSNR and SSIM, as they are and after alignment.

All of them score the image as a file would hold it: RGB, clipped to [0, 1], rounded to 8 bits, the whole image. They
are called as `evaluation.metrics.Metric`, which states shapes, ranges and errors. PSNR is own code and SSIM kornia's:
they agree with scikit-image's, which score one NumPy array at a time and so would copy every image to the host.
torchmetrics' SSIM is another number, since it averages over a mirrored border, too.

RealBlur's ground truth comes from a second camera, so a good result may be shifted against it (Rim et al. 2020). Its
aligned scores register the restored image first. The steps, which maximise the enhanced correlation coefficient
(Evangelidis and Psarakis 2008), and their OpenCV functions are those of the authors' script (rimchang/RealBlur,
evaluation_RealBlur_ecc.py).
"""

from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Literal

import kornia
import numpy as np
import torch
from PIL import Image
from torch import Tensor

try:
    import cv2
except ImportError:  # it is optional
    cv2 = None

IMAGE = "RGB, clipped to [0, 1], rounded to 8 bits, full frame without a crop"
PSNR_RECIPE = (
    f"PSNR in dB: {IMAGE}; range 255, one mean squared error over pixels and channels; own code on torch "
    f"{torch.__version__}"
)
SSIM_RECIPE = (
    f"SSIM: {IMAGE}; Gaussian window 11 with sigma 1.5 and population covariance, as in the paper's own code, "
    "range 255, K1 0.01, K2 0.03, mean over the pixels whose window lies inside the frame, then over the channels; "
    f"kornia {version('kornia')}"
)
_ALIGNMENT = (
    "RGB, clipped to [0, 1], rounded to 8 bits; the restored image scaled by one factor to the ground truth's "
    "intensity, homography by maximising the enhanced correlation coefficient on greys smoothed by a 5 x 5 Gaussian "
    "(100 steps), warped bicubically with the mirrored edge, not rounded again; over the pixels that both show, as "
    "evaluation_RealBlur_ecc.py of RealBlur's authors"
)
ALIGNED_RECIPES = {
    "psnr": f"Aligned PSNR in dB: {_ALIGNMENT}; range 1",
    "ssim": (
        f"Aligned SSIM: {_ALIGNMENT}; Gaussian window 11 with sigma 1.5, population covariance, range 1, mean over the "
        "pixels whose window lies inside the frame and whose middle both images show, then over the channels"
    ),
}
WINDOW = 11  # of SSIM, in pixels


def full_precision() -> AbstractContextManager:
    """Disable TF32 within: its 10 bits are too few for a variance and would affect the last digits of a distance."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


class MetricError(ValueError):
    """A metric cannot be computed; the message says why."""


def whole_numbers(image: Tensor) -> Tensor:
    """Convert an image of about [0, 1] to the whole numbers 0..255 of a file, as float32."""
    return image.float().clamp(0, 1).mul(255).round()


def eight_bits(image: Tensor) -> Image.Image:
    """(3, H, W), about [0, 1], in 8 bits."""
    return Image.fromarray(whole_numbers(image).byte().cpu().permute(1, 2, 0).numpy())


def check_pair(restored: Tensor, sharp: Tensor, metric: str = "", side: int = 1) -> tuple[Tensor, Tensor]:
    """(N, 3, H, W) pairs of about [0, 1] as whole numbers 0..255.

    Raises MetricError if they cannot be compared, or have fewer than the `side` rows and columns that the metric needs.
    """
    if restored.shape != sharp.shape or sharp.ndim != 4:
        raise MetricError(f"the restored image is {tuple(restored.shape)} and the sharp one {tuple(sharp.shape)}")
    require_finite(restored)
    if min(sharp.shape[-2:]) < side:
        raise MetricError(f"{metric} needs {side} pixels a side and the image is {sharp.shape[-1]}x{sharp.shape[-2]}")
    return whole_numbers(restored), whole_numbers(sharp)


def require_finite(restored: Tensor) -> None:
    """Raise MetricError if a value is not finite."""
    if not restored.isfinite().all():
        raise MetricError("the restored image holds values that are not finite")


@torch.no_grad()
def psnr(restored: Tensor, sharp: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB by PSNR_RECIPE; infinite if the rounded images are equal."""
    restored, sharp = check_pair(restored, sharp)
    return 10 * torch.log10(255**2 / (restored - sharp).square().mean((1, 2, 3)))


@torch.no_grad()
def ssim(restored: Tensor, sharp: Tensor) -> Tensor:
    """Structural similarity of each image (Wang et al. 2004), at most 1, by SSIM_RECIPE."""
    restored, sharp = check_pair(restored, sharp, "SSIM", WINDOW)
    return ssim_map(restored, sharp).mean((1, 2, 3))


def ssim_map(restored: Tensor, sharp: Tensor, levels: float = 255.0) -> Tensor:
    """SSIM by SSIM_RECIPE where the window fits inside: (N, C, H, W) in [0, levels] -> (N, C, H-10, W-10)."""
    with full_precision():
        return kornia.metrics.ssim(restored, sharp, WINDOW, levels, eps=0.0, padding="valid")


class Aligned:
    """PSNR or SSIM after alignment by OpenCV, called as `evaluation.metrics.Metric`; MetricError without OpenCV."""

    inputs = "restored", "sharp"

    def __init__(self, score: Literal["psnr", "ssim"]):
        if cv2 is None:
            raise MetricError(
                f"Aligned {score.upper()} is missing: it needs OpenCV; pip install opencv-python-headless "
                "(requirements-extra.txt)."
            )
        self.score = score
        self.recipe = f"{ALIGNED_RECIPES[score]}; OpenCV {cv2.__version__}"

    @torch.no_grad()
    def __call__(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """Score each image by the recipe."""
        restored, sharp = check_pair(restored, sharp, "alignment", WINDOW)
        values = []
        for image, target in zip(restored / 255, sharp / 255, strict=True):
            aligned, mask = align(image, target)
            if self.score == "psnr":
                values.append(-10 * torch.log10(((aligned - target) * mask).square().sum() / (3 * mask.sum())))
            else:
                similarity = ssim_map((aligned * mask)[None], (target * mask)[None], levels=1.0)[0]
                inside = mask[5:-5, 5:-5]
                values.append(((similarity * inside).sum((1, 2)) / inside.sum()).mean())
        return torch.stack(values)


def align(restored: Tensor, sharp: Tensor) -> tuple[Tensor, Tensor]:
    """Register a restored image to the ground truth, both (3, H, W) in [0, 1].

    Returns:
        The aligned image, (3, H, W), and a mask (H, W) that is 1 at the pixels it covers and 0 elsewhere.

    Raises:
        MetricError: no homography was found.
    """
    image, target = (x.permute(1, 2, 0).contiguous().cpu().numpy() for x in (restored, sharp))
    power = (image * image).sum()
    if power == 0:
        raise MetricError("the restored image is black and cannot be aligned with the ground truth")
    image = (image * target).sum() / power * image
    greys = [cv2.cvtColor(x, cv2.COLOR_RGB2GRAY) for x in (target, image)]
    steps = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 100, 0)
    try:
        _, homography = cv2.findTransformECC(
            *greys, np.eye(3, dtype=np.float32), cv2.MOTION_HOMOGRAPHY, steps, None, gaussFiltSize=5
        )
    except cv2.error as error:  # the images are uncorrelated, or one is flat
        raise MetricError("the restored image could not be aligned with the ground truth") from error
    size = target.shape[1::-1]
    cubic, nearest = (kind + cv2.WARP_INVERSE_MAP for kind in (cv2.INTER_CUBIC, cv2.INTER_NEAREST))
    aligned = cv2.warpPerspective(image, homography, size, flags=cubic, borderMode=cv2.BORDER_REFLECT)
    mask = cv2.warpPerspective(
        np.ones_like(image[..., 0]), homography, size, flags=nearest, borderMode=cv2.BORDER_CONSTANT
    )
    return torch.from_numpy(aligned).permute(2, 0, 1).to(sharp), torch.from_numpy(mask).to(sharp)
