"""How long a job is expected to take, from a piece of one of its images."""

from itertools import chain, count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from deblur.checkpoints import update_index
from deblur.data.files import images
from deblur.models.networks.base import IdentityPredictor
from deblur.progress import ProgressBar
from deblur.restoration import duration
from deblur.restoration.options import Options
from deblur.restoration.outputs import Names
from deblur.restoration.restorer import Restorer, network_pixels
from deblur.settings import SamplingSettings
from deblur.tiling import Tiled
from tests.sample.conftest import with_presets
from tests.tiny import tiny_pipeline


@pytest.fixture
def searched(tmp_path):
    """A checkpoint that restores noise of 80 and more pixels at scale 0.5."""
    checkpoint = with_presets(tmp_path, balanced=vars(SamplingSettings(steps=2)))
    rule = {"scales": [1.0, 0.5], "nearly_largest": 1.0, "smallest": 40, "regions": 1, "context": 0}
    update_index(Path(checkpoint), working_size=rule)
    return checkpoint


def tick(monkeypatch, seconds=1.0):
    """Let so many seconds pass between two looks at the clock."""
    monkeypatch.setattr(duration, "time", SimpleNamespace(perf_counter=count(0, seconds).__next__))


@pytest.mark.parametrize(
    ("options", "pixels", "searches"),
    [
        ({}, 2 * 30 * 48 + 30 * 40, 1),
        ({"scale": 1}, 2 * 60 * 96 + 30 * 40, 0),
        ({"scale": 0.4}, 2 * 24 * 38 + 12 * 16, 0),
        ({"max_side": 64}, 2 * 30 * 48 + 30 * 40, 1),
        ({"max_side": 64, "scale": 1}, 2 * 40 * 64 + 30 * 40, 0),
    ],
)
def test_the_expected_time_is_that_of_the_scale_that_is_found(
    tmp_path, monkeypatch, searched, options, pixels, searches
):
    work = []
    for name, size in (("small", (30, 40)), ("large", (60, 96)), ("other", (60, 96))):
        images.write(tmp_path / f"{name}.png", torch.rand(3, *size))
        work.append((tmp_path / f"{name}.png", Names.of(tmp_path / "out.png")))
    sized = list(duration.sizes(work))
    assert [one[2:] for one in sized] == [(30, 40), (60, 96), (60, 96)]
    restorer = Restorer(Options("", searched, device="cpu", **options), {})
    tick(monkeypatch)
    piece = 60 * 96 if searches else 30 * 40  # the first image that is large, whole
    assert duration.expected(restorer, sized, 1e9) == pytest.approx(2 * pixels / piece + searches)
    assert set(restorer.scales) == ({tmp_path / "large.png"} if searches else set())
    if searches:  # which is not looked for again
        monkeypatch.setattr(restorer.pipeline, "_working_scale", None)
        large = restorer.read(tmp_path / "large.png", Names.of(tmp_path / "out.png"))
        assert restorer.scale_of(large) == 0.5


@pytest.mark.parametrize("may_take", [0.1, 0.53])  # the smallest scale takes 0.5 s, and the search 0.06 s
def test_no_scale_is_looked_for_where_that_and_the_smallest_take_too_long(tmp_path, monkeypatch, searched, may_take):
    images.write(tmp_path / "a.png", torch.rand(3, 60, 96))
    restorer = Restorer(Options("", searched, device="cpu"), {})
    tick(monkeypatch)
    sized = [(tmp_path / "a.png", Names.of(tmp_path / "out.png"), 60, 96)]
    assert duration.expected(restorer, sized, may_take) > may_take
    assert restorer.scales == {}


def test_a_scale_is_looked_for_where_that_and_the_smallest_are_quick_enough(tmp_path, monkeypatch, searched):
    images.write(tmp_path / "a.png", torch.rand(3, 60, 96))
    restorer = Restorer(Options("", searched, device="cpu"), {})
    tick(monkeypatch)
    duration.expected(restorer, [(tmp_path / "a.png", Names.of(tmp_path / "out.png"), 60, 96)], 0.6)
    assert set(restorer.scales) == {tmp_path / "a.png"}


