"""NIQE against the values of another implementation, and what it refuses."""

import numpy as np
import pytest
import torch
from scipy.stats import gennorm
from skimage import data, io

from evaluation.metrics import make_metrics
from evaluation.niqe import Niqe, block_features, fit, half
from evaluation.pixels import MetricError
from tests.conftest import ASSETS
from tests.evaluation.images import tensor

# By BasicSR 1.4.2, which reproduces the authors' own program to 1e-5, from grey images. In saturated parts its single
# precision decides on which side of zero a value lies, so the third decimal differs.
ELSEWHERE = {
    "blur/gopro_test_01.png": 8.92696,
    "sharp/gopro_test_01.png": 5.14671,
    "blur/reds_000_002.png": 5.95982,
    "sharp/reds_000_002.png": 2.65311,
}


def test_niqe_equals_another_implementation():
    niqe = Niqe()
    found = {name: niqe(tensor(io.imread(ASSETS / "pairs" / name))).item() for name in ELSEWHERE}
    assert found == pytest.approx(ELSEWHERE, abs=0.005)
    assert niqe(tensor(data.chelsea())).item() == pytest.approx(2.57208, abs=1e-4)


def test_niqe_needs_no_ground_truth_and_tells_blur_and_noise_from_a_photograph():
    metric = make_metrics(["niqe"])["niqe"]
    assert not metric.column.higher_is_better and metric.inputs == ("restored",)
    photograph = tensor(data.astronaut())
    noisy = photograph + 0.1 * torch.randn(photograph.shape, generator=torch.Generator().manual_seed(0))
    blurry = torch.nn.functional.avg_pool2d(photograph, 7, 1, 3)
    values = metric(torch.cat([photograph, blurry, noisy]), torch.zeros(3, 3, 512, 512))
    assert values[0] < values[1:].min() - 1
    assert values.tolist() == pytest.approx(
        [metric(image[None], image).item() for image in (photograph[0], blurry[0], noisy[0])]
    )


@pytest.mark.parametrize(("shape", "left", "right"), [(2.0, 1.0, 1.0), (1.0, 0.5, 2.0), (0.5, 3.0, 1.0)])
def test_the_fit_finds_the_distribution_that_values_were_drawn_from(shape, left, right):
    """Below zero with the probability left / (left + right), so that the density has no step."""
    random = np.random.default_rng(0)
    size = np.where(random.random((1, 400, 400)) < left / (left + right), -left, right)
    drawn = size * np.abs(gennorm.rvs(shape, size=size.shape, random_state=random))
    assert [found.item() for found in fit(drawn)] == pytest.approx([shape, left, right], rel=0.05)


def test_features_are_of_blocks_row_by_row():
    noise = 128 + 20 * np.random.default_rng(0).standard_normal((288, 192))
    noise[96:192, 96:] = 128 + (noise[96:192, 96:] - 128) / 10
    features = block_features(noise, 96)
    assert features.shape == (6, 18) and features[:, 1].argmin() == 3
    assert half(np.full((8, 12), 7.0)) == pytest.approx(np.full((4, 6), 7.0))


def test_what_niqe_cannot_score_says_why():
    niqe = Niqe()
    with pytest.raises(MetricError, match="NIQE needs two blocks of 96x96 pixels and the image is 191x190"):
        niqe(torch.rand(1, 3, 190, 191))
    assert niqe(torch.rand(1, 3, 96, 192)) > 0
    with pytest.raises(MetricError, match="not flat"):
        niqe(torch.full((1, 3, 192, 192), 0.5))
    with pytest.raises(MetricError, match="not finite"):
        niqe(torch.full((1, 3, 192, 192), float("nan")))
