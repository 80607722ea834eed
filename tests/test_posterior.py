import torch

from benchmarks.posterior import draw, ratios, reliability


def gaussian(images=200, samples=16, spread=1.0):
    """Ground truths, predictions that are the posterior's mean, and samples, exact where `spread` is 1."""
    generator = torch.Generator().manual_seed(0)
    size = 0.01 + 0.1 * torch.rand(images, 1, 3, 8, 8, generator=generator)
    noise = torch.randn(images, samples + 1, 3, 8, 8, generator=generator) * size
    predictions = torch.rand(images, 3, 8, 8, generator=generator)
    return predictions, predictions[:, None] + spread * noise[:, 1:], predictions + noise[:, 0]


def test_exact_samples_have_the_ideal_ratios_and_lie_on_the_diagonal():
    predictions, samples, sharp = gaussian()
    found = ratios(predictions, samples, sharp)
    assert list(found) == [1, 2, 4, 8, 16]
    for n, ratio in found.items():
        assert abs(ratio - (1 + 1 / n)) < 0.02
    for one in reliability(samples, sharp)[2:-2]:  # sorting by an estimate favours its own errors at the ends
        assert 0.85 < one["error"] / one["deviation"] < 1.15


def test_too_small_a_spread_is_seen(tmp_path):
    predictions, samples, sharp = gaussian(spread=0.5)
    assert abs(ratios(predictions, samples, sharp)[1] - 1.25) < 0.02
    bins = reliability(samples, sharp)
    assert all(one["error"] > 1.5 * one["deviation"] for one in bins)
    draw(tmp_path / "plot.png", bins)
    assert (tmp_path / "plot.png").stat().st_size > 5000
