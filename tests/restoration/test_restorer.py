"""What a long job says before its first image."""

import pytest
import torch

from deblur.data import images
from deblur.models.settings import SamplingSettings
from deblur.restoration import command, restorer
from tests.sample.conftest import run, with_presets

USUAL = "--preset fast or --checkpoint lite"
WAYS = [((40, 52), USUAL), ((8, 1700), f"{USUAL} or --max_side 1600")]


@pytest.mark.parametrize(("size", "ways"), WAYS)
def test_a_long_job_says_how_long_and_what_is_faster(tmp_path, monkeypatch, capsys, size, ways):
    images.write(tmp_path / "a.png", torch.rand(3, *size))
    checkpoint = with_presets(tmp_path, **{name: vars(SamplingSettings()) for name in ("balanced", "fast")})
    monkeypatch.setattr(command, "LONG", 0.0)
    monkeypatch.setattr(restorer, "FEW", 0)
    assert run(tmp_path / "a.png", "--output", tmp_path / "out", "--checkpoint", checkpoint) == 0
    assert f"this takes about 0 s; faster: {ways}\n" in capsys.readouterr().err


def test_a_short_job_does_not_say_how_long_it_takes(tmp_path, capsys):
    images.write(tmp_path / "a.png", torch.rand(3, 40, 52))
    checkpoint = with_presets(tmp_path, balanced=vars(SamplingSettings()))
    assert run(tmp_path / "a.png", "--output", tmp_path / "out", "--checkpoint", checkpoint) == 0
    assert "this takes about" not in capsys.readouterr().err
