"""Each flag of sample.py is one of tools.batch, and reaches its workers."""

from dataclasses import fields

import pytest

from deblur.cli import UsageError
from deblur.restoration.options import Options
from deblur.tools.batch import command as batch

pytestmark = pytest.mark.commands


def test_a_batch_has_sample_py_s_flags_and_its_own():
    own = {"concurrency", "num_gpus", "address"}
    assert {field.name for field in fields(batch.Flags)} == own
    for flag, value in {"concurrency": 3, "num_gpus": 0.5, "address": "ray://HEAD:1"}.items():
        _, _, _, flags = batch.parsed(["in", "out", f"--{flag}", str(value)])
        assert flags == batch.Flags(**{flag: value})


def test_every_other_flag_is_that_of_sample_py():
    """Parsed as there, by the same two classes; those of a single photograph are unknown."""
    given = {"checkpoint": "text", "preset": "perceptual", "memory": 2.5, "format": "tif", "overwrite": True}
    numbers = {"sampler": "ddpm", "steps": 3, "average": True}
    words = [f"--{name}={value}" for name, value in (given | numbers).items()]
    assert batch.parsed(["in", "out", *words])[:3] == ("in", Options("out", **given), numbers)
    for name in batch.NOT_OF_BATCHES:
        with pytest.raises(UsageError, match=f"--{name} is unknown"):
            batch.parsed(["in", "out", f"--{name}=a"])
