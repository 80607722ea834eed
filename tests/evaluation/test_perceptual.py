"""LPIPS against its authors' values and the lpips package, DISTS against torchmetrics, and what they refuse."""

import hashlib
import re
import warnings

import pytest
import torch
from skimage import io
from torchmetrics.functional.image import deep_image_structure_and_texture_similarity
from torchvision.models import vgg16

from deblur.evaluation.metrics import make_metrics
from deblur.evaluation.perceptual import Dists, Lpips, PerceptualLoss, SkippedInitialisation
from deblur.evaluation.pixels import MetricError
from tests.conftest import ASSETS, ROOT
from tests.evaluation.document import RESTORED, SHARP, tensor

WEIGHTS = ROOT / "pretrained" / "metrics"
EXAMPLE = ASSETS / "lpips_example"  # the authors' own images
# What LPIPS's authors print of their images is 0.722 and 0.138 for AlexNet. The weights' own hashes are in their card.
PUBLISHED = {"alex": [0.7219, 0.1376], "squeeze": [0.7110, 0.1479]}
FILE = "vgg16-397923af.pth"  # the name in torchvision's cache


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


def test_a_ground_truth_s_features_are_computed_once_while_it_is_in_use():
    lpips, sharp = Lpips(), tensor(SHARP)
    passes = []
    lpips.network.net.register_forward_hook(lambda *call: passes.append(1))
    images = [tensor(image) for image in RESTORED.values()]
    found = [lpips(image, sharp).item() for image in images]
    assert len(passes) == len(images) + 1
    assert found == [lpips(image, sharp.clone()).item() for image in images]
    several = [image[..., :40] for image in (sharp, *images)]
    assert len({lpips(images[0][..., :40], truth).item() for truth in several}) == len(several), "each its own"


@pytest.mark.parametrize(("net", "side"), [("alex", 31), ("squeeze", 17)])
def test_lpips_takes_a_least_side_and_no_fewer(net, side):
    lpips = Lpips(net=net)
    assert lpips(torch.rand(1, 3, side, 40), torch.rand(1, 3, side, 40)) > 0
    with pytest.raises(MetricError, match=f"LPIPS needs {side} pixels a side and the image is 40x{side - 1}"):
        lpips(torch.rand(1, 3, side - 1, 40), torch.rand(1, 3, side - 1, 40))


@pytest.mark.parametrize("net", PUBLISHED)
def test_the_loss_is_lpips_with_a_gradient_in_float32(net, no_network):
    sharp, x_init = tensor(SHARP), tensor(next(iter(RESTORED.values())))
    leaf, perceptual = (x_init * 2 - 1).requires_grad_(), PerceptualLoss(weight=0.5, net=net)
    with torch.autocast("cpu", torch.bfloat16):
        loss = perceptual(leaf, sharp * 2 - 1)
    assert loss.item() == pytest.approx(0.5 * Lpips(net=net)(x_init, sharp).item(), rel=1e-4)
    loss.backward()
    step = leaf.detach() - 0.1 * leaf.grad / leaf.grad.abs().max()
    assert perceptual(step, sharp * 2 - 1) < loss


def write_weights(folder) -> None:
    """VGG16's weights, the feature layers random; the classifier, which DISTS does not use, takes no room."""
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in vgg16(weights=None).state_dict().items()}
    numbers = torch.Generator().manual_seed(0)
    state = {name: torch.zeros(1).expand(shape) for name, shape in shapes.items()}
    for name in (name for name in shapes if name.startswith("features")):
        state[name] = torch.randn(shapes[name], generator=numbers) / shapes[name][0] ** 0.5 / 3
    folder.mkdir(parents=True)
    torch.save(state, folder / FILE)


def test_dists_is_the_library_s_on_the_images_of_a_file(no_network):
    write_weights(no_network)
    drawn, dists = torch.get_rng_state(), Dists()
    assert torch.equal(torch.get_rng_state(), drawn), "a run with the metric draws other numbers than one without"
    assert "8 bits" in dists.recipe
    assert "VGG16, weights sha256 " in dists.recipe
    images = [tensor(image[:64, :64]) for image in (RESTORED["few levels"], RESTORED["every second row"], SHARP)]
    restored, sharp = torch.cat(images), images[2].expand(3, -1, -1, -1)
    values = dists(restored + 0.4 / 255, sharp)
    with SkippedInitialisation():
        expected = deep_image_structure_and_texture_similarity(restored, sharp)
    assert values.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert values[2].item() == pytest.approx(0, abs=1e-6)
    assert values[:2].min() > 1e-4
    assert [dists(image, images[2]).item() for image in images] == pytest.approx(values.tolist(), abs=1e-6)
    with pytest.raises(MetricError, match="DISTS needs 16 pixels a side and the image is 15x40"):
        dists(torch.rand(1, 3, 40, 15), torch.rand(1, 3, 40, 15))


@pytest.mark.parametrize("spoilt", [False, True])
def test_without_weights_dists_is_missing_with_a_reason(no_network, spoilt):
    if spoilt:
        no_network.mkdir(parents=True)
        (no_network / FILE).write_text("half a download")
    dists = make_metrics(["dists"])["dists"]
    assert dists.recipe is None
    assert "\n" not in dists.reason
    assert dists.reason.startswith("DISTS is missing: VGG16's weights could not be loaded (")
    assert dists.reason.endswith(f"; put torchvision's {FILE} into {no_network}.")
