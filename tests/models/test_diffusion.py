import pytest
import torch

from deblur.models.diffusion import PREDICTION_TYPES, add_noise, estimate_r_0, sample_alpha_bar, target


def test_add_noise_has_the_stated_mean_and_variance():
    r_0, alpha_bar = torch.full((2, 3, 200, 200), 2.0), torch.tensor([0.9, 0.1])
    r_t = add_noise(r_0, torch.randn(r_0.shape, generator=torch.Generator().manual_seed(0)), alpha_bar)
    for image, a in zip(r_t, (0.9, 0.1), strict=True):
        assert image.mean().item() == pytest.approx(2 * a**0.5, abs=0.02)
        assert image.var().item() == pytest.approx(1 - a, rel=0.02)


@pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
def test_the_right_output_gives_back_r_0(prediction_type):
    r_0, eps = torch.randn(3, 3, 4, 4), torch.randn(3, 3, 4, 4)
    alpha_bar = torch.tensor([0.99, 0.5, 0.01])
    r_t, output = add_noise(r_0, eps, alpha_bar), target(r_0, eps, alpha_bar, prediction_type)
    assert torch.allclose(estimate_r_0(output, r_t, alpha_bar, prediction_type), r_0, atol=1e-5)


def test_v_is_the_derivative_of_the_rotation():
    # With alpha_bar = cos^2(phi), r_t = cos(phi) r_0 + sin(phi) eps and v = d r_t / d phi.
    r_0, eps = torch.randn(1, 3, 2, 2, dtype=torch.float64), torch.randn(1, 3, 2, 2, dtype=torch.float64)
    phi = torch.tensor([0.7], dtype=torch.float64)
    before, after = (add_noise(r_0, eps, (phi + step).cos() ** 2) for step in (-1e-6, 1e-6))
    assert torch.allclose(target(r_0, eps, phi.cos() ** 2, "v_prediction"), (after - before) / 2e-6, atol=1e-8)


def test_a_level_lies_where_u_says_from_the_clean_end_on():
    alphas_cumprod = torch.tensor([0.9, 0.6, 0.2, 0.1], dtype=torch.float64)
    u = torch.tensor([0.0, 0.2, 0.25, 0.6, 0.99], dtype=torch.float64)
    # Of four steps: 0, 0.8, 1.0, 2.4 and 3.96 of the way from 1 over these levels.
    expected = [1.0, 1 - 0.8 * 0.1, 0.9, 0.6 - 0.4 * 0.4, 0.2 - 0.96 * 0.1]
    assert sample_alpha_bar(alphas_cumprod, u).tolist() == pytest.approx(expected, rel=1e-6)