@pytest.mark.parametrize(
    ("first", "seconds", "pixels", "may_take", "side"),
    [
        (0.1, 0.1, 10**9, 1e9, 384),
        (2.0, 2.0, 10**9, 1e9, 192),
        (0.1, 0.1, 10**5, 1e9, 192),
        (0.1, 0.1, 10**9, 60, 64),
        (15.0, 0.1, 10**6, 60, 384),
    ],
    ids=["quick", "slow", "a short job", "far too long", "only the first call takes long"],
)
def test_a_larger_piece_is_measured_where_that_is_quick_and_worth_it(
    tmp_path, monkeypatch, first, seconds, pixels, may_take, side
):
    images.write(tmp_path / "a.png", torch.rand(3, 400, 500))
    checkpoint = with_presets(tmp_path, balanced=vars(SamplingSettings(blend=0.0)))
    restorer = Restorer(Options("", checkpoint, device="cpu"), {})
    photograph = restorer.read(tmp_path / "a.png", Names.of(tmp_path / "out.png"))
    looks = 2  # at the clock, for each piece: after the prediction, and after a sample
    clock = chain([0.0, first, looks * first], count(looks * first, seconds))
    monkeypatch.setattr(duration, "time", SimpleNamespace(perf_counter=clock.__next__))
    assert duration._seconds_a_pixel(restorer, photograph, pixels, may_take) == pytest.approx(looks * seconds / side**2)


@pytest.mark.parametrize("size", [(100, 100), (384, 385), (1000, 700)])
def test_the_pixels_of_overlapping_tiles_are_counted(size):
    """As many as the network is given when it is called tile by tile."""
    predictor, given = IdentityPredictor(), []
    predictor.own_tile = (384, 24)

    def network(tile):
        given.append(tile[0, 0].numel())
        return tile

    Tiled(network, predictor)(torch.zeros(1, 3, *size))
    assert network_pixels(predictor, *size) == sum(given)
    assert network_pixels(IdentityPredictor(), *size) == size[0] * size[1]


@pytest.mark.parametrize("steps", [2, 10])
def test_tiles_that_overlap_move_the_bar_by_no_more_than_the_predictor_s_share_and_steps_to_its_end(tmp_path, steps):
    images.write(tmp_path / "a.png", torch.rand(3, 96, 160))
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    restorer = Restorer(Options("", checkpoint=str(tmp_path / "checkpoint"), predictor_tile=64), {"steps": steps})
    seen = []

    class Bar(ProgressBar):
        def update(self, n=1):
            super().update(n)
            seen.append(self.n)

    with Bar(total=1, disable=False) as bar:
        list(restorer.restore([(tmp_path / "a.png", Names.of(tmp_path / "a.png"))], bar, {}))
    assert seen == sorted(seen)
    assert seen[-2 - steps] == pytest.approx(0.5)
    assert seen[-2 - steps :] == pytest.approx([0.5 + 0.5 * step / steps for step in (*range(steps + 1), steps)])
    assert max(seen) <= 1, "by rounding"


def test_a_job_whose_last_step_comes_late_is_done_and_one_with_more_to_do_is_given_up(monkeypatch):
    monkeypatch.setattr(duration, "time", SimpleNamespace(monotonic=chain([0.0, 1.0, 100.0], count(200.0)).__next__))
    with duration.WatchedBar(1, may_take=40.0, disable=False) as bar:
        bar.update(0.6)
        with pytest.raises(duration.TooSlow, match="2 min"):
            bar.update(0.3)
        bar.update(0.1)
        assert bar.n < 1, "by rounding"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.1, "1 s"), (45.4, "45 s"), (185, "3 min"), (5990, "100 min"), (7000, "2 h")]
)
def test_a_time_in_words(seconds, words):
    assert duration.time_in_words(seconds) == words
