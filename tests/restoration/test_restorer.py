"""What a long job says before its first image."""

import re
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from deblur.checkpoints import update_index
from deblur.data.files import images
from deblur.hub import SHIPPED
from deblur.models.networks.unet import UNetPredictor
from deblur.restoration import restorer
from deblur.restoration.options import Options
from deblur.settings import SamplingSettings
from tests.sample.conftest import run, with_presets

USUAL = "--preset fast or --checkpoint lite"
WAYS = [((40, 52), USUAL), ((8, 1700), f"{USUAL} or --max_side 1600")]


@pytest.mark.parametrize(("size", "ways"), WAYS)
def test_a_long_job_says_how_long_and_what_is_faster(tmp_path, monkeypatch, capsys, size, ways):
    images.write(tmp_path / "a.png", torch.rand(3, *size))
    checkpoint = with_presets(tmp_path, **{name: vars(SamplingSettings()) for name in ("balanced", "fast")})
    monkeypatch.setattr("deblur.restoration.run.LONG", 0.0)
    monkeypatch.setattr(restorer, "FEW", 0)
    assert run(tmp_path / "a.png", "--output", tmp_path / "out", "--checkpoint", checkpoint) == 0
    assert re.search(rf"this takes about \d+ s; faster: {ways}\n", capsys.readouterr().err)


@pytest.mark.parametrize("checkpoint", [None, "lite", "u2net", "text", str(SHIPPED / "lite")])
def test_a_quick_checkpoint_is_not_advised_to_who_uses_one(checkpoint):
    restoring = restorer.Restorer(Options("", checkpoint, device="cpu"), {})
    assert restoring.faster(4000) == "--max_side 1600"
    assert restoring.faster(400) == "a smaller --max_side"


@pytest.fixture
def searched(tmp_path):
    """A checkpoint that restores images of more than 50 pixels at scale 0.16."""
    checkpoint = with_presets(tmp_path, balanced=vars(SamplingSettings(steps=2)))
    update_index(Path(checkpoint), working_size={"largest_kept": 50, "above": 1e-6, "smallest": 10, "regions": 1})
    return checkpoint


@pytest.mark.parametrize(
    ("options", "pixels", "searches", "longest"),
    [
        ({}, 2 * 0.16**2 * 60 * 96 + 30 * 40, 1, 40),
        ({"scale": 1}, 2 * 60 * 96 + 30 * 40, 0, 96),
        ({"scale": 0.5}, (2 * 60 * 96 + 30 * 40) / 4, 0, 48),
        ({"max_side": 64}, 2 * 0.16**2 * 60 * 96 + 30 * 40, 1, 40),
        ({"max_side": 64, "scale": 1}, 2 * 60 * 96 * (64 / 96) ** 2 + 30 * 40, 0, 64),
    ],
)
def test_the_expected_time_is_that_of_the_scale_that_is_found(
    tmp_path, monkeypatch, searched, options, pixels, searches, longest
):
    sized = []
    for name, size in (("small", (30, 40)), ("large", (60, 96)), ("other", (60, 96))):
        images.write(tmp_path / f"{name}.png", torch.rand(3, *size))
        sized.append((tmp_path / f"{name}.png", *size))
    restoring = restorer.Restorer(Options("", searched, device="cpu", **options), {})
    monkeypatch.setattr(restorer, "FEW", 0)
    monkeypatch.setattr(restorer, "time", SimpleNamespace(perf_counter=count().__next__))  # each look takes a second
    part = 60 * 96 if searches else 30 * 40  # the first image that is large, whole
    assert restoring.expected(sized) == (pytest.approx(2 * pixels / part + searches), pytest.approx(longest))


def test_the_scale_of_the_first_image_is_looked_for_once(tmp_path, monkeypatch, searched):
    images.write(tmp_path / "a.png", torch.rand(3, 60, 96))
    seen, usual = {}, restorer.FEW
    for few in (usual, 0):
        shapes = seen[few] = []
        monkeypatch.setattr(restorer, "FEW", few)
        hook = nn.modules.module.register_module_forward_hook(
            lambda module, given, output, shapes=shapes: (
                shapes.append(tuple(given[0].shape)) if type(module) is UNetPredictor else None
            )
        )
        try:
            assert run(tmp_path / "a.png", "--output", tmp_path / f"out {few}", "--checkpoint", searched) == 0
        finally:
            hook.remove()
    timed = [(1, 3, 60, 64), (1, 3, 60, 96)]  # the first and the second part
    assert set(timed) <= set(seen[0])
    assert [shape for shape in seen[0] if shape not in timed] == seen[usual]


@pytest.mark.parametrize(
    ("seconds", "pixels", "side"),
    [(0.1, 1e9, 384), (2.0, 1e9, 192), (0.1, 1e6, 192)],
    ids=["quick", "slow", "a short job"],
)
def test_a_larger_part_is_measured_where_that_is_quick_and_worth_it(tmp_path, monkeypatch, seconds, pixels, side):
    images.write(tmp_path / "a.png", torch.rand(3, 400, 500))
    checkpoint = with_presets(tmp_path, balanced=vars(SamplingSettings(blend=0.0)))
    restoring = restorer.Restorer(Options("", checkpoint, device="cpu"), {})
    clock = SimpleNamespace(perf_counter=count(0, seconds).__next__)
    monkeypatch.setattr(restorer, "time", clock)
    measured = restoring._seconds_of(pixels, images.read_file(tmp_path / "a.png"))
    looks = 2  # at the clock, for each part: after the prediction, and after a sample
    assert measured == pytest.approx(looks * seconds * pixels / side**2)


def test_a_short_job_does_not_say_how_long_it_takes(tmp_path, capsys):
    images.write(tmp_path / "a.png", torch.rand(3, 40, 52))
    checkpoint = with_presets(tmp_path, balanced=vars(SamplingSettings()))
    assert run(tmp_path / "a.png", "--output", tmp_path / "out", "--checkpoint", checkpoint) == 0
    assert "this takes about" not in capsys.readouterr().err


@pytest.mark.parametrize("keep_sharp", [0, 1e6])
def test_a_scale_is_said_of_what_is_restored_alone(tmp_path, capsys, keep_sharp):
    images.write(tmp_path / "a.png", torch.rand(3, 40, 52))
    checkpoint = with_presets(tmp_path, balanced=vars(SamplingSettings()))
    flags = ["--checkpoint", checkpoint, "--scale", "0.5", "--keep_sharp", keep_sharp]
    assert run(tmp_path / "a.png", "--output", tmp_path / "out", *flags) == 0
    said = capsys.readouterr().err
    assert ("restored at scale 0.5" in said) == (keep_sharp == 0)
    assert ("kept as it is" in said) == (keep_sharp > 0)
