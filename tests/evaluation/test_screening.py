"""Screening: what is kept where the front is known, what it costs, and what a grid that was screened says."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import torch

from evaluation.grid import key
from evaluation.journal import Score
from evaluation.results import format_table
from evaluation.scoring import CONTROLS
from evaluation.screening import beaten_by, first_and_rest
from evaluation.summary import choose_presets, pareto_front
from models.settings import SamplingSettings
from tests.evaluation.toy import METRICS, Toy

STEPS = np.array([5, 10, 25] * 6)
IMAGES = 48


def test_a_fixed_share_of_the_images_comes_first():
    for count, first in ((3, 3), (8, 8), (20, 8), (41, 10), (400, 100)):
        one, rest = first_and_rest(range(count))
        assert len(one) == first and sorted(one + rest) == list(range(count))
        assert first_and_rest(range(count)) == (one, rest)
    assert one != sorted(one), "spread over the list"


def test_only_certain_losers_are_beaten():
    random = np.random.default_rng(0)
    hard = random.normal(size=(8, 1)) * 10
    columns = hard + np.array([0.0, 1.0, 0.99, 1.0]) + random.normal(size=(8, 4)) * 0.05
    columns[:, 3] = hard[:, 0] + 0.1 + random.normal(size=8) * 5
    assert beaten_by([columns, columns]) == [1, None, None, None], "what is hard for all drops out"
    assert beaten_by([columns, -columns]) == [None] * 4
    assert beaten_by([columns[:, [1, 1]]] * 2) == [None, None], "equal settings do not beat each other"
    assert beaten_by([hard + np.array([0.0, 1.0])] * 2) == [1, None], "a difference without any spread is certain"


def test_images_without_a_score_do_not_count():
    scores = np.arange(8.0)[:, None] + np.array([0.0, 1.0])
    broken = scores.copy()
    broken[0, 1], broken[1, 0] = -np.inf, np.nan
    assert beaten_by([scores, broken]) == [1, None]
    assert beaten_by([scores, np.full_like(scores, np.nan)]) == [None, None]
    assert beaten_by([scores[:1], scores[:1]]) == [None, None], "one image tells nothing"


def problem(random: np.random.Generator, twins: bool, skewed: bool) -> list[np.ndarray]:
    """Scores (images, settings) on two axes: a curve with settings behind it, or pairs close together on it."""
    place, behind = random.uniform(size=len(STEPS)), random.exponential(0.5, len(STEPS)) * (random.random(18) < 0.7)
    if twins:
        place[9:], behind[9:] = place[:9] + 0.01, behind[:9]
    scale = random.lognormal(0, 0.7, (IMAGES, 1)) if skewed else np.ones((IMAGES, 1))
    axes = []
    for mean in (place - behind, (1.01 - place) ** 0.7 - behind):
        noise = random.normal(size=(IMAGES, len(STEPS))) * random.uniform(0.05, 0.3, len(STEPS))
        axes.append(3 * random.normal(size=(IMAGES, 1)) + scale * (mean + noise))
    return axes


def front(axes: list[np.ndarray]) -> set[int]:
    """Settings that none beats in the means over all images."""
    x, y = (axis.mean(axis=0) for axis in axes)
    return {a for a in range(len(x)) if not any((x > x[a]) & (y >= y[a]) | (x >= x[a]) & (y > y[a]))}


def lost_and_cost(seeds: int) -> tuple[float, float]:
    """Share of the problems in which a setting of the whole grid's front is lost, and the mean cost."""
    lost, costs = [], []
    for seed, *kind in itertools.product(range(seeds), (False, True), (False, True)):
        axes = problem(np.random.default_rng(seed), *kind)
        first, rest = map(len, first_and_rest(range(IMAGES)))
        kept = np.array([winner is None for winner in beaten_by([axis[:first] for axis in axes])])
        lost.append(bool(front(axes) - set(np.flatnonzero(kept))))
        costs.append((first * STEPS.sum() + rest * STEPS[kept].sum()) / (IMAGES * STEPS.sum()))
    return np.mean(lost), np.mean(costs)


