"""LPIPS against its authors' values and the lpips package, and what it refuses."""

import dataclasses
import hashlib
import re
import warnings
from pathlib import Path

import lpips
import pytest
import torch
import torchvision
from safetensors.torch import load_file
from skimage import io
from torchvision.models import vgg16

from evaluation import perceptual as module
from evaluation.metrics import make_metrics
from evaluation.perceptual import Lpips, PerceptualLoss
from evaluation.pixels import MetricError
from tests.conftest import ASSETS, ROOT
from tests.evaluation.images import RESTORED, SHARP, tensor
from training.scores import Scores

WEIGHTS = ROOT / "pretrained" / "metrics"
EXAMPLE = ASSETS / "lpips_example"  # the authors' own images
ALEXNET, VGG16 = "alexnet-owt-7be5be79.pth", "vgg16-397923af.pth"  # the names in torchvision's cache
# What LPIPS's authors print of their images is 0.722 and 0.138 for AlexNet. The weights' own hashes are in their card.
PUBLISHED = {"alex": [0.7219, 0.1376], "squeeze": [0.7110, 0.1479]}


@pytest.fixture
def features(no_network) -> Path:
    """VGG16's feature layers with weights that measure nothing known, in torchvision's cache."""
    with torch.device("meta"):
        shape = vgg16(weights=None).features.state_dict()
    numbers = torch.Generator().manual_seed(0)
    state = {
        f"features.{name}": torch.randn(weight.shape, generator=numbers) / weight[0].numel() ** 0.5
        for name, weight in shape.items()
    }
    no_network.mkdir(parents=True)
    torch.save(state, no_network / VGG16)
    return no_network / VGG16


@pytest.fixture
def unshipped(monkeypatch):
    """The repository without pretrained/metrics."""
    moved = {
        net: dataclasses.replace(one, shipped=one.shipped and Path("/nowhere") / one.shipped.name)
        for net, one in module._NETS.items()
    }
    monkeypatch.setattr(module, "_NETS", moved)


@pytest.mark.filterwarnings("ignore::UserWarning:torchvision")
@pytest.mark.parametrize(("net", "file"), [("alex", "alexnet_features"), ("squeeze", "squeezenet1_1_features")])
def test_lpips_equals_the_package(net, file):
    """The package's own use: its way into [-1, 1], one image after the other."""
    ours = Lpips(net=net)
    package = lpips.LPIPS(net=net, pnet_rand=True, verbose=False)
    for name, weight in load_file(WEIGHTS / f"{file}.safetensors").items():
        [key] = [key for key in package.net.state_dict() if key.split(".", 1)[1] == name.removeprefix("features.")]
        package.net.state_dict()[key].copy_(weight)
    sharp = lpips.im2tensor(SHARP)
    for restored in RESTORED.values():
        expected = package(lpips.im2tensor(restored), sharp).item()
        assert ours(tensor(restored), tensor(SHARP)).item() == pytest.approx(expected, abs=1e-5)
        assert expected > 0.01


@pytest.mark.slow  # the package draws VGG16's 138 million weights before they can be replaced
@pytest.mark.filterwarnings("ignore::UserWarning:torchvision")
def test_lpips_of_vgg_equals_the_package(features):
    ours = Lpips(net="vgg")
    assert "VGG16" in ours.recipe and ours.reason is None
    package = lpips.LPIPS(net="vgg", pnet_rand=True, verbose=False)
    for name, weight in torch.load(features).items():
        [key] = [key for key in package.net.state_dict() if key.split(".", 1)[1] == name.removeprefix("features.")]
        package.net.state_dict()[key].copy_(weight)
    restored, sharp = RESTORED["few levels"][:64, :64], SHARP[:64, :64]
    expected = package(lpips.im2tensor(restored), lpips.im2tensor(sharp)).item()
    assert ours(tensor(restored), tensor(sharp)).item() == pytest.approx(expected, abs=1e-5)


def test_without_vgg_its_metric_is_missing(no_network):
    made = Lpips(net="vgg")
    assert made.recipe is None and "\n" not in made.reason
    assert made.reason.startswith("LPIPS is missing: VGG16's weights could not be loaded (")
    assert made.reason.endswith(f"; put torchvision's {VGG16} into {no_network.parent}/checkpoints.")


