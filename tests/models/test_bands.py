"""The U-Net in bands of rows against the U-Net as it is."""

import pytest
import torch

from models.bands import InBands
from models.memory import _LiveBytes
from models.settings import SamplingSettings
from models.slim_unet import SlimPredictor
from models.unet import Denoiser, UNetPredictor
from tests.models.test_networks import stir
from tests.models.test_pipeline import tiny_pipeline


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("unshuffle", [1, 2])
@pytest.mark.parametrize(("bands", "size"), [(100_000, (70, 33)), (9, (123, 45)), (11, (97, 130)), (64, (200, 16))])
def test_bands_equal_whole(monkeypatch, unshuffle, bands, size):
    monkeypatch.setattr("models.bands.CPU_BANDS", bands)
    denoiser = stir(Denoiser(8, (1, 2, 3), 1, unshuffle=unshuffle))
    r_t, blurry = torch.randn(2, 2, 3, *size)
    level, rows = torch.rand(2), []
    denoiser.unet.down[0].register_forward_pre_hook(lambda module, inputs: rows.append(inputs[0].shape[-2]))
    with torch.no_grad():
        expected = denoiser(r_t, blurry, level, blurry)
        found = InBands(denoiser)(r_t, blurry, level, blurry)
    assert (found - expected).abs().max() < 1e-5 < expected.std()
    assert len(rows) > 3 and max(rows[1:]) < rows[0]


def test_a_size_head_goes_through_bands():
    predictor = stir(UNetPredictor(8, (1, 2), 1, size_head=True))
    blurry = torch.rand(1, 3, 90, 61)
    with torch.no_grad():
        found, expected = InBands(predictor)(blurry), predictor(blurry)
    assert found.shape == (1, 4, 90, 61) and torch.allclose(found, expected, atol=1e-5)


def test_bands_take_less_memory():
    predictor, blurry, peaks = UNetPredictor(16, (1, 2, 3), 2, unshuffle=2).eval(), torch.rand(1, 3, 256, 256), []
    with torch.no_grad():
        for network in (predictor, InBands(predictor)):
            with _LiveBytes() as live:
                network(blurry)
            peaks.append(live.peak)
    assert peaks[1] < 0.75 * peaks[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_pipeline_takes_bands_for_large_images_alone(monkeypatch, compiled):
    taken = []

    class Seen(InBands):
        def __init__(self, network):
            taken.append(type(network).__name__)
            super().__init__(network)

    monkeypatch.setattr("models.pipeline.InBands", Seen)
    pipeline, settings = tiny_pipeline(), SamplingSettings("ddpm", steps=2)
    pipeline.compiled = compiled
    blurry = torch.rand(1, 3, 96, 80)
    plain = pipeline(blurry, settings, output_type="pt").images
    assert not taken
    monkeypatch.setattr("models.bands.CPU_PIXELS", 90 * 80)
    banded = pipeline(blurry, settings, output_type="pt").images
    assert taken == ([] if compiled else ["UNetPredictor", "Denoiser"])
    assert torch.allclose(banded, plain, atol=1e-5)
    taken.clear()
    side = 64 + 2 * pipeline.predictor.receptive_field
    monkeypatch.setattr("models.bands.CPU_PIXELS", min(side, 96) * min(side, 80))
    pipeline.predict(blurry, tile=64)
    assert not taken, "small tiles of a large image are not worth bands"
    monkeypatch.setattr("models.bands.CPU_PIXELS", 64 * 64)
    pipeline.predict(blurry, tile=64)
    assert taken == ([] if compiled else ["UNetPredictor"])
    pipeline.predictor = SlimPredictor((8, 12), (1, 1)).eval()  # has tiles and no bands
    taken.clear()
    pipeline.predict(blurry, tile=64)
    assert not taken
