"""The metrics against scikit-image, torchmetrics, the authors' own LPIPS values, and what they refuse."""

import urllib.request
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from skimage import data, io
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torchmetrics.functional.image import structural_similarity_index_measure

from evaluation.metrics import PSNR_RECIPE, SSIM_RECIPE, Lpips, MetricError, psnr, ssim

WEIGHTS = Path(__file__).parents[2] / ".." / "shared" / "weights"
needs_weights = pytest.mark.skipif(not WEIGHTS.is_dir(), reason="../shared/weights is absent")


def tensor(picture: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 255


@pytest.fixture(scope="module")
def pair() -> tuple[np.ndarray, np.ndarray]:
    sharp = data.astronaut()[100:197, 150:281]
    noise = np.random.default_rng(0).normal(0, 12, sharp.shape)
    return np.clip(sharp + noise, 0, 255).round().astype(np.uint8), sharp


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """An empty weights cache, and a proxy that refuses at once."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    refusing = urllib.request.ProxyHandler({"https": "http://127.0.0.1:9"})
    urllib.request.install_opener(urllib.request.build_opener(refusing))
    yield tmp_path / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth"
    urllib.request.install_opener(None)


def test_psnr_equals_scikit_image(pair):
    restored, sharp = pair
    expected = peak_signal_noise_ratio(sharp, restored, data_range=255)
    assert psnr(tensor(restored), tensor(sharp)).item() == pytest.approx(expected, abs=1e-5)


def test_ssim_equals_scikit_image_and_torchmetrics(pair):
    restored, sharp = pair
    value = ssim(tensor(restored), tensor(sharp)).item()
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 255}
    assert value == pytest.approx(structural_similarity(sharp, restored, channel_axis=2, **options), abs=1e-6)
    _, whole = structural_similarity_index_measure(
        tensor(restored) * 255,
        tensor(sharp) * 255,
        data_range=255.0,
        return_full_image=True,
        reduction="none",
    )
    assert value == pytest.approx(whole[..., 5:-5, 5:-5].mean().item(), abs=1e-4)


def test_a_batch_scores_each_picture_alone(pair):
    restored, sharp = map(tensor, pair)
    for metric in (psnr, ssim):
        both = metric(torch.cat([restored, restored * 0.9]), torch.cat([sharp, sharp]))
        assert both.tolist() == [metric(restored, sharp).item(), metric(restored * 0.9, sharp).item()]
        assert both[0] != both[1]


def test_pictures_are_clipped_and_rounded_to_8_bits(pair):
    restored, sharp = map(tensor, pair)
    assert psnr(restored + 0.4 / 255, sharp) == psnr(restored, sharp)
    assert psnr(torch.where(sharp == 1, 1.7, sharp), sharp).isinf()
    assert ssim(sharp + 0.4 / 255, sharp) == 1


def test_equal_pictures_have_infinite_psnr(pair):
    sharp = tensor(pair[1])
    assert psnr(sharp, sharp).item() == float("inf")


def test_what_cannot_be_scored_says_why():
    tiny = torch.rand(1, 3, 8, 8)
    assert psnr(tiny, tiny).isinf()
    with pytest.raises(MetricError, match="SSIM needs 11 pixels a side and the picture is 8x8"):
        ssim(tiny, tiny)
    with pytest.raises(MetricError, match="not finite"):
        psnr(tiny * float("nan"), tiny)
    with pytest.raises(MetricError, match=r"\(1, 3, 8, 8\).*\(1, 3, 8, 9\)"):
        psnr(tiny, torch.rand(1, 3, 8, 9))


def test_recipes_say_what_changes_the_number():
    for recipe in (PSNR_RECIPE, SSIM_RECIPE):
        assert all(word in recipe for word in ("RGB", "8 bits", "range 255", "full frame"))
    assert "population covariance" in SSIM_RECIPE


@needs_weights
def test_lpips_gives_the_authors_values_in_silence(capsys):
    reference, near, far = (tensor(io.imread(WEIGHTS / f"ex_{name}.png")[..., :3]) for name in ("ref", "p1", "p0"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lpips = Lpips(WEIGHTS / "alexnet_features.safetensors")
    assert lpips.reason is None
    assert "9f97fd313f4da83dbe6bbfbe6effca1241de9edfcd7c53386261ed9697286dd9" in lpips.recipe
    values = lpips(torch.cat([far, near]), torch.cat([reference, reference]))
    assert values.tolist() == pytest.approx([0.7219, 0.1376], abs=5e-5)
    assert capsys.readouterr() == ("", "")


@needs_weights
def test_lpips_takes_31_pixels_and_no_fewer():
    lpips = Lpips(WEIGHTS / "alexnet_features.safetensors")
    assert lpips(torch.rand(1, 3, 31, 40), torch.rand(1, 3, 31, 40)) > 0
    with pytest.raises(MetricError, match="LPIPS needs 31 pixels a side and the picture is 40x30"):
        lpips(torch.rand(1, 3, 30, 40), torch.rand(1, 3, 30, 40))


@needs_weights
def test_torchvision_file_and_cache_are_the_same_backbone(no_network):
    """torchvision's own .pth holds the classifier too, and its cache needs no network."""
    features = load_file(WEIGHTS / "alexnet_features.safetensors")
    no_network.parent.mkdir(parents=True)
    torch.save(features | {"classifier.1.weight": torch.zeros(2, 2)}, no_network)
    expected = Lpips(WEIGHTS / "alexnet_features.safetensors").recipe
    assert Lpips(no_network).recipe == expected
    assert Lpips().recipe == expected


def test_lpips_without_network_is_missing_with_a_reason(no_network):
    lpips = Lpips()
    assert lpips.recipe is None
    assert lpips.reason.startswith("LPIPS is missing: AlexNet's weights could not be loaded (")
    assert "--lpips_backbone FILE" in lpips.reason and "\n" not in lpips.reason
    with pytest.raises(MetricError, match="LPIPS is missing"):
        lpips(torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64))


def test_a_spoilt_cache_is_a_reason_and_not_a_crash(no_network):
    no_network.parent.mkdir(parents=True)
    no_network.write_text("half a download")
    assert Lpips().reason.startswith("LPIPS is missing")


def test_a_wrong_backbone_names_the_first_key(tmp_path):
    save_file({"features.0.weight": torch.zeros(64, 3, 3, 3)}, tmp_path / "squeeze.safetensors")
    with pytest.raises(MetricError, match=r"squeeze.safetensors holds features.0.weight of shape \(64, 3, 3, 3\)"):
        Lpips(tmp_path / "squeeze.safetensors")
    torch.save({"state_dict": {}}, tmp_path / "other.pth")
    with pytest.raises(MetricError, match=r"other.pth has no features.0.weight"):
        Lpips(tmp_path / "other.pth")
    for name in ("text.pth", "text.safetensors"):
        (tmp_path / name).write_text("no weights")
        with pytest.raises(MetricError, match=f"{name} is not a weights file"):
            Lpips(tmp_path / name)
    with pytest.raises(MetricError, match=r"absent.pth cannot be read: No such file"):
        Lpips(tmp_path / "absent.pth")


@needs_weights
def test_another_network_with_more_layers_is_refused():
    with pytest.raises(MetricError, match=r"squeezenet1_1_features.safetensors holds features.0.weight of shape"):
        Lpips(WEIGHTS / "squeezenet1_1_features.safetensors")