@pytest.mark.parametrize("net", PUBLISHED)
def test_lpips_gives_the_authors_values_in_silence_without_a_network(net, no_network, capsys):
    reference, far, near = (tensor(io.imread(EXAMPLE / f"{name}.png")[..., :3]) for name in ("ref", "p0", "p1"))
    drawn = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lpips = Lpips(net=net)
    assert torch.equal(torch.get_rng_state(), drawn), "a run with the metric draws other numbers than one without"
    assert lpips.reason is None and not no_network.exists()
    assert re.search(r"backbone sha256 (\w+)", lpips.recipe)[1] in (WEIGHTS / "README.md").read_text()
    values = lpips(torch.cat([far, near]), torch.cat([reference, reference]))
    assert values.tolist() == pytest.approx(PUBLISHED[net], abs=5e-5)
    assert capsys.readouterr() == ("", "")


def test_the_shipped_weights_are_those_of_their_card():
    for file in (*WEIGHTS.glob("*.safetensors"), *WEIGHTS.glob("*.npz")):
        assert f"`{hashlib.sha256(file.read_bytes()).hexdigest()}`" in (WEIGHTS / "README.md").read_text()


@pytest.mark.parametrize(("net", "side"), [("alex", 31), ("squeeze", 17)])
def test_lpips_takes_a_least_side_and_no_fewer(net, side):
    lpips = Lpips(net=net)
    assert lpips(torch.rand(1, 3, side, 40), torch.rand(1, 3, side, 40)) > 0
    with pytest.raises(MetricError, match=f"LPIPS needs {side} pixels a side and the image is 40x{side - 1}"):
        lpips(torch.rand(1, 3, side - 1, 40), torch.rand(1, 3, side - 1, 40))


def test_torchvision_s_cache_holds_the_same_backbone(no_network, unshipped):
    """torchvision's own .pth holds the classifier too, and its cache needs no network."""
    features = load_file(WEIGHTS / "alexnet_features.safetensors")
    no_network.mkdir(parents=True)
    torch.save(features | {"classifier.1.weight": torch.zeros(2, 2)}, no_network / ALEXNET)
    assert re.search(r"backbone sha256 (\w+)", Lpips().recipe)[1] in (WEIGHTS / "README.md").read_text()


def test_lpips_without_weights_or_network_is_missing_with_a_reason(no_network, unshipped):
    lpips = Lpips()
    assert lpips.recipe is None
    assert lpips.reason.startswith("LPIPS is missing: AlexNet's weights could not be loaded (")
    assert "\n" not in lpips.reason
    assert lpips.reason.endswith(f"; put torchvision's {ALEXNET} into {no_network.parent}/checkpoints.")
    asked = make_metrics(["lpips"])
    assert asked["lpips"].reason == lpips.reason == Scores().lpips.reason
    with pytest.raises(MetricError, match="LPIPS is missing"):
        asked["lpips"](torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64))
    with pytest.raises(MetricError, match="LPIPS is missing"):
        PerceptualLoss(net="squeeze")


def test_a_spoilt_cache_is_a_reason_and_not_a_crash(no_network, unshipped):
    no_network.mkdir(parents=True)
    (no_network / ALEXNET).write_text("half a download")
    assert Lpips().reason.startswith("LPIPS is missing")


def test_a_download_of_another_file_is_a_reason_and_no_network(no_network, unshipped, tmp_path, monkeypatch):
    """By the hash in the file's name: here a file of this machine is downloaded, with all the right keys."""
    torch.save(load_file(WEIGHTS / "alexnet_features.safetensors"), tmp_path / ALEXNET)
    weights = torchvision.models.AlexNet_Weights.IMAGENET1K_V1.value
    monkeypatch.setitem(weights.__dict__, "url", (tmp_path / ALEXNET).as_uri())
    assert "invalid hash value" in Lpips().reason and not list(no_network.glob("*"))


@pytest.mark.parametrize("net", PUBLISHED)
def test_the_loss_is_lpips_with_a_gradient_in_float32(net, no_network):
    sharp, x_init = tensor(SHARP), tensor(next(iter(RESTORED.values())))
    leaf = (x_init * 2 - 1).requires_grad_()
    perceptual = PerceptualLoss(weight=0.5, net=net)
    with torch.autocast("cpu", torch.bfloat16):
        loss = perceptual(leaf, sharp * 2 - 1)
    assert loss.item() == pytest.approx(0.5 * Lpips(net=net)(x_init, sharp).item(), rel=1e-4)
    loss.backward()
    step = leaf.detach() - 0.1 * leaf.grad / leaf.grad.abs().max()
    assert perceptual(step, sharp * 2 - 1) < loss
    assert repr(perceptual) == f"0.5 LPIPS ({net})"
