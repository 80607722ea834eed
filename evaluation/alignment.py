"""RealBlur's aligned scores (Rim et al. 2020): PSNR and SSIM after registering the restored image to the ground truth.

RealBlur's ground truth comes from a second camera, so a good result may be shifted against it. The steps below, which
maximise the enhanced correlation coefficient (Evangelidis and Psarakis 2008), and their OpenCV functions are those of
the authors' script (rimchang/RealBlur, evaluation_RealBlur_ecc.py); OpenCV is an optional dependency.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

try:
    import cv2
except ImportError:  # it is optional
    cv2 = None

from deblur.evaluation.pixels import WINDOW, MetricError, check_pair, require_side, ssim_map

_RECIPE = (
    "RGB, clipped to [0, 1], rounded to 8 bits; the restored image scaled by one factor to the ground truth's "
    "intensity, homography by maximising the enhanced correlation coefficient on greys smoothed by a 5 x 5 Gaussian "
    "(100 steps), warped bicubically with the mirrored edge, not rounded again; over the pixels that both show, as "
    "evaluation_RealBlur_ecc.py of RealBlur's authors"
)
_RECIPES = {
    "psnr": f"Aligned PSNR in dB: {_RECIPE}; range 1",
    "ssim": (
        f"Aligned SSIM: {_RECIPE}; Gaussian window 11 with sigma 1.5, population covariance, range 1, mean over the "
        "pixels whose window lies inside the frame and whose middle both images show, then over the channels"
    ),
}


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
        self.recipe = f"{_RECIPES[score]}; OpenCV {cv2.__version__}"

    @torch.no_grad()
    def __call__(self, restored: Tensor, sharp: Tensor) -> Tensor:
        """Score each image by the recipe."""
        restored, sharp = check_pair(restored, sharp)
        require_side(sharp, WINDOW, "alignment")
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
