"""Which checkpoint sample.py takes if none is named."""

from pathlib import Path

import pytest
import torch

from deblur.data.files import images
from deblur.devices import core_count
from deblur.restoration.choice import CORE_SECONDS, FAST, PATIENCE, with_checkpoint
from deblur.restoration.options import Options

CPU = torch.device("cpu")


@pytest.fixture(params=["bf16", "fp32"])
def precision(request):
    return request.param


@pytest.fixture
def photo(tmp_path, precision):
    """A file of so many pixels that all stages of the best checkpoint take so many times PATIENCE."""

    def make(times: float) -> Path:
        pixels = 1e6 * times * PATIENCE * core_count() / CORE_SECONDS[precision]
        file = tmp_path / f"{times}.png"
        images.write(file, torch.zeros(3, 100, int(pixels / 100)))
        return file

    return make


def choice(files, precision, device=CPU, numbers=None, **options):
    """The name and the preset of the checkpoint, and what is said."""
    chosen, remark = with_checkpoint(
        Options(output="restored", precision=precision, **options), files, device, numbers or {}
    )
    return Path(chosen.checkpoint).name, chosen.preset, remark


def test_a_cpu_gets_maxim_where_it_takes_less_than_a_minute(photo, precision):
    assert choice([photo(0.98)], precision) == ("maxim", None, None)


@pytest.mark.parametrize("times", [[1.02], [0.98, 0.98], [0.97 / FAST]])
def test_a_cpu_gets_the_preset_fast_where_only_that_takes_less(photo, precision, times):
    name, preset, remark = choice([photo(one) for one in times], precision)
    assert (name, preset) == ("maxim", "fast")
    assert remark.startswith("restoring by maxim's preset fast")
    assert remark.endswith(f"up to {sum(times):.0f} min: --checkpoint maxim")


@pytest.mark.parametrize("given", [{"preset": "fidelity"}, {"numbers": {"stages": 2}}])
def test_a_preset_or_stages_that_are_named_are_kept(photo, precision, given):
    name, preset, _ = choice([photo(1.02)], precision, **given)
    assert (name, preset) == ("lite", given.get("preset"))


def test_a_cpu_gets_lite_where_it_takes_more_and_a_line_says_so(photo, precision):
    file = photo(1.03 / FAST)
    name, preset, remark = choice([file], precision)
    assert (name, preset) == ("lite", None)
    assert remark.startswith("restoring by lite")
    assert remark.endswith("up to 3 min: --checkpoint maxim"), "a large image may be restored at a smaller scale"
    assert choice([file], precision, scale=1.0)[2].endswith("about 3 min: --checkpoint maxim")


@pytest.mark.parametrize("size", [{"scale": 0.5}, {"max_side": 1000}])
def test_the_time_is_that_of_the_reduced_image(photo, precision, size):
    assert choice([photo(1.02)] * 2, precision, **size) == ("maxim", None, None)


def test_a_gpu_gets_maxim(photo, precision):
    assert choice([photo(4.0)], precision, torch.device("cuda")) == ("maxim", None, None)


def test_what_is_no_image_counts_nothing(tmp_path, precision):
    (tmp_path / "a.jpg").write_text("no image")
    assert choice([tmp_path / "a.jpg"], precision)[0] == "maxim"
