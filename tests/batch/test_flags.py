"""Each flag of sample.py is one of tools.batch, and reaches its workers."""

from dataclasses import fields

import pytest

from deblur.restoration.options import Options
from deblur.settings import SamplingSettings
from deblur.tools.batch import command as batch
from tests.sample.test_flags import LINEAR, LOG_SNR, SAMPLE

pytestmark = pytest.mark.commands


def test_a_batch_has_sample_py_s_flags_and_its_own():
    own = {"concurrency", "num_gpus", "address"}
    assert {field.name for field in fields(batch.Flags)} == own
    for flag, value in {"concurrency": 3, "num_gpus": 0.5, "address": "ray://HEAD:1"}.items():
        _, _, _, flags = batch.parsed(["in", "out", f"--{flag}", str(value)])
        assert flags == batch.Flags(**{flag: value})


@pytest.mark.parametrize("flag", [field.name for field in fields(Options) if field.name not in batch.NOT_OF_BATCHES])
def test_a_flag_of_sample_py_is_one_of_a_batch(flag):
    values = {"memory": "2.5", "classes": "a.B", "batch_size": "3", "tile": "128", "predictor_tile": "192"}
    values |= {"format": "tif", "depth": "16", "seed": "7", "precision": "bf16", "provider": "cuda", "device": "cpu"}
    values |= {"metadata": "none", "on_fault": "fallback", "preset": "perceptual", "checkpoint": "text"}
    values |= {"quality": "80", "scale": "0.5", "max_side": "1200", "restore": "all"}
    source, options, numbers, _ = batch.parsed(["in", "out", f"--{flag}", values.get(flag, "true")])
    assert (source, numbers) == ("in", {})
    changed = {name for name, value in vars(options).items() if value != getattr(Options("out"), name)}
    assert changed == {flag}
    assert str(getattr(options, flag)) == values.get(flag, "True")


@pytest.mark.parametrize("flag", [field.name for field in fields(SamplingSettings)])
def test_a_sampling_setting_of_sample_py_is_one_of_a_batch(flag):
    both, value, _ = SAMPLE.get(flag, ([], ["3"], None))
    value = value or ["true"]
    _, options, numbers, _ = batch.parsed(["in", "out", *both, f"--{flag}", *value])
    assert options == Options("out")
    assert str(numbers[flag]).lower() in (*value, f"{float(value[0])}" if value[0][-1].isdigit() else "")
    assert len(numbers) == 1 + len(both) // 2
    assert {len(LINEAR), len(LOG_SNR)} == {4}
