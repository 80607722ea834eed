"""Which checkpoint of a run counts after one failure, and after a second one."""

import os

import pytest
import torch

from deblur.hub import CheckpointError
from deblur.training.resume import AtomicCheckpointIO, newest


def save(root, step):
    AtomicCheckpointIO().save_checkpoint({"step": torch.tensor(step)}, root / "checkpoints" / "last.ckpt")


def cut(root, name):
    file = root / "checkpoints" / f"{name}.ckpt"
    os.truncate(file, file.stat().st_size // 2)


def step(root):
    """Where a run would resume, and from which file."""
    path, checkpoint = newest(root)
    return path.stem, checkpoint["step"].item()


def test_a_damaged_checkpoint_never_takes_the_place_of_the_previous_one(tmp_path):
    save(tmp_path, 1), save(tmp_path, 2)
    assert step(tmp_path) == ("last", 2)
    cut(tmp_path, "last")
    for _ in range(2):  # the run that resumed was killed before its first checkpoint
        assert step(tmp_path) == ("previous", 1)
    save(tmp_path, 3)
    assert step(tmp_path) == ("last", 3)
    cut(tmp_path, "last")
    assert step(tmp_path) == ("previous", 1)
    cut(tmp_path, "previous")
    with pytest.raises(CheckpointError, match="no other to resume from"):
        newest(tmp_path)


def test_a_run_that_ended_between_two_renames_twice_keeps_its_newest_whole_checkpoint(tmp_path):
    folder = tmp_path / "checkpoints"
    save(tmp_path, 1), save(tmp_path, 2)
    os.replace(folder / "last.ckpt", folder / "previous.ckpt")
    assert step(tmp_path) == ("previous", 2)
    for number in (3, 4):
        save(tmp_path, number)
        os.replace(folder / "last.ckpt", folder / "lost.ckpt")
        assert step(tmp_path) == ("previous", 2)
