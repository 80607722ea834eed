"""PSNR, SSIM in three conventions, sharpness and consistency against scikit-image, SciPy and NumPy."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.signal import correlate2d
from skimage import io
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torchmetrics.functional.image import structural_similarity_index_measure

from evaluation.fidelity import Consistency, MetricError, psnr, sharpness, ssim, ssim_matlab
from evaluation.metrics import make_metrics
from tests.conftest import ASSETS
from tests.evaluation.images import RESTORED, SHARP, tensor

FRAMES = sorted((ASSETS / "pairs" / "blur").iterdir())
PAPERS = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}


def volume_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """MATLAB's ssim of (H, W, 3), in SciPy: equation 13 of Wang et al. with a Gaussian over three axes."""

    def average(values):
        return gaussian_filter(values, 1.5, mode="nearest", radius=5)

    x, y = x.astype(float), y.astype(float)
    mean_x, mean_y = average(x), average(y)
    variance = average(x * x) - mean_x**2 + average(y * y) - mean_y**2
    covariance = average(x * y) - mean_x * mean_y
    one, two = 2.55**2, 7.65**2
    similarity = (2 * mean_x * mean_y + one) * (2 * covariance + two)
    return (similarity / ((mean_x**2 + mean_y**2 + one) * (variance + two))).mean()


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_psnr_and_ssim_equal_scikit_image_on_real_frames(path):
    blurry, sharp = io.imread(path), io.imread(path.parents[1] / "sharp" / path.name)
    pair = tensor(blurry), tensor(sharp)
    assert psnr(*pair).item() == pytest.approx(peak_signal_noise_ratio(sharp, blurry, data_range=255), abs=1e-4)
    options = {"channel_axis": 2, "data_range": 255}
    assert ssim(*pair).item() == pytest.approx(structural_similarity(sharp, blurry, **options, **PAPERS), abs=1e-4)


@pytest.mark.parametrize("name", RESTORED)
def test_every_ssim_equals_another_implementation(name):
    restored, sharp = tensor(RESTORED[name]), tensor(SHARP)
    options = {"channel_axis": 2, "data_range": 255}
    expected = structural_similarity(SHARP, RESTORED[name], **options, **PAPERS)
    assert ssim(restored, sharp).item() == pytest.approx(expected, abs=1e-5)
    _, whole = structural_similarity_index_measure(
        restored * 255, sharp * 255, data_range=255.0, return_full_image=True, reduction="none"
    )
    assert ssim(restored, sharp).item() == pytest.approx(whole[..., 5:-5, 5:-5].mean().item(), abs=1e-4)
    assert ssim_matlab(restored, sharp).item() == pytest.approx(volume_ssim(RESTORED[name], SHARP), abs=1e-5)


def test_the_conventions_of_ssim_differ():
    pair = tensor(RESTORED["few levels"]), tensor(SHARP)
    assert abs(ssim(*pair) - ssim_matlab(*pair)) > 1e-3


def test_sharpness_equals_numpy_and_tells_blur_from_noise():
    def energy(image):
        return sum((np.diff(image.astype(float), axis=axis) ** 2).sum() for axis in (0, 1))

    restored = RESTORED["few levels"]
    assert sharpness(tensor(restored), tensor(SHARP)).item() == pytest.approx(
        energy(restored) / energy(SHARP), rel=1e-5
    )
    blurred = tensor(gaussian_filter(SHARP, (2, 2, 0)))
    assert sharpness(blurred, tensor(SHARP)) < 0.5
    assert sharpness(tensor(SHARP) + 0.1 * torch.randn(1, 3, 200, 200), tensor(SHARP)) > 1.5
    assert sharpness(tensor(SHARP), tensor(SHARP)) == 1
    with pytest.raises(MetricError, match="the sharp image has none"):
        sharpness(tensor(SHARP), torch.full((1, 3, 200, 200), 0.5))


def to_light(value: np.ndarray) -> np.ndarray:
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def from_light(light: np.ndarray) -> np.ndarray:
    return np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)


