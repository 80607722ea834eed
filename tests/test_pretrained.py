"""The checkpoints that come with the repository restore what comes with it as they did."""

import csv
import re
from functools import cache

import pytest
import torch

import sample
from deblur.data.files import images
from deblur.draft import Blurry
from deblur.evaluation import pixels
from deblur.hub import SHIPPED, shipped
from deblur.pipeline import load_pipeline
from deblur.settings import SCHEDULES, SamplingSettings
from tests import golden
from tests.conftest import ASSETS, ROOT

pytestmark = pytest.mark.commands


def gradient_energy(image: torch.Tensor) -> float:
    return (image.diff(dim=-1).square().mean() + image.diff(dim=-2).square().mean()).item()


@pytest.mark.parametrize("name", shipped())
def test_it_is_small_and_has_presets(name):
    most = {"maxim": 64, "swift": 32}.get(name, 16)  # MiB
    assert sum(file.stat().st_size for file in (SHIPPED / name).rglob("*") if file.is_file()) < most * 2**20
    pipeline = load_pipeline(name)
    fast = {"fast"} if (pipeline.predictor.stages or 1) > 1 else set()
    assert set(pipeline.config.presets) == {"fidelity", "balanced", "perceptual"} | fast
    assert pipeline.preset() == pipeline.preset("balanced")
    assert (pipeline.config.sigma_min, pipeline.config.sigma_max) == (0.05, 12.0)
    networks = pipeline.denoiser, pipeline.predictor, *pipeline.predictor.children()
    millions = {f"{sum(weight.numel() for weight in network.parameters()) / 1e6:.1f}" for network in networks}
    told = re.findall(r"\b([\d.]+) M\b", (SHIPPED / name / "README.md").read_text())
    assert told and millions >= set(told)


@pytest.mark.parametrize("name", shipped())
def test_by_default_a_sample_is_blended_with_the_prediction(name):
    pipeline = load_pipeline(name)
    default = pipeline.preset()
    assert 0 < default.blend < 1
    assert default.steps == pipeline.preset("perceptual").steps
    assert default.steps <= 2


def test_a_really_blurred_photograph_gets_sharper(tmp_path):
    blurry = images.read(ROOT / "docs" / "examples" / "rsblur_2.jpg")[:, 100:228, 150:278]
    images.write(tmp_path / "photo.png", blurry)
    assert sample.main([str(tmp_path / "photo.png"), "--output", str(tmp_path / "out"), "--preset", "fidelity"]) == 0
    restored = images.read(tmp_path / "out" / "photo.png")
    assert restored.shape == blurry.shape
    assert gradient_energy(restored) > 1.1 * gradient_energy(blurry)
    assert (restored - blurry).mean().abs() < 0.02  # but for the darkening that the card names


# Crops of 48 x 80 pixels of the images in tests/assets: their top left corners.
CORNERS = {
    "gopro_test_01": [(60, 60), (180, 260)],
    "realblur_j_scene050_6": [(0, 20)],
    "reds_000_002": [(60, 60), (180, 260)],
    "rsblur_1": [(100, 100)],
    "page": [(40, 40), (40, 160), (120, 100), (160, 40), (200, 170), (90, 170)],
}
SAMPLERS = [("ddpm", 0.0), ("ddim", 0.0), ("ddim", 1.0), ("dpmsolver++", 0.0), ("unipc", 0.0)]
MOST_LOST = 3.5  # dB; where the residual is as large as expected, an exact sampler loses 10 lg 2 = 3.0


def crops(folder):
    """Blurry and sharp (6, 3, 48, 80)."""
    sides = []
    for side in ("blur", "sharp"):
        files = sorted((ASSETS / folder / side).iterdir())
        places = [(images.read(file), corner) for file in files for corner in CORNERS[file.stem]]
        sides.append(torch.stack([image[:, y : y + 48, x : x + 80] for image, (y, x) in places]))
    return sides


@cache
def drafted(name):
    """A checkpoint's pipeline, blurry and sharp crops, and its draft."""
    pipeline = load_pipeline(name, precision="fp32")
    blurry, sharp = crops("page" if name == "text" else "pairs")
    return pipeline, blurry, sharp, pipeline.draft(Blurry(blurry))


def lost(name, points):
    """dB of PSNR that samples of each of the settings lose against the prediction, a mean over the crops."""
    pipeline, blurry, sharp, draft = drafted(name)
    names = [str(crop) for crop in range(len(blurry))]

    def quality(settings):
        restored = draft.restored(pipeline.sample(draft, settings, names=names), [settings])[0].images
        return pixels.psnr(restored, sharp).mean().item()

    best = quality(SamplingSettings(blend=0.0))
    return {str(settings): best - quality(settings) for settings in points}


@pytest.mark.parametrize("name", shipped())
def test_no_sampler_destroys_what_was_predicted(name):
    points = [SamplingSettings(sampler, "log_snr", steps=3, eta=eta) for sampler, eta in SAMPLERS]
    assert {words: loss for words, loss in lost(name, points).items() if loss > MOST_LOST} == {}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("sampler", "eta"), SAMPLERS)
@pytest.mark.parametrize("name", shipped())
def test_no_setting_up_to_200_steps_destroys_what_was_predicted(name, sampler, eta, schedule):
    steps = (1, 2, 3, 5, 10, 25, 50, 100, 200)
    points = [SamplingSettings(sampler, schedule, steps=count, eta=eta) for count in steps]
    assert {words: loss for words, loss in lost(name, points).items() if loss > MOST_LOST} == {}


@pytest.fixture(scope="module")
def results():
    return list(golden.restored())


def test_they_make_of_a_frame_and_a_page_what_they_made(results):
    stored = {file.stem: images.read(file) for file in golden.GOLDEN.glob("*.png")}
    made = golden.crops(results)
    assert len(stored) == 6
    for name, image in stored.items():
        assert (made[name].clamp(0, 1) - image).abs().max() <= 1.5 / 255, name  # a level, and the file's rounding


def test_their_scores_of_each_image_are_those_that_are_stored(results):
    with (golden.GOLDEN / "scores.csv").open(newline="") as file:
        stored = [tuple(row.values()) for row in csv.DictReader(file)]
    found = golden.scores(results)
    assert [row[:3] for row in stored] == [row[:3] for row in found]
    assert len(found) == 22
    for row, (*_, psnr, lpips) in zip(stored, found, strict=True):
        assert (float(row[3]), float(row[4])) == (pytest.approx(psnr, abs=0.005), pytest.approx(lpips, abs=5e-4)), row
