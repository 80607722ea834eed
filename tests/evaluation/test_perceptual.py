"""LPIPS against its authors' values and the lpips package, and what it refuses."""

import hashlib
import re
import warnings

import lpips
import pytest
import torch
from safetensors.torch import load_file
from skimage import io

from evaluation.perceptual import Lpips, PerceptualLoss
from evaluation.pixels import MetricError
from tests.conftest import ASSETS, ROOT
from tests.evaluation.images import RESTORED, SHARP, tensor

WEIGHTS = ROOT / "pretrained" / "metrics"
EXAMPLE = ASSETS / "lpips_example"  # the authors' own images
# What LPIPS's authors print of their images is 0.722 and 0.138 for AlexNet. The weights' own hashes are in their card.
PUBLISHED = {"alex": [0.7219, 0.1376], "squeeze": [0.7110, 0.1479]}


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


@pytest.mark.parametrize("net", PUBLISHED)
def test_lpips_gives_the_authors_values_in_silence_without_a_network(net, no_network, capsys):
    reference, far, near = (tensor(io.imread(EXAMPLE / f"{name}.png")[..., :3]) for name in ("ref", "p0", "p1"))
    drawn = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lpips = Lpips(net=net)
    assert torch.equal(torch.get_rng_state(), drawn), "a run with the metric draws other numbers than one without"
    assert not no_network.exists()
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
