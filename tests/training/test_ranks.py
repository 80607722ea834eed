"""Several processes train as one would with the batches put together: real processes, gloo, real signals."""

import os
import signal
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

import train
from tests.processes import torchrun
from tests.tiny import weights
from tests.training.test_resume import COMMAND, config, logged, run  # noqa: F401 (a fixture)
from training.resume import read_checkpoint

pytestmark = pytest.mark.xdist_group("processes")
# One crop's levels are far apart, and those of all processes' crops together cover the range.
LEVELS = ["--model.objective.levels", "log_normal", "--model.objective.stratified", "true"]
LEVELS += ["--model.objective.noises", "2"]
# Dropout is drawn by each process; Adam turns rounding into steps of full length where a gradient is nearly zero.
EXACT = ["--model.predictor.init_args.dropout", "0", "--model.optimizer.lr", "1e-3"]
EXACT += ["--model.optimizer.warmup_steps", "0"]


class Fate(Callback):
    """What meets one process at a step, by the environment: RANK_MEETS="rank event step, rank event step"."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        for meets in os.environ["RANK_MEETS"].split(","):
            rank, event, step = meets.split()
            if (trainer.global_rank, trainer.global_step) == (int(rank), int(step)):
                if event == "nan":
                    batch["sharp"].fill_(float("nan"))
                else:
                    os.kill(os.getpid(), getattr(signal, event))

    def on_train_end(self, trainer, pl_module):
        """By now the averages stand in the place of the weights."""
        torch.save(pl_module.denoiser.state_dict(), f"averages_{trainer.global_rank}.pt")


def ranks(*arguments, **environment):
    """Exit codes of two processes that train together."""
    command = [*COMMAND, *arguments, "--trainer.strategy", "ddp", "--trainer.devices", "2"]
    return [done.returncode for done in torchrun("train.py", command, environment)]


def distance(one, other):
    """The largest difference of two runs' averaged weights, raw weights and averages; both logs have each step."""
    parts = [(weights(one), weights(other))]
    a, b = (read_checkpoint(Path(root) / "checkpoints" / "last.ckpt") for root in (one, other))
    parts += [(a[key], b[key]) for key in ("state_dict", "current_model_state")]
    for root in (one, other):
        assert sorted(step for step, values in logged(root).items() if "train/loss" in values) == list(range(1, 7))
    return max((x[name] - y[name]).abs().max().item() for x, y in parts for name in x)


@pytest.mark.parametrize("stops", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_give_the_weights_of_one_with_the_doubled_batch_through_faults_and_stops(stops):
    fate = ["--trainer.callbacks+", "tests.training.test_ranks.Fate"]
    # A batch that is not finite in one process is skipped by both, as by one process.
    assert run("one", *EXACT, *LEVELS, *fate, "--data.batch_size", "4", RANK_MEETS="0 nan 1") == 0
    if stops:  # Killed in the fifth step, they resume from the fourth; then one of them is told to stop in the fifth.
        assert ranks("two", *EXACT, *LEVELS, *fate, RANK_MEETS="1 nan 1, 1 SIGKILL 4")[1] == -signal.SIGKILL
        assert ranks("two", *EXACT, *LEVELS, *fate, RANK_MEETS="1 SIGTERM 4") == [128 + signal.SIGTERM] * 2
        assert read_checkpoint(Path("two/checkpoints/last.ckpt"))["global_step"] == 5
    assert ranks("two", *EXACT, *LEVELS, *fate, RANK_MEETS="1 SIGKILL 99" if stops else "1 nan 1") == [0, 0]
    assert distance("one", "two") < 1e-5
    averages = [torch.load(f"averages_{rank}.pt") for rank in "01"]
    assert all(torch.equal(averages[0][name], averages[1][name]) for name in averages[0])


def test_accumulated_batches_are_one_large_batch_through_a_stop():
    # The residual's scale, where it is measured, and stratified levels belong to every batch by itself.
    flags = [*EXACT, "--model.residual.scale", "0.1"]
    assert run("one", *flags, "--data.batch_size", "4") == 0
    flags += ["--trainer.accumulate_grad_batches", "2", "--trainer.val_check_interval", "4"]
    stop = ["--trainer.callbacks+", "tests.training.test_ranks.Fate"]
    # Told to stop in the first of a step's two batches, it stops after the second.
    assert run("two", *flags, *stop, RANK_MEETS="0 SIGTERM 2") == 128 + signal.SIGTERM
    assert read_checkpoint(Path("two/checkpoints/last.ckpt"))["global_step"] == 3
    assert run("two", *flags) == 0
    assert distance("one", "two") < 1e-5


@pytest.mark.filterwarnings("ignore")
def test_a_run_says_how_large_its_steps_are(caplog):
    flags = ["--trainer.max_steps", "2", "--trainer.accumulate_grad_batches", "3"]
    flags += ["--trainer.val_check_interval", "3"]
    assert train.main([*COMMAND, "run", *flags]) == 0
    assert "2 steps of 1 x 2 x 3 crops" in caplog.text and "32-true, seed 3" in caplog.text
