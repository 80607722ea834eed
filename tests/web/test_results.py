"""Results that are blended anew, against the pipeline that made them."""

import shlex
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import sample
from data import images, metadata
from models.checkpoints import save_presets
from models.settings import SamplingSettings
from restoration.maps import reduced
from restoration.options import Options
from tests.tiny import tiny_pipeline
from web.actions import Actions
from web.restoration import Cancelled, Limits, PhotoRestorer
from web.results import mask_of
from web.visits import Visits

PRESET = SamplingSettings("ddim", steps=2, eta=1.0, blend=0.35)


@pytest.fixture(scope="module")
def restorer(tmp_path_factory):
    checkpoint = tmp_path_factory.mktemp("web") / "checkpoint"
    tiny_pipeline().save_pretrained(checkpoint)
    save_presets(checkpoint, {"balanced": PRESET})
    options = Options("", checkpoint=str(checkpoint), device="cpu", precision="fp32")
    return PhotoRestorer(options, Limits(1_000_000))


@pytest.fixture
def visit(restorer, tmp_path):
    for name in ("kept", "served"):
        (tmp_path / name).mkdir()
    images.write(tmp_path / "a photo.png", torch.rand(3, 40, 52, generator=torch.Generator().manual_seed(0)))
    visit = Visits(tmp_path / "kept", tmp_path / "served").of("somebody")
    visit.photo = restorer.open(tmp_path / "a photo.png", "a photo.png")
    return visit


def restored(restorer, visit, preset=None, seed=0, **numbers):
    return restorer.restore(visit, preset, numbers, seed, lambda *told: None)


@pytest.mark.parametrize("numbers", [{}, {"sampler": "unipc", "eta": 0.0}, {"num_samples": 3}])
def test_every_image_is_the_pipeline_s_to_the_bit(restorer, visit, numbers):
    result = restored(restorer, visit, seed=4, **numbers)
    settings = replace(PRESET, **numbers)
    call = {"seed": 4, "names": ["a photo"], "output_type": "pt"}
    pixels = visit.photo.image.pixels
    expected = restorer.pipeline(pixels, settings, **call)
    assert torch.equal(result.image("prediction"), expected.predictions[0])
    for kind, image in zip(result.kinds[1:], expected.images, strict=False):
        assert torch.equal(result.image(kind), image), kind
    if settings.num_samples > 1:
        mean = restorer.pipeline(pixels, replace(settings, average=True), **call)
        assert torch.equal(result.image("mean of 3 samples"), mean.images[0]) and torch.equal(result.std(), mean.std[0])
    for blend in (0.0, 0.7):
        result.settings = replace(result.settings, blend=blend)
        expected = restorer.pipeline(pixels, replace(settings, blend=blend), **call)
        assert torch.equal(result.image(result.kinds[1]), expected.images[0])


def test_a_run_of_strength_0_can_be_made_stronger(restorer, visit):
    result = restored(restorer, visit, blend=0.0)
    assert torch.equal(result.image("restored"), result.image("prediction"))
    result.settings = replace(result.settings, blend=1.0)
    assert not torch.equal(result.image("restored"), result.image("prediction"))


def test_outside_of_a_mask_is_the_prediction_to_the_bit(restorer, visit):
    result = restored(restorer, visit)
    whole, prediction = result.image("restored"), result.image("prediction")
    result.mask = torch.zeros(20, 26)
    result.mask[:, :13] = 1
    masked = result.image("restored")
    assert torch.equal(masked[..., :24], whole[..., :24]) and torch.equal(masked[..., 28:], prediction[..., 28:])
    assert not torch.equal(whole[..., 28:], prediction[..., 28:])
    assert result.command("restored") is None and "--blend 0.0" in result.command("prediction")


def test_what_is_painted_becomes_a_mask(restorer):
    layer = torch.zeros(2, 3, 4, dtype=torch.uint8)
    assert mask_of([layer.numpy()], outside=False) is None and mask_of([], outside=True) is None
    layer[0, 1, 3] = 255
    inside, outside = (mask_of([layer.numpy()], outside) for outside in (False, True))
    assert inside[0, 1] == 1 and inside.sum() == 1 and torch.equal(outside, 1 - inside)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("restored", {"steps": 3, "sampler": "ddpm", "eta": 0.0}),
        ("prediction", {}),
        ("sample 2 of 2", {"num_samples": 2}),
        ("mean of 2 samples", {"num_samples": 2, "blend": 0.5}),
    ],
)
def test_the_command_writes_the_same_bytes(restorer, visit, tmp_path, monkeypatch, kind, numbers):
    result = restored(restorer, visit, "balanced", 3, **numbers)
    like = metadata.kept(visit.photo.image, "keep")
    images.write(tmp_path / "page" / result.file_name(kind), result.image(kind), like)
    command = shlex.split(result.command(kind))
    monkeypatch.chdir(tmp_path)
    assert command[:2] == ["python", "sample.py"] and sample.main(command[2:]) == 0
    name = result.file_name(kind)
    assert (tmp_path / "restored" / name).read_bytes() == (tmp_path / "page" / name).read_bytes()


def test_a_result_says_how_it_was_made(restorer, visit):
    facts = restored(restorer, visit, "balanced", 3).facts
    assert facts["preset"] == "balanced" and facts["seed"] == "3" and facts["device"] == "cpu, fp32"
    assert facts["tiles"] == "whole image"
    assert facts["checkpoint"].endswith("licence not stated") and len(facts["sha256"]) == 64
    assert "cc-by-sa-4.0" in PhotoRestorer(Options(""), Limits(1)).licence