def test_the_front_is_kept_and_the_cost_falls():
    """The front of these problems alone costs 0.36 of the grid, and much of the rest is close behind it."""
    lost, cost = lost_and_cost(3)
    assert lost <= 0.1 and cost < 0.75


class Noisy(Toy):
    """More steps: a smaller mean error (its LPIPS), more noise (PSNR); the odd numbers of steps are worse."""

    def __init__(self):
        super().__init__([(16, 12)] * 40)
        noise = torch.Generator().manual_seed(0)
        self.levels = {image.name: torch.randn(16, 12, generator=noise) * 4 for image in self.images}

    def refine_shared(self, blurry, prediction, settings, seed, names, progress):
        [setting], [name] = settings, names
        n = setting.steps
        for _ in progress(range(n)):
            pass
        error = (10 - n) + 3 * (n % 2) + (n + 2 * (n % 2)) * self.levels[name].roll(n)
        return [SimpleNamespace(images=(blurry - 40 / 255 + error / 255).clamp(0, 1))]


def without_seconds(rows):
    return [dataclasses.replace(row, seconds=0) for row in rows]


def test_screening_drops_what_is_beaten_and_keeps_the_front(tmp_path):
    lpips = dataclasses.replace(
        METRICS["ssim"], higher_is_better=False, function=lambda x, y: (x - y).mean((1, 2, 3)).abs()
    )
    metrics = {"psnr": METRICS["psnr"], "lpips": lpips}
    settings = [SamplingSettings(steps=steps) for steps in range(1, 9)]
    full = Noisy().rows(tmp_path / "full", settings, metrics)
    found = Noisy().results(tmp_path / "screened", settings, metrics, screen=True)
    rows = found.rows
    assert [r.label for r in pareto_front(rows)] == [r.label for r in pareto_front(full)]
    assert len(pareto_front(rows)) >= 3 and found.steps < 0.8 * found.steps_in_full
    out = [row for row in rows if row.screened_out]
    assert out
    for row in out:
        assert row.images == 10 and row.screened_out.startswith("on 10 of 40 images: beaten by ddim ")
        assert row not in pareto_front(rows) and row not in choose_presets(rows).values()
    assert {row.images for row in rows if not row.screened_out} == {40}
    assert format_table(rows).count("(10 images)") == len(out)
    assert Noisy().rows(tmp_path / "screened", settings, metrics, screen=True) == rows, "out of the journal"
    finished = Noisy().rows(tmp_path / "full", settings, metrics, screen=True)
    assert without_seconds(finished) == without_seconds(rows), (
        "a setting that was screened out has the images that it ran on, though the journal knows more"
    )


def test_screening_leaves_settings_for_presets_where_the_prediction_wins(tmp_path):
    settings = [SamplingSettings(steps=steps) for steps in range(1, 9)]
    metrics = METRICS | {"lpips": dataclasses.replace(METRICS["ssim"], higher_is_better=False)}
    toy = Toy([(16, 12)] * 40)
    plan = toy.plan(tmp_path, settings, metrics)
    loss = {"predictor": 0, "blurry": 5, "sharp": 9} | dict.fromkeys(CONTROLS, 9)
    loss |= {key(setting): setting.steps for setting in settings}
    for number, row in itertools.product(range(40), loss):
        worse = loss[row] * (1 + 0.1 * (number % 4))
        values = {"psnr": 30 - number % 7 - worse, "ssim": 0.5, "lpips": 0.1 + 0.01 * worse}
        plan.journal.add(Score(row, f"image{number}", 0.0, values, {}), {})
    found = toy.results(tmp_path, settings, metrics, screen=True)
    assert not toy.log
    assert [row.label for row in pareto_front(found.rows)] == ["predictor"]
    assert sorted(row.label for row in found.rows if row.screened_out) == [f"ddim {steps}" for steps in range(2, 9)]
    assert {chosen.label for chosen in choose_presets(found.rows).values()} == {"ddim 1"}
    assert found.steps == 10 * sum(range(1, 9)) + 30 * 1 and found.steps_in_full == 40 * sum(range(1, 9))
