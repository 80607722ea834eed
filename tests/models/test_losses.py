"""Each objective against its closed form."""

import math

import pytest
import torch

from deblur.models.diffusion import PREDICTION_TYPES, Estimator, add_noise
from deblur.models.losses import Objective, PredictorLoss, log_normal_levels, uniform_levels
from deblur.models.schedules import cosine, linear
from tests.models.outputs import v_of

SCHEDULE = linear(2000)
LEVELS = torch.tensor([0.999, 0.9, 0.5, 0.1, 0.001])  # SNR 999, 9, 1, 0.111, 0.001


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def uniform(count):
    return torch.rand(count, generator=seeded(), dtype=torch.float64)


def log_snr(alpha_bar):
    return alpha_bar.double().logit()


class TestDraws:
    def test_log_normal_has_edm_s_moments(self):
        log_sigma = -log_snr(log_normal_levels(uniform(40_000), -1.2, 1.2)) / 2
        assert log_sigma.mean().item() == pytest.approx(-1.2, abs=0.02)
        assert log_sigma.std().item() == pytest.approx(1.2, rel=0.02)
        for deviations in (-1, 0, 1):
            below = (log_sigma < -1.2 + 1.2 * deviations).double().mean().item()
            assert below == pytest.approx(0.5 * (1 + math.erf(deviations / 2**0.5)), abs=0.01)

    def test_bounds_cut_the_normal_off(self):
        log_sigma = -log_snr(log_normal_levels(uniform(40_000), 0.3, 1.1, (0.5, 2.0))) / 2
        assert log_sigma.min() >= math.log(0.5) - 1e-3
        assert log_sigma.max() <= math.log(2) + 1e-3
        whole = -log_snr(log_normal_levels(uniform(400_000), 0.3, 1.1)) / 2
        inside = whole[(whole > math.log(0.5)) & (whole < math.log(2))]
        assert log_sigma.mean().item() == pytest.approx(inside.mean().item(), abs=0.01)
        assert log_sigma.std().item() == pytest.approx(inside.std().item(), rel=0.02)

    def test_a_level_lies_where_u_says_from_the_clean_end_on(self):
        levels = torch.tensor([0.1, 0.2, 0.6, 0.9], dtype=torch.float64)
        u = torch.tensor([0.0, 0.2, 0.25, 0.6, 0.99], dtype=torch.float64)
        # Of four steps: 0, 0.8, 1.0, 2.4 and 3.96 of the way from 1 over these levels.
        expected = [1.0, 1 - 0.8 * 0.1, 0.9, 0.6 - 0.4 * 0.4, 0.2 - 0.96 * 0.1]
        assert uniform_levels(u, levels).tolist() == pytest.approx(expected, rel=1e-6)

    def test_the_config_s_word_chooses_the_draw(self):
        def drawn(count, schedule=SCHEDULE, **values):
            a, eps = Objective(noises=count, **values).draw(schedule, [seeded()], (count, 3, 2, 2))
            assert eps.shape == (count, 3, 2, 2)
            return a

        assert torch.equal(drawn(5), uniform_levels(uniform(5), SCHEDULE).float())
        other = drawn(2000, levels="log_normal", log_normal=(0.5, 0.1))
        assert (-log_snr(other) / 2).mean().item() == pytest.approx(0.5, abs=0.02)
        bounded = drawn(2000, levels="log_normal", sigma_range=(0.5, 2.0))
        sigma = ((1 - bounded) / bounded).sqrt()
        assert sigma.min() >= 0.4999
        assert sigma.max() <= 2.0001
        assert sigma.min() < 0.51
        assert sigma.max() > 1.9
        assert Objective(levels="log_normal", sigma_range=(0.5, 2.0)).bounds == (0.5, 2.0)
        assert Objective(levels="alpha_bar", sigma_range=(0.5, 2.0)).bounds == (None, None)
        assert Objective(levels="log_normal").bounds == (None, None)
        for levels in ("alpha_bar", "log_normal"):
            draw = drawn(1000, cosine(100), levels=levels)
            assert draw.dtype == torch.float32
            assert draw.shape == (1000,)
            assert (draw > 0).all()
            assert (draw < 1).all()

    def test_no_crop_is_without_noise(self):
        clean = torch.full((4,), 1 - 1e-9, dtype=torch.float64)
        a, _ = Objective(noises=3).draw(clean, [seeded()], (3, 3, 2, 2))
        assert (a < 1).all()


@pytest.mark.parametrize("prediction_type", PREDICTION_TYPES)
def test_l1_and_l2_are_of_the_network_s_output(prediction_type):
    r_0, eps, output = (torch.randn(5, 3, 4, 4, generator=seeded(i)) for i in range(3))
    wanted = {"epsilon": eps, "sample": r_0, "v_prediction": v_of(r_0, eps, LEVELS)}[prediction_type]

    network = lambda *_: output  # noqa: E731
    network.prediction_type = prediction_type
    f = Estimator(network)
    error = f(add_noise(r_0, eps, LEVELS), None, LEVELS, None, None) - r_0
    for loss, power in (("l1", 1), ("l2", 2)):
        losses = Objective(loss=loss).losses(error, f.weight(LEVELS), torch.full((5, 1, 4, 4), 0.25))
        torch.testing.assert_close(losses, (output - wanted).abs().pow(power).mean((1, 2, 3)), rtol=1e-4, atol=0)


def test_an_axis_counts_by_its_scale_and_one_without_a_residual_in_full():
    sizes = torch.rand(5, 1, 4, 4, generator=seeded(3)) + 0.1
    error = torch.randn(5, 3, 4, 4, generator=seeded())
    for scales, weights in (([4.0, 1.0, 2.0], [1.0, 0.25, 0.5]), ([3.0, 0.0, 0.0], [1.0, 1.0, 1.0])):
        s = torch.tensor(scales).view(1, 3, 1, 1) * sizes
        losses = Objective(loss="l2").losses(error, torch.ones(5, 1, 1, 1), s)
        wanted = sum(weight * error[:, k].square().mean((1, 2)) for k, weight in enumerate(weights)) / 3
        assert torch.allclose(losses, wanted)


def test_of_several_outputs_the_first_alone_has_the_image_loss_and_the_size_head():
    first, second, x = torch.rand(3, 2, 3, 4, 5, generator=seeded())
    loss_of = PredictorLoss(image_loss=lambda x_init, sharp: (x_init - sharp).square().mean())
    loss, logged = loss_of([first, second], torch.full((2, 1, 4, 5), math.log(0.02)), x)
    errors = [(estimate - x).abs().mean().item() for estimate in (first, second)]
    image_loss = (first - x).square().mean().item()
    size_loss = errors[0] / 0.02 + math.log(0.02) - math.log(0.005)
    assert logged["image_loss"].item() == pytest.approx(image_loss, rel=1e-5)
    assert logged["size_loss"].item() == pytest.approx(size_loss, rel=1e-5)
    assert loss.item() == pytest.approx(sum(errors) / 2 + image_loss + 0.01 * size_loss, rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sigma_range": (2.0, 0.5)}, "sigma_range must be two numbers, 0 < least < largest"),
        ({"log_normal": (-1.2, 0.0)}, "must be above 0"),
        ({"noises": 0}, "noises must be at least 1"),
    ],
)
def test_impossible_numbers_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Objective(levels="log_normal", **wrong)