def test_a_predictor_alone_has_its_prediction(restorer, visit, monkeypatch):
    monkeypatch.setattr(restorer.pipeline, "denoiser", None)
    assert restored(restorer, visit).kinds == ["prediction"]


def test_cancelling_leaves_nothing_and_no_further_step_begins(restorer, visit):
    done = []

    def tell(step, total, words):
        done.append(step)
        if step == 2:
            visit.stop.set()

    with pytest.raises(Cancelled, match="2 of 9 steps done"):
        restorer.restore(visit, None, {"steps": 9}, 0, tell)
    assert done == [0, 1, 2] and not list(visit.folder.iterdir())


def test_an_image_beyond_memory_is_refused_by_the_sentence_of_sample_py(restorer, visit, monkeypatch):
    monkeypatch.setattr(restorer.options, "memory", 0.01)
    visit.photo = replace(visit.photo, image=images.ImageFile(torch.zeros(3, 300, 300, dtype=torch.uint8)))
    with pytest.raises(ValueError, match=r"a photo.png does not fit into --memory: give \d"):
        restored(restorer, visit)
    assert not list(visit.folder.iterdir())


def test_old_results_make_room_and_a_closed_visit_leaves_no_file(restorer, visit, monkeypatch, tmp_path):
    monkeypatch.setattr("web.visits.MOST_BYTES", 150_000)  # two results of 59 kB
    for _ in range(3):
        visit.add(restored(restorer, visit))
    assert [result.number for result in visit.results] == [2, 3] and visit.newest().number == 3
    visit.serve("key", "a.png").write_bytes(b"")
    visit.close()
    assert not [path for path in (tmp_path / "kept", tmp_path / "served") if list(path.iterdir())]


def test_visits_end_when_they_are_idle_for_an_hour_not_an_hour_after_opening(tmp_path):
    now = [0.0]
    visits = Visits(tmp_path / "kept", tmp_path / "served", lambda: now[0])
    (tmp_path / "kept").mkdir()
    used, idle = visits.of("used"), visits.of("idle")
    for now[0] in (1800.0, 3599.0, 5400.0, 9000.0):
        assert visits.of("used") is used and not used.stop.is_set()
        assert idle.stop.is_set() == (now[0] > 3600) and idle.folder.exists() == (now[0] <= 3600)
    now[0] = 12600.1
    visits.of("another")
    assert used.stop.is_set() and not used.folder.exists() and visits.of("used") is not used


def test_files_are_served_under_other_names_each_time(visit):
    assert visit.serve(1, "a.png") != visit.serve(1, "a.png")


def test_a_file_that_was_served_anew_is_the_newest_and_the_old_one_is_gone(visit):
    for number in range(30):
        paths = [visit.serve(key, "a.png") for key in ("mask", number)]
        for path in paths:
            path.write_bytes(b"")
        assert all(path.is_file() for path in paths)
    kept = visit.served_before("mask")
    for number in range(7):
        visit.serve(f"more {number}", "a.png")
    assert visit.served_before("mask") == kept and kept.is_file()
    assert len(list(visit.served.iterdir())) == 8 and visit.served_before("mask") == paths[0]


@pytest.mark.parametrize("change", ["strength", "mask", "where"])
def test_the_slider_shows_what_was_changed_last(restorer, tmp_path, change):
    for name in ("kept", "served"):
        (tmp_path / name).mkdir()
    images.write(tmp_path / "a.png", torch.rand(3, 40, 52))
    visits, request = Visits(tmp_path / "kept", tmp_path / "served"), SimpleNamespace(session_hash="somebody")
    actions = Actions({"lite": restorer}, visits)
    actions.open(str(tmp_path / "a.png"), "a.png", request)
    visit = visits.of("somebody")
    visit.add(restored(restorer, visit))
    painted = {"layers": [np.full((20, 26, 4), (0, 0, 255, 200), np.uint8)]}
    sides = "blurry", "newest"

    def shown_right(view):
        return images.read(view[2][1])

    views = [shown_right(actions.look(*sides, request))]
    for value in (0.9, 0.5, 0.9):
        layer = painted["layers"][0].copy()
        layer[: int(20 * value)] = 0
        if change == "strength":
            views.append(shown_right(actions.strength(value, *sides, request)))
        elif change == "mask":
            views.append(shown_right(actions.mask({"layers": [layer]}, "only where painted", *sides, request)))
        else:
            where = "everywhere but where painted" if value == 0.5 else "only where painted"
            views.append(shown_right(actions.mask(painted, where, *sides, request)))
        expected = (visit.newest().image("restored") * 255).round() / 255
        assert (views[-1] - expected).abs().max() < 1e-6
    assert not any(torch.equal(one, other) for one, other in pairwise(views))
    assert torch.equal(views[1], views[3])


def test_a_run_that_takes_too_long_ends(restorer, visit, monkeypatch):
    monkeypatch.setattr(restorer, "limits", Limits(1_000_000, seconds=1e-9))
    with pytest.raises(ValueError, match="longer than the 1e-09 seconds that this page takes, with 0 of 2 steps done"):
        restored(restorer, visit)
    assert not list(visit.folder.iterdir())


def test_large_photographs_are_shown_smaller():
    image = torch.rand(3, 60, 90)
    assert reduced(image, 5400) is image
    small = reduced(image, 600)
    assert small.shape == (3, 20, 30) and torch.allclose(small[:, 0, 0], image[:, :3, :3].mean((1, 2)))
