"""PSNR and SSIM against scikit-image."""

import pytest
import torch
from skimage import io
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from evaluation.pixels import MetricError, psnr, ssim
from tests.conftest import ASSETS
from tests.evaluation.images import RESTORED, SHARP, tensor

FRAMES = {file.stem: file for file in sorted((ASSETS / "pairs" / "blur").iterdir())}
PAIRS = {name: (io.imread(file), io.imread(ASSETS / "pairs" / "sharp" / file.name)) for name, file in FRAMES.items()}
PAIRS |= {name: (image, SHARP) for name, image in RESTORED.items()}
PAPERS = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}


@pytest.mark.parametrize("name", PAIRS)
def test_psnr_and_ssim_equal_scikit_image(name):
    blurry, sharp = PAIRS[name]
    pair = tensor(blurry), tensor(sharp)
    assert psnr(*pair).item() == pytest.approx(peak_signal_noise_ratio(sharp, blurry, data_range=255), abs=1e-4)
    options = {"channel_axis": 2, "data_range": 255}
    assert ssim(*pair).item() == pytest.approx(structural_similarity(sharp, blurry, **options, **PAPERS), abs=1e-5)


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_a_batch_scores_each_image_alone(metric):
    restored, sharp = torch.cat([tensor(image) for image in RESTORED.values()]), tensor(SHARP)
    together = metric(restored, sharp.expand_as(restored))
    alone = [metric(image[None], sharp).item() for image in restored]
    assert together.tolist() == pytest.approx(alone, abs=1e-5)
    assert len(set(together.tolist())) == 3


def test_images_are_clipped_and_rounded_to_8_bits():
    restored, sharp = tensor(RESTORED["few levels"]), tensor(SHARP)
    assert psnr(restored + 0.4 / 255, sharp) == psnr(restored, sharp)
    assert psnr(torch.where(sharp == 1, 1.7, sharp), sharp).isinf()
    assert ssim(sharp + 0.4 / 255, sharp).item() == pytest.approx(1, abs=1e-6)


def test_what_cannot_be_scored_says_why():
    tiny = torch.rand(1, 3, 8, 8)
    assert psnr(tiny, tiny).isinf()
    with pytest.raises(MetricError, match="SSIM needs 11 pixels a side and the image is 8x8"):
        ssim(tiny, tiny)
    with pytest.raises(MetricError, match="not finite"):
        psnr(tiny * float("nan"), tiny)
    with pytest.raises(MetricError, match=r"\(1, 3, 8, 8\).*\(1, 3, 8, 9\)"):
        psnr(tiny, torch.rand(1, 3, 8, 9))
