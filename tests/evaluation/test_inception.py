"""FID and KID against closed forms and torchmetrics on small features; patches; the network up to the missing file."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.linalg import sqrtm
from torch import nn
from torch_fidelity import FeatureExtractorInceptionV3
from torchmetrics.image import FrechetInceptionDistance, KernelInceptionDistance

from evaluation import inception
from evaluation.fidelity import MetricError
from evaluation.inception import InceptionPatches, cut_patches, fid, kid


class Given(nn.Module):
    """Hands features through where torchmetrics wants a network."""

    num_features = 6

    def forward(self, features):
        return features


@pytest.fixture(scope="module")
def features() -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(0)
    mixing = torch.randn(6, 6, generator=numbers)
    one = torch.randn(60, 6, generator=numbers) @ mixing
    return one, torch.randn(60, 6, generator=numbers) * 1.3 + 0.4


def test_fid_equals_the_closed_form_and_torchmetrics(features):
    one, two = (side.double().numpy() for side in features)
    product = sqrtm(np.cov(one, rowvar=False) @ np.cov(two, rowvar=False)).real
    expected = ((one.mean(0) - two.mean(0)) ** 2).sum()
    expected += np.trace(np.cov(one, rowvar=False) + np.cov(two, rowvar=False) - 2 * product)
    assert fid(*features) == pytest.approx(expected, rel=1e-8)
    metric = FrechetInceptionDistance(Given()).set_dtype(torch.float64)
    metric.update(features[0], real=False)
    metric.update(features[1], real=True)
    assert fid(*features) == pytest.approx(metric.compute().item(), rel=1e-5)


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance`")
def test_kid_equals_the_sum_over_pairs_and_torchmetrics(features):
    one, two = (side.double().numpy() for side in features)

    def kernel(a, b):
        return (a @ b / 6 + 1) ** 3

    count = len(one)
    pairs = [(i, j) for i in range(count) for j in range(count)]
    within = sum(kernel(one[i], one[j]) + kernel(two[i], two[j]) for i, j in pairs if i != j) / (count * (count - 1))
    between = sum(kernel(one[i], two[j]) for i, j in pairs) / count**2
    assert kid(*features) == pytest.approx(within - 2 * between, rel=1e-8)
    metric = KernelInceptionDistance(Given(), subsets=1, subset_size=count)
    metric.update(features[0], real=False)
    metric.update(features[1], real=True)
    assert kid(*features) == pytest.approx(metric.compute()[0].item(), rel=1e-3)


def test_sets_are_without_order_and_equal_sets_have_no_distance(features):
    one, two = features
    shuffled = one[torch.randperm(60, generator=torch.Generator().manual_seed(1))]
    assert fid(shuffled, two) == pytest.approx(fid(one, two), rel=1e-9)
    assert kid(shuffled, two) == pytest.approx(kid(one, two), rel=1e-9)
    assert fid(one, one) == pytest.approx(0, abs=1e-6)
    assert kid(one, one) < kid(one, two)


def test_many_features_are_drawn_in_seeded_subsets(features, monkeypatch):
    whole = kid(*features)
    monkeypatch.setattr(inception, "_KID_SIZE", 40)
    drawn = kid(*features)
    assert drawn == kid(*features)
    assert drawn != whole and drawn == pytest.approx(whole, rel=0.1)


def test_one_patch_is_no_set(features):
    for distance in (fid, kid):
        with pytest.raises(MetricError, match="two patches"):
            distance(features[0][:1], features[1])


def test_a_frame_holds_fifteen_patches_row_by_row():
    frame = torch.arange(720 * 1280).view(1, 1, 720, 1280)
    patches = cut_patches(frame)
    assert patches.shape == (1, 15, 1, 240, 256)
    assert [patch[0, 0, 0].item() for patch in patches[0]] == [
        240 * row * 1280 + 256 * column for row in range(3) for column in range(5)
    ]
    assert patches.unique().numel() == 720 * 1280
    assert cut_patches(frame[..., :719, :1279]).shape == (1, 8, 1, 240, 256)


class Untrained(FeatureExtractorInceptionV3):
    """Inception's shape with weights that measure nothing known."""

    def load_state_dict(self, state):
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory) -> tuple[Untrained, Path]:
    """The network, and the file of its weights."""
    folder = tmp_path_factory.mktemp("inception")
    torch.save({}, folder / "empty.pth")
    torch.manual_seed(0)
    network = Untrained("inception-v3-compat", ["2048"], feature_extractor_weights_path=folder / "empty.pth")
    save_file(network.state_dict(), folder / "weights.safetensors")
    return network, folder / "weights.safetensors"


def test_features_are_those_of_torch_fidelity_patch_by_patch(untrained):
    network, file = untrained
    patches = InceptionPatches(file)
    image = torch.rand(2, 3, 250, 520, generator=torch.Generator().manual_seed(0))
    features = patches(image)
    assert features.shape == (2, 2, 2048) and features.std() > 1e-3
    second = (image[1:, :, :240, 256:512] * 255).round().byte()
    assert torch.allclose(features[1, 1], network(second)[0][0], rtol=1e-3, atol=1e-4)
    assert patches.reason is None
    assert all(word in patches.recipe for word in ("256 x 240", "2048", "sha256", "torch-fidelity"))
    with pytest.raises(MetricError, match="patches of 256x240 pixels and the image is 255x240"):
        patches(image[..., :240, :255])


def test_bad_weights_are_one_sentence(untrained, tmp_path):
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(MetricError, match=r"text.pth is not a weights file"):
        InceptionPatches(tmp_path / "text.pth")
    with pytest.raises(MetricError, match=r"absent.pth cannot be read: No such file"):
        InceptionPatches(tmp_path / "absent.pth")
    torch.save({"fc.bias": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(MetricError, match=r"other.pth does not fit: ") as caught:
        InceptionPatches(tmp_path / "other.pth")
    assert "\n" not in str(caught.value)


def test_without_weights_fid_and_kid_are_missing(no_network):
    patches = InceptionPatches()
    assert patches.recipe is None and "\n" not in patches.reason
    assert patches.reason.startswith("FID and KID are missing: Inception's weights could not be loaded (")
    assert "--inception_backbone FILE" in patches.reason
    with pytest.raises(MetricError, match="FID and KID are missing"):
        patches(torch.rand(1, 3, 240, 256))
