"""The checkpoint of a job that names none, and what is said about its time."""

import json
import math
import re
from itertools import chain, count, repeat
from types import SimpleNamespace

import pytest
import torch

import sample
from deblur import hub
from deblur.data.files import images
from deblur.restoration import duration, job, options
from deblur.restoration.options import Options
from deblur.restoration.outputs import outputs_of
from deblur.settings import SamplingSettings
from tests.sample.conftest import restored, run, with_presets
from tests.tiny import tiny_pipeline

EACH = 2.0  # seconds that a photograph takes in these tests, in each way: two looks at a clock
BALANCED = vars(SamplingSettings(steps=2, keep_sharp=0.0))
WAYS = (
    hub.Way("best", "balanced", 1.5 * EACH, ""),
    hub.Way("best", "fast", 2.5 * EACH, ""),
    hub.Way("last", "balanced", math.inf, ""),
    hub.Way("other", "balanced", 0, ""),
)


@pytest.fixture(autouse=True)
def ways(tmp_path, monkeypatch):
    """Tiny checkpoints, each another one, in the place of those of the repository; one clock ticks when looked at, the
    other stands."""
    for number, way in enumerate(WAYS, start=1):
        pipeline = tiny_pipeline()
        presets = {"balanced": BALANCED, "fidelity": BALANCED | {"blend": 0.5}}
        if way.checkpoint == "best":
            presets["fast"] = BALANCED | {"blend": 0.0}
        pipeline.register_to_config(presets=presets, residual_scale=0.1 * number)
        pipeline.save_pretrained(tmp_path / "shipped" / way.checkpoint)
    for module in (hub, options):
        monkeypatch.setattr(module, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(options, "WAYS", WAYS)
    tick(monkeypatch)


def tick(monkeypatch, monotonic=lambda: 0.0):
    clock = SimpleNamespace(perf_counter=count().__next__, monotonic=monotonic)
    monkeypatch.setattr(duration, "time", clock)


def photographs(folder, number):
    for k in range(number):
        images.write(folder / "in" / f"{k}.png", torch.rand(3, 40, 52))
    return str(folder / "in")


def command(folder, number, *flags):
    arguments = [photographs(folder, number), "--output", str(folder / "out"), "--device", "cpu", *flags]
    return sample.main(arguments)


def entries(folder):
    """The checkpoint and the preset of each restored image."""
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    return [(entry["checkpoint"].removeprefix("pretrained/"), entry["preset"]) for entry in manifest.values()]


@pytest.mark.parametrize(
    ("number", "way", "said"),
    [
        (1, ("best", "balanced"), ""),
        (
            2,
            ("best", "fast"),
            "--checkpoint best --preset fast, which takes about 4 s; better, in about 4 s: --checkpoint best",
        ),
        (3, ("last", "balanced"), "--checkpoint last --preset balanced, which takes about 6 s; better, in about 6 s: "),
    ],
)
def test_a_job_takes_the_best_way_that_is_quick_enough_and_says_so_in_a_line(tmp_path, capsys, number, way, said):
    assert command(tmp_path, number) == 0
    assert entries(tmp_path) == [way] * number
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sample.py: ")]
    assert len(lines) == (number > 1)
    assert said in "".join(lines)


@pytest.mark.parametrize(
    ("number", "flags", "way"),
    [
        (2, ["--preset", "fidelity"], ("best", "fidelity")),
        (3, ["--preset", "fidelity"], ("last", "fidelity")),
        (3, ["--preset", "fast"], ("best", "fast")),
        (3, ["--checkpoint", "best"], ("best", "balanced")),
    ],
)
def test_what_is_named_is_taken(tmp_path, number, flags, way):
    assert command(tmp_path, number, *flags) == 0
    assert entries(tmp_path) == [way] * number


def test_a_preset_that_no_way_has_is_refused(tmp_path, capsys):
    assert command(tmp_path, 1, "--preset", "perceptual") == 2
    assert "no preset 'perceptual' (it has balanced, fast, fidelity)" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_a_way_that_turns_out_slower_is_left_for_the_next_and_what_is_done_stays(tmp_path, monkeypatch, capsys, flags):
    """The first image is done at once, then the clock jumps."""
    monkeypatch.setattr(duration, "WATCHED_FROM_SECONDS", 5.0)
    looks = 3  # at the clock: as the bar begins, after the prediction, and after the first image
    tick(monkeypatch, chain(repeat(0.0, looks), count(100.0, 100.0)).__next__)
    assert command(tmp_path, 2, *flags) == 0
    assert entries(tmp_path) == [("best", "fast"), ("last", "balanced")]
    said = capsys.readouterr().err
    assert re.search(r"slower than measured: going on by --checkpoint last --preset balanced; better, in about", said)
    assert set(restored(tmp_path / "out")) == {"0.png", "1.png"}


@pytest.mark.parametrize("flags", [["--preset", "fast"], ["--checkpoint", "best"]])
def test_what_is_named_is_not_left_however_slow_it_turns_out(tmp_path, monkeypatch, flags):
    tick(monkeypatch, count(0.0, 1000.0).__next__)
    assert command(tmp_path, 2, *flags) == 0
    assert entries(tmp_path) == [("best", "fast" if "fast" in flags else "balanced")] * 2


def test_what_was_done_in_one_way_is_not_done_again_in_another(tmp_path, capsys):
    assert command(tmp_path, 3) == 0
    (tmp_path / "out" / "0.png").unlink()
    assert sample.main([str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--device", "cpu"]) == 0
    assert "wrote 1 of 1 restored images" in capsys.readouterr().out
    assert sorted(entries(tmp_path)) == [("best", "balanced"), *[("last", "balanced")] * 2]
    again = [str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--device", "cpu", "--steps", "1"]
    assert sample.main(again) == 0
    assert "wrote 3 of 3 restored images" in capsys.readouterr().out


@pytest.mark.parametrize("is_gpu", [False, True])
def test_a_gpu_gets_the_best_and_processes_on_a_cpu_that_cannot_agree_get_the_last(tmp_path, monkeypatch, is_gpu):
    if is_gpu:
        monkeypatch.setattr(job, "choose_device", lambda name: torch.device("cuda"))
    else:
        monkeypatch.setenv("WORLD_SIZE", "2")
    outputs = outputs_of([photographs(tmp_path, 3)], str(tmp_path / "out"))
    chosen = job.Job(outputs, Options(str(tmp_path / "out"), device="cpu"), {}).restorer.options
    assert chosen.checkpoint == str(tmp_path / "shipped" / ("best" if is_gpu else "last"))


def test_a_long_job_says_how_long_and_what_is_faster(tmp_path, monkeypatch, capsys):
    images.write(tmp_path / "a.png", torch.rand(3, 40, 52))
    checkpoint = with_presets(tmp_path, balanced=BALANCED, fast=BALANCED)
    monkeypatch.setattr(job, "LONG_JOB", 0.0)
    monkeypatch.setattr(job, "SMALLEST_TIMED_JOB", 0)
    command = [tmp_path / "a.png", "--output", tmp_path / "out", "--checkpoint", checkpoint, "--overwrite"]
    for flags, faster in (([], "--preset fast or --checkpoint lite"), (["--preset", "fast"], "--checkpoint lite")):
        assert run(*command, *flags) == 0
        assert re.search(rf"this takes about \d+ s; faster: {faster}\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("checkpoint", "advice"),
    [
        ("maxim", "; faster: --checkpoint swift"),
        ("swift", "; faster: --checkpoint lite"),
        ("lite", ""),
        ("u2net", ""),
        ("text", ""),
    ],
)
def test_the_next_faster_checkpoint_is_advised_and_none_beside_a_quick_one(
    tmp_path, monkeypatch, capsys, checkpoint, advice
):
    (tmp_path / "shipped" / "other").rename(tmp_path / "shipped" / checkpoint)
    monkeypatch.setattr(job, "LONG_JOB", 0.0)
    monkeypatch.setattr(job, "SMALLEST_TIMED_JOB", 0)
    assert command(tmp_path, 1, "--checkpoint", checkpoint) == 0
    assert re.search(rf"sample\.py: this takes about \d+ s{advice}\n", capsys.readouterr().err)


def test_a_short_job_does_not_say_how_long_it_takes(tmp_path, capsys):
    assert command(tmp_path, 1, "--checkpoint", "best") == 0
    assert "takes about" not in capsys.readouterr().err
