"""The checkpoints that come with the repository restore what comes with it as they did."""

import csv

import pytest
import torch

import sample
from deblur.data import images
from deblur.models.checkpoints import load_pipeline
from deblur.models.hub import SHIPPED, shipped
from tests import golden
from tests.conftest import ROOT

EXAMPLES = ROOT / "docs" / "examples"


def gradient_energy(image: torch.Tensor) -> float:
    return (image.diff(dim=-1).square().mean() + image.diff(dim=-2).square().mean()).item()


@pytest.mark.parametrize("name", shipped())
def test_it_is_small_and_has_presets(name):
    assert sum(file.stat().st_size for file in (SHIPPED / name).rglob("*") if file.is_file()) < 16 * 2**20
    pipeline = load_pipeline(name)
    assert set(pipeline.config.presets) == {"fidelity", "balanced", "perceptual"}
    assert pipeline.preset() == pipeline.preset("balanced")


def test_a_really_blurred_photograph_gets_sharper(tmp_path):
    assert sample.main([str(EXAMPLES / "rsblur_2.jpg"), "--output", str(tmp_path), "--preset", "fidelity"]) == 0
    blurry, restored = (images.read(folder / "rsblur_2.jpg") for folder in (EXAMPLES, tmp_path))
    assert restored.shape == blurry.shape and gradient_energy(restored) > 1.1 * gradient_energy(blurry)
    assert (restored - blurry).mean().abs() < 0.02  # but for the darkening that the card names


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
    assert [row[:3] for row in stored] == [row[:3] for row in found] and len(found) == 18
    for row, (*_, psnr, lpips) in zip(stored, found, strict=True):
        assert (float(row[3]), float(row[4])) == (pytest.approx(psnr, abs=0.005), pytest.approx(lpips, abs=5e-4)), row