def reblur(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    light = to_light(image / 255)
    channels = [correlate2d(light[..., c], kernel, "valid") for c in range(3)]
    return np.round(from_light(np.stack(channels, axis=2)) * 255)


@pytest.fixture
def kernels(tmp_path) -> dict[str, np.ndarray]:
    """Two kernels that a mirrored or transposed use would mistake, written to tmp_path/kernels.npz."""
    one, two = np.zeros((5, 5)), np.zeros((7, 7))
    one[2, 2:], two[3:, 3] = 1 / 3, (0.4, 0.3, 0.2, 0.1)
    made = {"a/1": one, "b": two * 5}  # of any sum
    np.savez(tmp_path / "kernels.npz", **made)
    return made


def test_consistency_equals_scipy_image_by_image(kernels, tmp_path):
    consistency = Consistency(tmp_path / "kernels.npz")
    assert consistency.reason is None and "linear light" in consistency.recipe
    restored = torch.cat([tensor(RESTORED["few levels"]), tensor(RESTORED["every second row"])])
    blurry = torch.cat([tensor(SHARP)] * 2)
    values = consistency(restored, None, blurry, ["a/1", "b"])
    for value, image, name in zip(values, ("few levels", "every second row"), ("a/1", "b"), strict=True):
        kernel = kernels[name] / kernels[name].sum()
        border = len(kernel) // 2
        inside = SHARP[border:-border, border:-border].astype(float)
        expected = 10 * np.log10(255**2 / ((reblur(RESTORED[image], kernel) - inside) ** 2).mean())
        assert value.item() == pytest.approx(expected, abs=1e-3)


def test_the_truth_is_consistent_and_the_blurry_image_is_not(kernels, tmp_path):
    consistency = Consistency(tmp_path / "kernels.npz")
    blurry = SHARP.copy()
    blurry[2:-2, 2:-2] = reblur(SHARP, kernels["a/1"])
    truth = consistency(tensor(SHARP), None, tensor(blurry), ["a/1"])
    assert truth > 60 > 40 > consistency(tensor(blurry), None, tensor(blurry), ["a/1"])


def test_consistency_without_kernels_says_so(kernels, tmp_path):
    missing = Consistency(None)
    assert missing.recipe is None and "--kernels FILE" in missing.reason
    with pytest.raises(MetricError, match="Consistency is missing"):
        make_metrics(["consistency"])["consistency"](tensor(SHARP), tensor(SHARP), tensor(SHARP), ["a/1"])
    with pytest.raises(MetricError, match="no blur kernel is known for c"):
        Consistency(tmp_path / "kernels.npz")(tensor(SHARP), None, tensor(SHARP), ["c"])
    with pytest.raises(MetricError, match=r"absent.npz cannot be read: No such file"):
        Consistency(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("no kernels")
    with pytest.raises(MetricError, match=r"text.npz are no .npz file"):
        Consistency(tmp_path / "text.npz")
    np.savez(tmp_path / "even.npz", a=np.ones((4, 4)))
    with pytest.raises(MetricError, match=r"even.npz: a is no square array of odd size"):
        Consistency(tmp_path / "even.npz")
    np.savez(tmp_path / "pickled.npz", a=np.array([object()]))
    with pytest.raises(MetricError, match=r"pickled.npz are no .npz file of numbers"):
        Consistency(tmp_path / "pickled.npz")


@pytest.mark.parametrize("metric", [psnr, ssim, ssim_matlab, sharpness])
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


def test_equal_images_have_infinite_psnr():
    assert psnr(tensor(SHARP), tensor(SHARP)).item() == float("inf")


def test_what_cannot_be_scored_says_why():
    tiny = torch.rand(1, 3, 8, 8)
    assert psnr(tiny, tiny).isinf() and ssim_matlab(tiny, tiny).item() == pytest.approx(1)
    with pytest.raises(MetricError, match="SSIM needs 11 pixels a side and the image is 8x8"):
        ssim(tiny, tiny)
    with pytest.raises(MetricError, match="not finite"):
        psnr(tiny * float("nan"), tiny)
    with pytest.raises(MetricError, match=r"\(1, 3, 8, 8\).*\(1, 3, 8, 9\)"):
        psnr(tiny, torch.rand(1, 3, 8, 9))
