import pytest
import torch

from deblur.models.diffusion import PREDICTION_TYPES, Estimator, add_noise
from tests.models.outputs import network_of, v_of


def test_add_noise_has_the_stated_mean_and_variance():
    r_0, a = torch.full((2, 3, 200, 200), 2.0), torch.tensor([0.9, 0.1])
    r_t = add_noise(r_0, torch.randn(r_0.shape, generator=torch.Generator().manual_seed(0)), a)
    for image, level in zip(r_t, a.tolist(), strict=True):
        assert image.mean().item() == pytest.approx(2 * level**0.5, abs=0.02)
        assert image.var().item() == pytest.approx(1 - level, rel=0.02)


@pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
def test_the_estimator_gives_r_0_and_the_weight_of_its_error_whatever_the_network_predicts(prediction_type):
    r_0, eps, other = (torch.randn(3, 3, 4, 4, dtype=torch.float64) for _ in range(3))
    a = torch.tensor([0.99, 0.5, 0.01], dtype=torch.float64)
    r_t, zero = add_noise(r_0, eps, a), torch.zeros_like(r_0)
    right = Estimator(network_of(lambda *_: r_0, prediction_type))
    assert torch.allclose(right(r_t, zero, a, zero, zero), r_0, atol=1e-12)
    wrong = Estimator(network_of(lambda *_: r_0 + other, prediction_type))
    outputs = [each.network(r_t, zero, a, zero, zero) for each in (right, wrong)]
    error = wrong(r_t, zero, a, zero, zero) - r_0
    assert torch.allclose(wrong.weight(a) * error.square(), (outputs[1] - outputs[0]).square(), rtol=1e-9)


def test_v_is_the_derivative_of_the_rotation():
    # With a = cos^2(phi), r_t = cos(phi) r_0 + sin(phi) eps and v = d r_t / d phi.
    r_0, eps = torch.randn(1, 3, 2, 2, dtype=torch.float64), torch.randn(1, 3, 2, 2, dtype=torch.float64)
    phi = torch.tensor([0.7], dtype=torch.float64)
    before, after = (add_noise(r_0, eps, (phi + step).cos() ** 2) for step in (-1e-6, 1e-6))
    v = (after - before) / 2e-6
    assert torch.allclose(v_of(r_0, eps, phi.cos() ** 2), v, atol=1e-8)
    network = network_of(lambda *_: r_0, "v_prediction")
    assert torch.allclose(network(add_noise(r_0, eps, phi.cos() ** 2), r_0, phi.cos() ** 2, r_0, r_0), v, atol=1e-8)
