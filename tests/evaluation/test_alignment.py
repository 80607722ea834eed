"""RealBlur's aligned scores against OpenCV, with which its authors' script works, and against known displacements."""

import importlib.util
import sys

import numpy as np
import pytest
import torch
from skimage import data
from skimage.metrics import structural_similarity
from skimage.transform import ProjectiveTransform, warp

from evaluation.alignment import Aligned
from evaluation.metrics import make_metrics
from evaluation.pixels import MetricError, psnr
from tests.evaluation import images
from tests.evaluation.images import RESTORED, tensor

MOVED = np.array([[1.01, 0.01, 2.3], [-0.012, 0.995, -1.6], [1e-5, -2e-5, 1]])
SHARP = data.astronaut()[100:300, 100:300]


def moved() -> np.ndarray:
    """What stands at MOVED @ p in SHARP stands at p here; what comes in at the border is there in the photograph."""
    corner = np.array([[1, 0, 100], [0, 1, 100], [0, 0, 1]])
    whole = ProjectiveTransform(corner @ MOVED @ np.linalg.inv(corner))
    shifted = warp(data.astronaut(), whole, order=3, preserve_range=True)[100:300, 100:300]
    return np.clip(shifted, 0, 255).round().astype(np.uint8)


needs_opencv = pytest.mark.skipif(importlib.util.find_spec("cv2") is None, reason="OpenCV is not installed")


@needs_opencv
def test_a_moved_and_darker_copy_scores_well_only_after_alignment():
    copy, sharp = tensor(moved()) * 0.9, tensor(SHARP)
    assert Aligned("psnr")(copy, sharp) > psnr(copy, sharp) + 10
    assert Aligned("ssim")(copy, sharp) > 0.95


def test_without_opencv_the_scores_say_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    made = make_metrics(["psnr_aligned"])["psnr_aligned"]
    assert made.recipe is None and "pip install opencv-python-headless" in made.reason
    with pytest.raises(MetricError, match="Aligned PSNR is missing"):
        made(tensor(SHARP), tensor(SHARP))


def opencv_scores(restored: np.ndarray, sharp: np.ndarray) -> dict[str, float]:
    """The steps of evaluation_RealBlur_ecc.py one after the other, with the libraries that it uses."""
    import cv2

    restored, sharp = (image.astype(np.float32) / 255 for image in (restored, sharp))
    scaled = (restored * sharp).sum() / (restored * restored).sum() * restored
    greys = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in (sharp, scaled)]
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 100, 0)
    _, matrix = cv2.findTransformECC(
        *greys, np.eye(3, dtype=np.float32), cv2.MOTION_HOMOGRAPHY, criteria, None, gaussFiltSize=5
    )
    size = sharp.shape[1::-1]
    cubic, nearest = (kind + cv2.WARP_INVERSE_MAP for kind in (cv2.INTER_CUBIC, cv2.INTER_NEAREST))
    aligned = cv2.warpPerspective(scaled, matrix, size, flags=cubic, borderMode=cv2.BORDER_REFLECT)
    mask = cv2.warpPerspective(np.ones_like(scaled), matrix, size, flags=nearest, borderMode=cv2.BORDER_CONSTANT)
    aligned, truth = aligned * mask, sharp * mask
    options = {"gaussian_weights": True, "use_sample_covariance": False, "data_range": 1.0, "channel_axis": 2}
    _, similarity = structural_similarity(truth, aligned, full=True, **options)
    inside = mask[5:-5, 5:-5]
    ssim = ((similarity[5:-5, 5:-5] * inside).sum((0, 1)) / inside.sum((0, 1))).mean()
    psnr = -10 * np.log10(((truth - aligned) ** 2).sum() / mask.sum())
    return {"psnr_aligned": psnr.item(), "ssim_aligned": ssim.item()}


@needs_opencv
@pytest.mark.parametrize("name", RESTORED)
def test_the_scores_equal_those_of_the_authors_steps(name):
    expected = opencv_scores(RESTORED[name], images.SHARP)
    pair = tensor(RESTORED[name]), tensor(images.SHARP)
    assert Aligned("psnr")(*pair).item() == pytest.approx(expected["psnr_aligned"], abs=1e-3)
    assert Aligned("ssim")(*pair).item() == pytest.approx(expected["ssim_aligned"], abs=1e-4)


@needs_opencv
def test_what_cannot_be_aligned_says_so():
    sharp, aligned = tensor(SHARP), Aligned("psnr")
    with pytest.raises(MetricError, match="black"):
        aligned(torch.zeros_like(sharp), sharp)
    with pytest.raises(MetricError, match="aligned"):
        aligned(torch.full_like(sharp, 0.5), sharp)
    with pytest.raises(MetricError, match="aligned"):
        aligned(1 - sharp, sharp)
    with pytest.raises(MetricError, match="needs 11 pixels a side"):
        aligned(sharp[..., :10], sharp[..., :10])
