"""The checkpoint that comes with the repository restores a really blurred photograph that comes with it."""

from pathlib import Path

import torch

import sample
from data import images
from models.checkpoints import load_pipeline
from models.index import PRETRAINED

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


def gradient_energy(image: torch.Tensor) -> float:
    return (image.diff(dim=-1).square().mean() + image.diff(dim=-2).square().mean()).item()


def test_it_is_small_and_has_presets():
    assert sum(file.stat().st_size for file in PRETRAINED.rglob("*") if file.is_file()) < 16 * 2**20
    pipeline = load_pipeline(str(PRETRAINED))
    assert set(pipeline.config.presets) == {"fidelity", "balanced", "perceptual"}
    assert pipeline.default_settings == pipeline.preset("balanced")


def test_a_really_blurred_photograph_gets_sharper(tmp_path):
    assert sample.main([str(EXAMPLES / "rsblur_2.jpg"), "--output", str(tmp_path), "--preset", "fidelity"]) == 0
    blurry, restored = (images.read(folder / "rsblur_2.jpg") for folder in (EXAMPLES, tmp_path))
    assert restored.shape == blurry.shape
    assert gradient_energy(restored) > 1.1 * gradient_energy(blurry)
    assert (restored - blurry).mean().abs() < 0.02  # but for the darkening that the card names
