"""LPIPS and DISTS against their authors' values, the lpips package and torchmetrics, and what they refuse."""

import warnings
from pathlib import Path

import lpips
import pytest
import torch
import torchmetrics.functional.image.dists as reference
from safetensors.torch import load_file, save_file
from skimage import io
from torchvision.models import vgg16

from evaluation.fidelity import MetricError
from evaluation.perceptual import Dists, Lpips, PerceptualLoss
from tests.evaluation.pictures import RESTORED, SHARP, tensor

WEIGHTS = Path(__file__).parents[2] / ".." / "shared" / "weights"
ALEXNET = "alexnet-owt-7be5be79.pth"  # the name in torchvision's cache
needs_weights = pytest.mark.skipif(not WEIGHTS.is_dir(), reason="../shared/weights is absent")


@pytest.fixture(scope="module")
def features(tmp_path_factory) -> Path:
    """VGG16's feature layers with weights that measure nothing known."""
    with torch.device("meta"):
        shape = vgg16(weights=None).features.state_dict()
    numbers = torch.Generator().manual_seed(0)
    state = {
        f"features.{name}": torch.randn(weight.shape, generator=numbers) / weight[0].numel() ** 0.5
        for name, weight in shape.items()
    }
    path = tmp_path_factory.mktemp("vgg") / "vgg16.safetensors"
    save_file(state, path)
    return path


@needs_weights
@pytest.mark.filterwarnings("ignore::UserWarning:torchvision")
def test_lpips_equals_the_package():
    """The package's own use: its way into [-1, 1], one picture after the other."""
    ours = Lpips(WEIGHTS / "alexnet_features.safetensors")
    package = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False)
    for name, weight in load_file(WEIGHTS / "alexnet_features.safetensors").items():
        [key] = [key for key in package.net.state_dict() if key.split(".", 1)[1] == name.removeprefix("features.")]
        package.net.state_dict()[key].copy_(weight)
    sharp = lpips.im2tensor(SHARP)
    for restored in RESTORED.values():
        expected = package(lpips.im2tensor(restored), sharp).item()
        assert ours(tensor(restored), tensor(SHARP)).item() == pytest.approx(expected, abs=1e-5)
        assert expected > 0.01


@pytest.mark.slow  # lpips draws VGG16's 138 million weights before they can be replaced
@pytest.mark.filterwarnings("ignore::UserWarning:torchvision")
def test_lpips_of_vgg_equals_the_package(features):
    ours = Lpips(features, net="vgg")
    assert "VGG16" in ours.recipe and ours.reason is None
    package = lpips.LPIPS(net="vgg", pnet_rand=True, verbose=False)
    for name, weight in load_file(features).items():
        [key] = [key for key in package.net.state_dict() if key.split(".", 1)[1] == name.removeprefix("features.")]
        package.net.state_dict()[key].copy_(weight)
    restored, sharp = RESTORED["few levels"][:64, :64], SHARP[:64, :64]
    expected = package(lpips.im2tensor(restored), lpips.im2tensor(sharp)).item()
    assert ours(tensor(restored), tensor(sharp)).item() == pytest.approx(expected, abs=1e-5)


def test_dists_equals_torchmetrics(features, monkeypatch):
    """torchmetrics downloads VGG16 where it builds its network, so it gets these weights there."""
    with torch.device("meta"):
        backbone = vgg16(weights=None)
    state = {name.removeprefix("features."): weight for name, weight in load_file(features).items()}
    backbone.features.load_state_dict(state, assign=True)
    monkeypatch.setattr(reference, "vgg16", lambda weights: backbone)
    dists = Dists(features)
    assert all(word in dists.recipe for word in ("VGG16", "sha256", "torchmetrics", "not resized"))
    restored = torch.cat([tensor(picture[:72, :90]) for picture in RESTORED.values()])
    sharp = tensor(SHARP[:72, :90]).expand_as(restored)
    expected = reference.DISTSNetwork()(restored, sharp)
    assert dists(restored, sharp).tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert expected.min() > 1e-3 and dists(sharp, sharp).tolist() == pytest.approx([0, 0, 0], abs=1e-5)


@pytest.mark.parametrize(("metric", "name"), [(lambda: Lpips(net="vgg"), "LPIPS"), (Dists, "DISTS")])
def test_without_vgg_its_metrics_are_missing(no_network, metric, name):
    made = metric()
    assert made.recipe is None and "\n" not in made.reason
    assert made.reason.startswith(f"{name} is missing: VGG16's weights could not be loaded (")
    assert "--vgg_backbone FILE" in made.reason
    with pytest.raises(MetricError, match=f"{name} is missing"):
        made(torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64))


def test_dists_says_what_it_refuses(features, tmp_path):
    with pytest.raises(MetricError, match="DISTS needs 16 pixels a side and the picture is 40x15"):
        Dists(features)(torch.rand(1, 3, 15, 40), torch.rand(1, 3, 15, 40))
    save_file({"features.0.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(
        MetricError, match=r"VGG16 backbone .*other.safetensors holds features.0.weight of shape \(1,\)"
    ):
        Dists(tmp_path / "other.safetensors")


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
    no_network.mkdir(parents=True)
    torch.save(features | {"classifier.1.weight": torch.zeros(2, 2)}, no_network / ALEXNET)
    expected = Lpips(WEIGHTS / "alexnet_features.safetensors").recipe
    assert Lpips(no_network / ALEXNET).recipe == expected
    assert Lpips().recipe == expected


def test_lpips_without_network_is_missing_with_a_reason(no_network):
    lpips = Lpips()
    assert lpips.recipe is None
    assert lpips.reason.startswith("LPIPS is missing: AlexNet's weights could not be loaded (")
    assert "--lpips_backbone FILE" in lpips.reason and "\n" not in lpips.reason
    with pytest.raises(MetricError, match="LPIPS is missing"):
        lpips(torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64))


def test_a_spoilt_cache_is_a_reason_and_not_a_crash(no_network):
    no_network.mkdir(parents=True)
    (no_network / ALEXNET).write_text("half a download")
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


@needs_weights
def test_the_loss_is_lpips_with_a_gradient_in_float32():
    weights = WEIGHTS / "alexnet_features.safetensors"
    sharp, x_init = tensor(SHARP), tensor(next(iter(RESTORED.values())))
    leaf = (x_init * 2 - 1).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = PerceptualLoss(weights, 0.5)(leaf, sharp * 2 - 1)
    assert loss.item() == pytest.approx(0.5 * Lpips(weights)(x_init, sharp).item(), rel=1e-4)
    loss.backward()
    step = leaf.detach() - 0.1 * leaf.grad / leaf.grad.abs().max()
    assert PerceptualLoss(weights, 0.5)(step, sharp * 2 - 1) < loss
    assert repr(PerceptualLoss(weights, 0.5)) == "0.5 LPIPS (alex)"


def test_no_weights_no_loss(tmp_path):
    with pytest.raises(MetricError, match="cannot be read"):
        PerceptualLoss(tmp_path / "nowhere.safetensors")
