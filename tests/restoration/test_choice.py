"""Which checkpoint sample.py takes if none is named."""

import os

import pytest
import torch

from deblur.data import images
from deblur.restoration.choice import CORE_SECONDS, PATIENCE, default_checkpoint


@pytest.fixture
def photos(tmp_path):
    """Files of so many pixels that the best checkpoint takes just less than PATIENCE, and just more."""
    pixels = 1e6 * PATIENCE * len(os.sched_getaffinity(0)) / CORE_SECONDS
    files = {}
    for name, share in (("below", 0.98), ("above", 1.02)):
        files[name] = tmp_path / f"{name}.png"
        images.write(files[name], torch.zeros(3, 100, int(share * pixels / 100)))
    return files


def test_a_cpu_gets_maxim_where_it_takes_less_than_a_minute(photos):
    checkpoint, remark = default_checkpoint([photos["below"]], "cpu")
    assert checkpoint.endswith("maxim")
    assert remark is None


@pytest.mark.parametrize("names", [["above"], ["below", "below"]])
def test_a_cpu_gets_lite_where_it_takes_more_and_a_line_says_so(photos, names):
    checkpoint, remark = default_checkpoint([photos[name] for name in names], "cpu")
    assert checkpoint.endswith("lite")
    assert "--checkpoint maxim" in remark
    assert f"up to {len(names)} min" in remark, "a large image may be restored at a smaller scale"
    assert f"about {len(names)} min" in default_checkpoint([photos[name] for name in names], "cpu", scale=1.0)[1]


@pytest.mark.parametrize("size", [{"scale": 0.5}, {"max_side": 1000}])
def test_the_time_is_that_of_the_reduced_image(photos, size):
    checkpoint, remark = default_checkpoint([photos["above"]] * 2, "cpu", **size)
    assert checkpoint.endswith("maxim")
    assert remark is None


def test_a_gpu_gets_maxim(photos):
    assert default_checkpoint([photos["above"]], "cuda")[0].endswith("maxim")


def test_what_is_no_image_counts_nothing(tmp_path):
    (tmp_path / "a.jpg").write_text("no image")
    assert default_checkpoint([tmp_path / "a.jpg"], "cpu")[0].endswith("maxim")
