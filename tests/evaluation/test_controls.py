"""The controls against closed forms, and the verdict on planted scores."""

import math

import numpy as np
import pytest
import torch

from deblur.evaluation.controls import at_equal_psnr, control_images, judge, noise_shape, sharpen
from deblur.evaluation.grid import LABELS, NOISED, SHARPENED, STRENGTHS


def test_sharpening_amplifies_a_wave_by_what_the_gaussian_takes():
    """G keeps exp(-(2 pi f sigma)^2 / 2) of a wave of frequency f, so the mask gives back 1 + a (1 - that)."""
    period = 8
    wave = 0.5 + 0.1 * torch.sin(2 * math.pi * torch.arange(64) / period).expand(1, 3, 64, 64)
    kept = math.exp(-((2 * math.pi / period * 1.5) ** 2) / 2)
    expected = 0.5 + (wave - 0.5) * (1 + 0.6 * (1 - kept))
    inside = (..., slice(12, -12), slice(12, -12))
    assert torch.allclose(sharpen(wave, 0.6)[inside], expected[inside], atol=2e-4)
    flat = torch.full((1, 3, 9, 9), 0.3)
    assert torch.allclose(sharpen(flat, 4.0), flat, atol=1e-6), "images smaller than the kernel, and their edges"


def test_the_noise_is_as_large_as_the_prediction_s_change_nearby():
    """The change is 3 levels on the left and 12 on the right: so is the ratio of the noise's standard deviations."""
    blurry = torch.full((2, 3, 128, 256), 0.5)
    prediction = blurry.clone()
    prediction[0, ..., :128] += 3 / 255
    prediction[0, ..., 128:] -= 12 / 255
    prediction[1] += 1 / 255  # of another image, which changes nothing here
    shape = noise_shape(prediction, blurry)
    assert shape.shape == (2, 1, 128, 256)
    assert shape[0].square().mean().item() == pytest.approx(1)
    assert (shape[0, 0, 64, 200] / shape[0, 0, 64, 50]).item() == pytest.approx(4, rel=1e-3)
    images = dict(control_images(prediction, blurry, 0, ["a", "b"]))
    for label, level in zip(LABELS[NOISED], STRENGTHS[NOISED], strict=True):
        noise = (images[label] - prediction)[0] * 255
        assert noise.square().mean().sqrt().item() == pytest.approx(level, rel=0.02)
        small, large = noise[..., :120].std().item(), noise[..., 136:].std().item()
        rms = math.sqrt((3**2 + 12**2) / 2)
        assert (small, large) == pytest.approx((3 / rms * level, 12 / rms * level), rel=0.03)
        assert abs(noise.mean().item()) < 0.03 * level


def test_the_mean_is_over_nine_pixels():
    blurry = torch.zeros(1, 3, 31, 31)
    prediction = blurry.clone()
    prediction[..., 15, 15] = 1.0
    reached = noise_shape(prediction, blurry)[0, 0] > 1e-3
    assert reached.sum() == 81
    assert reached[11:20, 11:20].all()


def test_noise_is_even_where_nothing_was_changed():
    image = torch.rand(1, 3, 16, 16)
    assert torch.allclose(noise_shape(image, image), torch.ones(1, 1, 16, 16))


def test_controls_come_from_seed_and_name_alone():
    prediction, blurry = torch.rand(2, 1, 3, 16, 12)
    first, again = (dict(control_images(prediction, blurry, 3, ["street/7"])) for _ in range(2))
    assert list(first) == [*LABELS[SHARPENED], *LABELS[NOISED]] == list(again)
    assert all(torch.equal(first[label], again[label]) for label in first)
    for seed, name in ((4, "street/7"), (3, "street/8")):
        other = dict(control_images(prediction, blurry, seed, [name]))
        assert torch.equal(first["sharpened 1"], other["sharpened 1"])
        assert not torch.equal(first["noised 5"], other["noised 5"])


CURVE = [(30.0, 0.30), (31.0, 0.25), (29.0, 0.15), (25.0, 0.20)]  # first up in PSNR, as sharpening often is


@pytest.mark.parametrize(
    ("psnr", "lpips"),
    [
        (29.5, 0.175),  # between the second and the third strength
        (30.5, 0.225),  # there twice, at .275 and .225: the lower one
        *((30.0, 0.20), (27.0, 0.175), (31.0, 0.25)),
        (33.0, 0.25),  # above the curve: at its highest PSNR
        *((24.9, math.nan), (math.inf, math.nan)),  # below it
    ],
)
def test_a_control_s_score_is_linear_between_its_strengths(psnr, lpips):
    assert at_equal_psnr(psnr, CURVE) == pytest.approx(lpips, nan_ok=True)


def test_a_curve_that_stands_still_takes_the_lower_score():
    assert at_equal_psnr(28.0, [(29.0, 0.5), (28.0, 0.4), (28.0, 0.1), (27.0, 0.3)]) == pytest.approx(0.1)


def planted(gap: float, spread: float = 0.002) -> tuple[list, dict]:
    """Settings 1 dB below the prediction whose LPIPS is off by about `gap` from the lower control's."""
    numbers = np.random.default_rng(0)
    scores, curves = [], {"sharpened": [], "noised": []}
    errors = numbers.standard_normal(20)
    for error in errors - errors.mean():
        psnr, lpips = numbers.uniform(22, 35), numbers.uniform(0.1, 0.4)
        curves["sharpened"].append([(psnr, lpips), (psnr - 2, lpips - 0.06)])
        curves["noised"].append([(psnr, lpips), (psnr - 4, lpips + 0.08)])
        scores.append((psnr - 1, lpips - 0.03 + gap + spread * error))
    return scores, curves


@pytest.mark.parametrize(("gap", "word"), [(-0.01, "yes"), (0.01, "no"), (-0.0002, "unclear"), (0.0002, "unclear")])
def test_the_verdict_on_planted_scores(gap, word):
    """Images differ by far more than the gap, which a paired interval does not see."""
    scores, curves = planted(gap)
    verdict = judge(scores, curves)
    assert verdict.perceptual == word
    assert verdict.missing is None
    sharpened, noised = verdict.differences["sharpened"], verdict.differences["noised"]
    assert sharpened.mean == pytest.approx(gap)
    assert noised.mean == pytest.approx(gap - 0.05)
    assert sharpened.low < sharpened.mean < sharpened.high
    assert sharpened.n == 20


def test_both_controls_must_be_beaten():
    scores, curves = planted(-0.01)
    curves["noised"] = [[(psnr, lpips - 0.06), (psnr - 4, lpips)] for (psnr, lpips), _ in curves["noised"]]
    assert judge(scores, curves).perceptual == "no"


def test_the_prediction_itself_is_not_perceptual():
    _, curves = planted(0.0)
    assert judge([curve[0] for curve in curves["noised"]], curves).perceptual == "no"


def test_where_there_is_no_control_or_no_interval_it_is_said():
    scores, curves = planted(-0.01)
    scores[3] = (scores[3][0] - 5, scores[3][1])
    verdict = judge(scores, curves)
    assert verdict.perceptual == "unknown"
    assert verdict.differences == {}
    assert verdict.missing == "there is no control at its PSNR for 1 of 20 images"
    one = judge(scores[:1], {control: own[:1] for control, own in curves.items()})
    assert one.perceptual == "unknown"
    assert one.differences["noised"].mean < 0
    assert "single image" in one.missing
