"""Runs that are killed and resumed by the same command, and of several processes: real signals, real files."""

import errno
import os
import pickle
import random
import re
import resource
import shutil
import signal
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from safetensors.torch import load_file, save_file

import train
from deblur.training.callbacks import Metrics
from deblur.training.resume import AtomicCheckpointIO, read_checkpoint
from tests import processes
from tests.conftest import Hostile, folder_to_train_in
from tests.tiny import RUN, metrics, weights

pytestmark = [pytest.mark.commands, pytest.mark.xdist_group("processes"), pytest.mark.filterwarnings("ignore")]
COMMAND = ["fit", "--config", "run.yaml", "--trainer.default_root_dir"]


class Signal(Callback):
    """Sends its process group the signal given by the environment, at the moment that it says."""

    def __init__(self):
        self.signal, self.moment, self.step = os.environ["SIGNAL_AT"].split()
        self.step = int(self.step)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self.moment == "step" and trainer.global_step == self.step:
            os.killpg(0, getattr(signal, self.signal))

    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        if self.moment == "validation" and trainer.global_step == self.step and batch_idx == 1:
            os.killpg(0, getattr(signal, self.signal))


def every_two_steps():
    """Validation, of two images, and a checkpoint after two steps."""
    often = RUN.replace("val_check_interval: 3", "val_check_interval: 2\n  limit_val_batches: 2")
    Path("run.yaml").write_text(often)


@pytest.fixture(autouse=True)
def config(run_folder):
    every_two_steps()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupts."""
    with folder_to_train_in(tmp_path_factory, "whole") as folder:
        every_two_steps()
        assert run("run") == 0
    return folder / "run"


SPEED = re.compile(r"train/(device/.*|time|batches.*|samples.*)")


def run(*arguments, fatal=None, **environment):
    """Exit code of the command in a process; negative: the signal that ended it."""
    return processes.run("train.py", [*COMMAND, *arguments], environment, fatal).returncode


def logged(root):
    """Step -> what was logged, without the machine's speed; a step that was done twice must say the same twice."""
    found = {}
    for path in Path(root).glob("logs/version_*/metrics.csv"):
        for row in metrics(root, int(path.parent.name.removeprefix("version_"))):
            values = {name: value for name, value in row.items() if not SPEED.match(name)}
            known = found.setdefault(int(row["step"]), values)
            assert all(known.get(name, value) == value for name, value in values.items())
            known |= values
    return found


def same(one, other):
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
    a, b = (read_checkpoint(Path(root) / "checkpoints" / "last.ckpt") for root in (one, other))
    for key in ("state_dict", "current_model_state"):
        assert all(torch.equal(a[key][name], b[key][name]) for name in a[key])
    a, b = (checkpoint["optimizer_states"][0]["state"] for checkpoint in (a, b))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k][name], b[k][name]) for k in a for name in a[k])
    index = [(Path(root) / "checkpoint" / "model_index.json").read_text() for root in (one, other)]
    assert index[0] == index[1]
    assert logged(one) == logged(other)


@pytest.mark.parametrize(
    "without",
    [["--data.val", "null"], pytest.param(["--trainer.limit_val_batches", "0"], marks=pytest.mark.slow)],
)
def test_a_run_without_validation_has_its_checkpoints(without):
    assert run("run", *without) == 0
    for name, step in (("previous", 4), ("last", 6)):
        assert read_checkpoint(Path("run/checkpoints") / f"{name}.ckpt")["global_step"] == step


def test_a_saved_checkpoint_and_its_name_are_on_the_disk(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda opened: synced.append(os.fstat(opened).st_ino) or fsync(opened))
    AtomicCheckpointIO().save_checkpoint({"step": 1}, tmp_path / "last.ckpt")
    assert synced == [(tmp_path / "last.ckpt").stat().st_ino, tmp_path.stat().st_ino]


class Unwritable:
    """What cannot be stored, as on a disk that fills up while a checkpoint is written."""

    def __reduce__(self):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
def test_a_checkpoint_that_cannot_be_written_leaves_those_before_it(tmp_path, name):
    folder = tmp_path / "checkpoints"
    for step in (1, 2):
        AtomicCheckpointIO().save_checkpoint({"step": step}, folder / name)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(OSError, match=f"{name} could not be written .*No space left.*: make room"):
        AtomicCheckpointIO().save_checkpoint({"step": 3, "more": Unwritable()}, folder / name)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# While an archive is not yet on the disk, while it has no name yet, and between two renames.
KILLED = [("fsync", 5, 0), ("fsync", 6, 0), ("replace", 3, 0)]


