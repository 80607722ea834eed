"""Runs that meet batches which are not finite."""

import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

import train
from tests.tiny import metrics, weights
from training.averages import Averages

FIT = ["fit", "--config", "run.yaml", "--trainer.default_root_dir"]
pytestmark = [pytest.mark.usefixtures("run_folder"), pytest.mark.filterwarnings("ignore")]


def state(trainer, pl_module):
    """Weights, buffers, averages and the optimizer's state, copied."""
    moments = trainer.optimizers[0].state_dict()["state"]
    flat = {f"{k}.{name}": value for k, entry in moments.items() for name, value in entry.items()}
    (averages,) = (c._average_model for c in trainer.callbacks if isinstance(c, Averages))
    return {name: value.clone() for name, value in (pl_module.state_dict() | averages.state_dict() | flat).items()}


class Plant(Callback):
    """Changes the last batch of a step, and compares what there is before the next step with what there was."""

    def __init__(self, steps: list[int], factor: float = float("nan")):
        self.steps, self.factor = steps, factor

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batches = trainer.accumulate_grad_batches
        is_first, is_last = batch_idx % batches == 0, (batch_idx + 1) % batches == 0
        if is_first and trainer.global_step - 1 in self.steps and self.factor != self.factor:
            after = state(trainer, pl_module)
            assert after.keys() == self.before.keys()
            assert all(torch.equal(after[name], value) for name, value in self.before.items())
        if is_first and trainer.global_step in self.steps:
            self.before = state(trainer, pl_module)
        if is_last and trainer.global_step in self.steps:
            batch["sharp"].mul_(self.factor)


def plant(steps, factor=".nan"):
    given = "--trainer.callbacks"
    return [f"{given}+", "tests.training.test_guards.Plant", f"{given}.steps={steps}", f"{given}.factor={factor}"]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_batch_that_is_not_finite_changes_nothing(caplog, accumulated):
    """Also not what the step's first batch, which was finite, has left in buffers."""
    flags = f"--trainer.accumulate_grad_batches {accumulated} --trainer.val_check_interval {3 * accumulated}".split()
    assert train.main([*FIT, "run", *flags, *plant("[1,4]")]) == 0
    assert all(value.isfinite().all() for value in weights("run").values())
    assert "step 5 is skipped" in caplog.text and re.search(r"1 in a row, 2 in all; batch: \w", caplog.text)
    rows = metrics("run")
    assert [(row["step"], row["guard/skipped"]) for row in rows if "guard/skipped" in row] == [("2", "1"), ("5", "2")]


def test_the_guard_changes_no_finite_run():
    for patience in ("0", "10"):
        assert train.main([*FIT, patience, "--guard.patience", patience]) == 0
    off, on = weights("0"), weights("10")
    assert all(torch.equal(off[name], on[name]) for name in off)


def test_many_in_a_row_stop_the_run(capsys):
    assert train.main([*FIT, "run", "--guard.patience", "2", *plant("[3,4,5]")]) == 2
    assert re.search(r"2 steps in a row had .* not finite, the last with \w.*: look at", capsys.readouterr().err)
    assert not list(Path("run/checkpoint").glob("*"))
