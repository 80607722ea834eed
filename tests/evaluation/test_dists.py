"""DISTS with VGG16's weights in torchvision's cache, and without them."""

import pytest
import torch
from torchmetrics.functional.image import deep_image_structure_and_texture_similarity
from torchvision.models import vgg16

from evaluation.metrics import make_metrics
from evaluation.perceptual import Dists, SkippedInitialisation
from evaluation.pixels import MetricError
from tests.evaluation.images import RESTORED, SHARP, tensor

FILE = "vgg16-397923af.pth"  # the name in torchvision's cache


def write_weights(folder) -> None:
    """VGG16's weights, the feature layers random; the classifier, which DISTS does not use, takes no room."""
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in vgg16(weights=None).state_dict().items()}
    numbers = torch.Generator().manual_seed(0)
    state = {
        name: torch.randn(shape, generator=numbers) / shape[0] ** 0.5 / 3
        if name.startswith("features")
        else torch.zeros(1).expand(shape)
        for name, shape in shapes.items()
    }
    folder.mkdir(parents=True)
    torch.save(state, folder / FILE)


def test_dists_is_the_library_s_on_the_images_of_a_file(no_network):
    write_weights(no_network)
    drawn = torch.get_rng_state()
    dists = Dists()
    assert torch.equal(torch.get_rng_state(), drawn), "a run with the metric draws other numbers than one without"
    assert "8 bits" in dists.recipe and "VGG16, weights sha256 " in dists.recipe
    images = [tensor(image[:64, :64]) for image in (RESTORED["few levels"], RESTORED["every second row"], SHARP)]
    restored, sharp = torch.cat(images), images[2].expand(3, -1, -1, -1)
    values = dists(restored + 0.4 / 255, sharp)
    with SkippedInitialisation():
        expected = deep_image_structure_and_texture_similarity(restored, sharp)
    assert values.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert values[2].item() == pytest.approx(0, abs=1e-6) and values[:2].min() > 1e-4
    assert [dists(image, images[2]).item() for image in images] == pytest.approx(values.tolist(), abs=1e-6)
    with pytest.raises(MetricError, match="DISTS needs 16 pixels a side and the image is 15x40"):
        dists(torch.rand(1, 3, 40, 15), torch.rand(1, 3, 40, 15))


@pytest.mark.parametrize("spoilt", [False, True])
def test_without_weights_dists_is_missing_with_a_reason(no_network, spoilt):
    if spoilt:
        no_network.mkdir(parents=True)
        (no_network / FILE).write_text("half a download")
    dists = make_metrics(["dists"])["dists"]
    assert dists.recipe is None and "\n" not in dists.reason
    assert dists.reason.startswith("DISTS is missing: VGG16's weights could not be loaded (")
    assert dists.reason.endswith(f"; put torchvision's {FILE} into {no_network}.")