@pytest.mark.parametrize(
    ("killed", "workers"),
    [(KILLED[2:], "0"), pytest.param(KILLED, "2", marks=pytest.mark.slow)],
    ids=["at a rename", "three times"],
)
def test_killed_while_it_writes_a_checkpoint_and_while_it_renames_it(whole, killed, workers):
    two = ["--data.num_workers", workers]
    for number, fatal in enumerate(killed):
        assert run("parts", *(two if number % 2 else []), fatal=fatal) == -signal.SIGKILL
    assert run("parts", *two) == 0
    same(whole, "parts")


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_killed_at_ten_random_moments(workers):
    flags = ["--data.num_workers", workers, "--trainer.max_steps", "60"]
    assert run("whole", *flags) == 0
    draw = random.Random(int(workers))
    for kill in range(10):  # half of them in a write or between two renames, half at any moment
        seconds = draw.uniform(0, 0.5) if kill % 2 else 0
        fatal = (draw.choice(["fsync", "replace"]), draw.randint(1, 6), seconds)
        assert run("parts", *flags, fatal=fatal) == -signal.SIGKILL
    assert run("parts", *flags) == 0
    same("whole", "parts")


@pytest.mark.parametrize(
    ("name", "moment", "workers"),
    [
        ("SIGTERM", "validation 4", "0"),
        ("SIGINT", "step 3", "0"),
        pytest.param("SIGINT", "step 3", "2", marks=pytest.mark.slow),
        pytest.param("SIGTERM", "step 3", "2", marks=pytest.mark.slow),
        pytest.param("SIGINT", "validation 4", "2", marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_all_processes_saves_and_the_same_command_resumes(whole, name, moment, workers):
    flags = ["--data.num_workers", workers, "--trainer.callbacks+", "tests.training.test_resume.Signal"]
    assert run("parts", *flags, SIGNAL_AT=f"{name} {moment}") == 128 + getattr(signal, name)
    step = int(moment.split()[1])
    assert read_checkpoint(Path("parts/checkpoints/last.ckpt"))["global_step"] == (4 if step == 3 else step)
    assert run("parts") == 0
    same(whole, "parts")


class CtrlC(Callback):
    """Ctrl-C in the fourth step, as often as the environment says."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == 3:
            for _ in range(int(os.environ["TIMES"])):
                signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("times", "step", "words"),
    [("1", 4, "stopped at step 4, which is saved"), ("2", 2, "stopped in the middle of a step")],
)
def test_one_ctrl_c_finishes_the_step_and_a_second_one_ends_the_run_at_once(times, step, words):
    command = [*COMMAND, "run", "--trainer.callbacks+", "tests.training.test_resume.CtrlC"]
    done = processes.run("train.py", command, {"TIMES": times})
    assert done.returncode == 130
    assert words in done.stdout + done.stderr
    assert read_checkpoint(Path("run/checkpoints/last.ckpt"))["global_step"] == step


@pytest.fixture
def file_limit():
    """A function that sets the largest size of a file; None, and the test's end, take the limit away."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, before if size is None else (size, before[1]))

    yield limit
    limit(None)


def test_a_write_that_fails_leaves_the_logged_rows(tmp_path, file_limit):
    logger = Metrics(tmp_path, name="logs")
    path = tmp_path / "logs" / "version_0" / "metrics.csv"
    for step in range(50):
        logger.log_metrics({"loss": 1.0}, step)
    logger.save()
    before = path.read_bytes()
    logger.log_metrics({"score": 2.0}, 50)  # a new column: every row is written again
    file_limit(len(before) + 10)  # it can be copied, but not have the column
    with pytest.raises(OSError, match="too large"):
        logger.save()
    file_limit(None)
    assert path.read_bytes() == before
    assert len(list(path.parent.iterdir())) == 1
    logger.save()
    rows = metrics(tmp_path, 0)
    assert len(rows) == 51
    assert rows[0]["loss"] == "1.0"
    assert rows[-1] == {"score": "2.0", "step": "50"}


@pytest.fixture
def fit(capsys, caplog):
    """Trains with some flags in the folder run; its exit code, and what it said."""

    def trained(*flags):
        caplog.clear()
        code = train.main([*COMMAND, "run", *flags])
        return code, capsys.readouterr().err + caplog.text

    return trained


def age(exported):
    """Give an export other weights, and an older date than that of the run's checkpoint."""
    [file] = (exported / "predictor").glob("*.safetensors")
    save_file({key: torch.zeros_like(value) for key, value in load_file(file).items()}, file)
    os.utime(exported, (0, 0))


def test_what_is_finished_full_and_damaged(fit, file_limit):
    assert fit("--trainer.max_steps", "4")[0] == 0
    before = weights("run")

    # Finished: it says so, does nothing, and makes up for an export that was lost, or is older than the last steps.
    last, exported = Path("run/checkpoints/last.ckpt"), Path("run/checkpoint")
    written = last.stat().st_mtime_ns
    for spoil in (lambda: None, lambda: shutil.rmtree(exported), lambda: age(exported)):
        spoil()
        code, said = fit("--trainer.max_steps", "4")
        assert code == 0
        assert "is finished, at step 4" in said
        assert "--auto_resume false" in said
        assert all(torch.equal(before[key], value) for key, value in weights("run").items())
        assert last.stat().st_mtime_ns == written

    # A full disk: the limit on a file's size stands for it.
    previous = Path("run/checkpoints/previous.ckpt")
    whole = last.read_bytes()
    file_limit(len(whole) // 2)
    code, said = fit()
    file_limit(None)
    assert code == 2
    assert "could not be written" in said
    assert "File too large" in said
    assert last.read_bytes() == whole
    assert not list(last.parent.glob(".*"))

    # Truncated, or with a flipped bit: the one before takes its place, and the end is the same.
    last.write_bytes(whole[: len(whole) // 2])
    code, said = fit("--trainer.max_steps", "4")
    assert code == 0
    assert f"{last} is damaged" in said
    assert f"resumed from {previous}, step 2" in said
    assert all(torch.equal(before[key], value) for key, value in weights("run").items())
    assert Path(f"{last}.damaged").is_file()
    middle = len(whole) // 2
    last.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    previous.unlink()
    code, said = fit("--trainer.max_steps", "4")
    assert code == 2
    assert "there is no other to resume from" in said


def test_a_checkpoint_that_would_run_code_does_not(fit):
    last = Path("run/checkpoints/last.ckpt")
    last.parent.mkdir(parents=True)
    for protocol in (torch.save, lambda thing, path: Path(path).write_bytes(pickle.dumps(thing))):
        protocol({"state_dict": Hostile("executed")}, last)
        for flags in ([], ["--ckpt_path", str(last)]):
            code, said = fit(*flags)
            assert code == 2
            assert "holds more than tensors and plain values" in said
    assert not Path("executed").exists()


@pytest.mark.slow
def test_weights_and_biases_without_a_key_is_offline_does_not_ask_and_resumes_its_run(run_folder):
    logger = "logger: {class_path: lightning.pytorch.loggers.WandbLogger, init_args: {project: test}}"
    Path("run.yaml").write_text(Path("run.yaml").read_text().replace("logger: false", logger))
    home = {"HOME": str(run_folder), "NETRC": str(run_folder / "netrc")}
    stop = ["--trainer.callbacks+", "tests.training.test_resume.Signal"]
    assert run("run", *stop, **home, SIGNAL_AT="SIGTERM step 3") == 128 + signal.SIGTERM
    done = processes.run("train.py", [*COMMAND, "run"], home)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "logged offline" in done.stderr
    assert "wandb sync" in done.stderr
    shown = done.stdout + done.stderr
    assert "denoiser: Denoiser, " in shown
    assert "wrote run/checkpoint" in shown
    for noise in ("Tip", "LightningCLI", "deprecated", "Total Flops", "weights_only", "leet", "TPU", "run.yaml"):
        assert noise not in shown, noise
    first, second = sorted(Path("run/wandb").glob("offline-run-*"), key=lambda path: path.stat().st_mtime)
    assert first.name.rsplit("-", 1)[1] == second.name.rsplit("-", 1)[1]


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
    fate = ["--trainer.callbacks+", "tests.training.test_resume.Fate"]
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
    stop = ["--trainer.callbacks+", "tests.training.test_resume.Fate"]
    # Told to stop in the first of a step's two batches, it stops after the second.
    assert run("two", *flags, *stop, RANK_MEETS="0 SIGTERM 2") == 128 + signal.SIGTERM
    assert read_checkpoint(Path("two/checkpoints/last.ckpt"))["global_step"] == 3
    assert run("two", *flags) == 0
    assert distance("one", "two") < 1e-5


def test_a_run_says_how_large_its_steps_are(caplog):
    flags = ["--trainer.max_steps", "2", "--trainer.accumulate_grad_batches", "3"]
    flags += ["--trainer.val_check_interval", "3"]
    assert train.main([*COMMAND, "run", *flags]) == 0
    assert "2 steps of 1 x 2 x 3 crops" in caplog.text
    assert "32-true, seed 3" in caplog.text
