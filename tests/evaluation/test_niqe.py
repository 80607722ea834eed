"""NIQE against an implementation in NumPy and SciPy, block by block, and its parts against known answers."""

import numpy as np
import pytest
import torch
from scipy.io import savemat
from scipy.ndimage import correlate
from scipy.special import gamma
from skimage import data

from evaluation.fidelity import MetricError
from evaluation.niqe import Niqe, fit_asymmetric, halve
from tests.evaluation.pictures import tensor

PICTURES = [data.astronaut()[0:300, 100:400], data.chelsea()[50:260, 100:310], data.coffee()[100:300, 100:310]]
MEAN, COVARIANCE = np.linspace(0.1, 1.5, 36), np.eye(36) * 0.2 + 0.01
SHAPES = np.arange(0.2, 10.001, 0.001)


def slow_fit(values: np.ndarray) -> tuple[float, float, float]:
    left, right = (np.sqrt((values[side] ** 2).mean()) for side in (values < 0, values > 0))
    balance = left / right
    ratio = np.abs(values).mean() ** 2 / (values**2).mean()
    ratio *= (balance**3 + 1) * (balance + 1) / (balance**2 + 1) ** 2
    shape = SHAPES[np.argmin((gamma(2 / SHAPES) ** 2 / (gamma(1 / SHAPES) * gamma(3 / SHAPES)) - ratio) ** 2)]
    scale = np.sqrt(gamma(1 / shape) / gamma(3 / shape))
    return shape, left * scale, right * scale


def slow_niqe(picture: np.ndarray) -> float:
    grey = np.round(picture @ [0.2989, 0.5870, 0.1140])
    height, width = (side // 96 * 96 for side in grey.shape)
    grey = grey[:height, :width]
    offsets = np.arange(-3, 4)
    window = np.exp(-(offsets[:, None] ** 2 + offsets**2) / (2 * (7 / 6) ** 2))
    features = []
    for block in (96, 48):
        mean = correlate(grey, window / window.sum(), mode="nearest")
        deviation = np.sqrt(np.abs(correlate(grey**2, window / window.sum(), mode="nearest") - mean**2))
        normalised = (grey - mean) / (deviation + 1)
        rows = []
        for top in range(0, len(grey), block):
            for left in range(0, grey.shape[1], block):
                own = normalised[top : top + block, left : left + block]
                shape, low, high = slow_fit(own)
                row = [shape, (low + high) / 2]
                for shift in ((0, 1), (1, 0), (1, 1), (1, -1)):
                    shape, low, high = slow_fit(own * np.roll(own, shift, (0, 1)))
                    row += [shape, (high - low) * gamma(2 / shape) / gamma(1 / shape), low, high]
                rows.append(row)
        features.append(rows)
        grey = slow_halve(grey)
    features = np.concatenate(features, axis=1)
    away = MEAN - features.mean(0)
    return np.sqrt(away @ np.linalg.pinv((COVARIANCE + np.cov(features, rowvar=False)) / 2) @ away)


def slow_halve(grey: np.ndarray) -> np.ndarray:
    """Bicubic with antialiasing and a mirrored edge, one matrix a side."""

    def cubic(x):
        x = np.abs(x)
        near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    def matrix(side):
        weights = np.zeros((side // 2, side))
        for row in range(side // 2):
            for column in range(-4, side + 4):
                inside = -1 - column if column < 0 else 2 * side - 1 - column if column >= side else column
                weights[row, inside] += cubic((column - (2 * row + 0.5)) / 2) / 2
        return weights

    return matrix(len(grey)) @ grey @ matrix(grey.shape[1]).T


@pytest.fixture
def model(tmp_path):
    np.savez(tmp_path / "model.npz", mu_pris_param=MEAN[None], cov_pris_param=COVARIANCE)
    return tmp_path / "model.npz"


@pytest.mark.parametrize("picture", PICTURES, ids=["astronaut", "chelsea", "coffee"])
def test_niqe_equals_a_slow_implementation(model, picture):
    # In a black corner the sign of a rounding error decides on which side of zero a pixel counts.
    assert Niqe(model)(tensor(picture)).item() == pytest.approx(slow_niqe(picture), rel=1e-4)


def test_a_batch_scores_each_picture_alone(model):
    niqe, pictures = Niqe(model), torch.cat([tensor(picture[:200, :210]) for picture in PICTURES])
    assert niqe(pictures).tolist() == pytest.approx([niqe(picture[None]).item() for picture in pictures], rel=1e-6)


def test_halving_equals_the_matrix_and_keeps_a_flat_picture():
    grey = PICTURES[0][:96, :64].mean(2)
    assert np.allclose(halve(torch.from_numpy(grey)[None])[0], slow_halve(grey), atol=1e-9)
    assert torch.allclose(halve(torch.full((1, 8, 8), 7.0)), torch.full((1, 4, 4), 7.0))


@pytest.mark.parametrize(("shape", "left", "right"), [(2.0, 1.0, 1.0), (1.0, 0.5, 2.0), (0.6, 1.0, 0.7)])
def test_the_fit_finds_the_parameters_of_its_own_samples(shape, left, right):
    numbers = np.random.default_rng(0)
    size = numbers.gamma(1 / shape, size=400_000) ** (1 / shape)
    values = np.where(numbers.random(400_000) < left / (left + right), -left, right) * size
    found = fit_asymmetric(torch.from_numpy(values))
    assert [value.item() for value in found] == pytest.approx([shape, left, right], rel=0.03)


def test_a_flat_picture_has_no_statistics(model):
    assert Niqe(model)(torch.full((1, 3, 200, 200), 0.5)).isnan().all()


def test_the_model_comes_from_either_file_and_its_hash_is_in_the_recipe(model, tmp_path):
    savemat(tmp_path / "modelparameters.mat", {"mu_prisparam": MEAN[None], "cov_prisparam": COVARIANCE})
    assert Niqe(tmp_path / "modelparameters.mat").recipe == Niqe(model).recipe
    np.savez(tmp_path / "other.npz", mu_pris_param=MEAN + 1, cov_pris_param=COVARIANCE)
    assert Niqe(tmp_path / "other.npz").recipe != Niqe(model).recipe


def test_without_a_model_niqe_is_missing():
    niqe = Niqe()
    assert niqe.recipe is None and "--niqe_model FILE" in niqe.reason
    with pytest.raises(MetricError, match="NIQE is missing"):
        niqe(torch.rand(1, 3, 200, 200))


def test_bad_models_and_small_pictures_are_one_sentence(model, tmp_path):
    with pytest.raises(MetricError, match=r"absent.npz cannot be read: No such file"):
        Niqe(tmp_path / "absent.npz")
    for name in ("text.npz", "text.mat"):
        (tmp_path / name).write_text("no model")
        with pytest.raises(MetricError, match=f"{name} is none: give modelparameters.mat"):
            Niqe(tmp_path / name)
    np.savez(tmp_path / "short.npz", mu_pris_param=MEAN[:3], cov_pris_param=COVARIANCE)
    with pytest.raises(MetricError, match="36 means and 36 x 36"):
        Niqe(tmp_path / "short.npz")
    with pytest.raises(MetricError, match="two blocks of 96x96 pixels and the picture is 190x96"):
        Niqe(model)(torch.rand(1, 3, 96, 190))
