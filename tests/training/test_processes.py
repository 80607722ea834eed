"""Steps of several processes and of several batches, through faults and stops: the weights of one large batch."""

import signal
from pathlib import Path

import pytest
import torch

from deblur.training.resume import read_checkpoint
from tests import processes
from tests.tiny import weights
from tests.training.test_resume import COMMAND, FATE, config, logged, run, step_of  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.commands, pytest.mark.xdist_group("processes"), pytest.mark.filterwarnings("ignore")]
# Dropout is drawn by each process; Adam turns rounding into steps of full length where a gradient is nearly zero.
EXACT = ["--model.predictor.init_args.dropout", "0", "--model.optimizer.lr", "1e-3"]
EXACT += ["--model.optimizer.warmup_steps", "0"]


def ranks(*arguments, **environment):
    """Exit codes of two processes that train together."""
    command = [*COMMAND, *arguments, "--trainer.strategy", "ddp", "--trainer.devices", "2"]
    return [done.returncode for done in processes.torchrun("train.py", command, environment)]


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
    # One crop's levels are far apart, and those of all processes' crops together cover the range.
    flags = [*EXACT, *FATE, "--model.objective.levels", "log_normal", "--model.objective.stratified", "true"]
    flags += ["--model.objective.noises", "2"]
    # A batch that is not finite in one process is skipped by both, as by one process.
    assert run("one", *flags, "--data.batch_size", "4", MEETS="0 nan step 1") == 0
    if stops:  # Killed in the fifth step, they resume from the fourth; then one of them is told to stop in the fifth.
        assert ranks("two", *flags, MEETS="1 nan step 1, 1 SIGKILL step 4")[1] == -signal.SIGKILL
        assert ranks("two", *flags, MEETS="1 SIGTERM step 4") == [128 + signal.SIGTERM] * 2
        assert step_of("two/checkpoints/last.ckpt") == 5
    assert ranks("two", *flags, MEETS="" if stops else "1 nan step 1") == [0, 0]
    assert distance("one", "two") < 1e-5
    averages = [torch.load(f"averages_{rank}.pt") for rank in "01"]
    assert all(torch.equal(averages[0][name], averages[1][name]) for name in averages[0])


def test_accumulated_batches_are_one_large_batch_through_a_stop():
    # The residual's scale, where it is measured, and stratified levels belong to every batch by itself.
    flags = [*EXACT, "--model.residual.scale", "0.1"]
    assert run("one", *flags, "--data.batch_size", "4") == 0
    flags += ["--trainer.accumulate_grad_batches", "2", "--trainer.val_check_interval", "4"]
    # Told to stop in the first of a step's two batches, it stops after the second.
    assert run("two", *flags, *FATE, MEETS="0 SIGTERM step 2") == 128 + signal.SIGTERM
    assert step_of("two/checkpoints/last.ckpt") == 3
    assert run("two", *flags) == 0
    assert distance("one", "two") < 1e-5
