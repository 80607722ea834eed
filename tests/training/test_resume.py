"""Runs that are stopped, killed or damaged, and resumed by the same command: real signals, real files."""

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
from deblur.hub import CheckpointError
from deblur.training.resume import AtomicCheckpointIO, newest, read_checkpoint
from tests import processes
from tests.conftest import Hostile, folder_to_train_in
from tests.tiny import RUN, metrics, weights

pytestmark = [pytest.mark.commands, pytest.mark.xdist_group("processes"), pytest.mark.filterwarnings("ignore")]
COMMAND = ["fit", "--config", "run.yaml", "--trainer.default_root_dir"]
LAST = Path("run/checkpoints/last.ckpt")


class Fate(Callback):
    """What a process meets, by the environment: MEETS="rank event moment step, ...". An event is nan, in the batch, or
    a signal to the process and its workers; a moment is step, or validation: of its first image."""

    def meet(self, trainer, now, batch):
        for meets in filter(None, os.environ.get("MEETS", "").split(", ")):
            rank, event, moment, step = meets.split()
            if (trainer.global_rank, now, trainer.global_step) != (int(rank), moment, int(step)):
                continue
            if event == "nan":
                batch["sharp"].fill_(float("nan"))
            else:
                os.killpg(0, getattr(signal, event))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.meet(trainer, "step", batch)

    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        self.meet(trainer, "validation" if batch_idx == 0 else "", batch)

    def on_train_end(self, trainer, pl_module):
        """By now the averages stand in the place of the weights."""
        torch.save(pl_module.denoiser.state_dict(), f"averages_{trainer.global_rank}.pt")


FATE = ["--trainer.callbacks+", "tests.training.test_resume.Fate"]


def every_two_steps():
    """Validation, of two images, and a checkpoint after two steps."""
    often = RUN.replace("val_check_interval: 3", "val_check_interval: 2\n  limit_val_batches: 2")
    Path("run.yaml").write_text(often)


@pytest.fixture(autouse=True)
def config(run_folder):
    every_two_steps()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing interrupts."""
    with folder_to_train_in(tmp_path_factory, "whole") as folder:
        every_two_steps()
        assert run("run") == 0
    return folder / "run"


def run(*arguments, fatal=None, **environment):
    """Exit code of the command in a process; negative: the signal that ended it."""
    return processes.run("train.py", [*COMMAND, *arguments], environment, fatal).returncode


def step_of(path):
    return read_checkpoint(Path(path))["global_step"]


def logged(root):
    """Step -> what was logged, without the machine's speed; a step that was done twice must say the same twice."""
    found = {}
    for path in Path(root).glob("logs/version_*/metrics.csv"):
        for row in metrics(root, int(path.parent.name.removeprefix("version_"))):
            speed = r"train/(device/.*|time|batches.*|samples.*)"
            values = {name: value for name, value in row.items() if not re.match(speed, name)}
            known = found.setdefault(int(row["step"]), values)
            assert all(known.get(name, value) == value for name, value in values.items())
            known |= values
    return found


def same(one, other, rows=True):
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
    if rows:
        assert logged(one) == logged(other)


@pytest.mark.parametrize(
    ("meets", "workers"),
    [
        ("0 SIGTERM validation 4, 0 SIGTERM validation 4", "0"),  # as a cluster may send it to the script, too
        ("0 SIGINT step 3", "0"),
        pytest.param("0 SIGTERM step 3", "2", marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_all_processes_saves_and_the_same_command_resumes(whole, meets, workers):
    flags = ["--data.num_workers", workers, *FATE]
    assert run("parts", *flags, MEETS=meets) == 128 + getattr(signal, meets.split()[1])
    assert step_of("parts/checkpoints/last.ckpt") == 4
    assert run("parts") == 0
    same(whole, "parts")


@pytest.mark.parametrize(
    ("times", "step", "words"),
    [(1, 4, "stopped at step 4, which is saved"), (2, 2, "stopped in the middle of a step")],
)
def test_one_ctrl_c_finishes_the_step_and_a_second_one_ends_the_run_at_once(times, step, words):
    done = processes.run("train.py", [*COMMAND, "run", *FATE], {"MEETS": ", ".join(["0 SIGINT step 3"] * times)})
    assert done.returncode == 130
    assert words in done.stdout + done.stderr
    assert step_of(LAST) == step


# While an archive has no name yet, and between two renames.
@pytest.mark.parametrize("fatal", [("fsync", 6, 0), ("replace", 3, 0)], ids=["unnamed", "at a rename"])
def test_a_run_that_is_killed_while_it_writes_a_checkpoint_resumes(whole, fatal):
    assert run("parts", fatal=fatal) == -signal.SIGKILL
    assert run("parts") == 0
    same(whole, "parts", rows=False)  # the last step's may be lost


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
    same("whole", "parts", rows=False)


def test_a_run_without_validation_has_its_checkpoints():
    assert run("run", "--data.val", "null") == 0
    assert (step_of(LAST.with_name("previous.ckpt")), step_of(LAST)) == (4, 6)


def test_a_saved_checkpoint_and_its_name_are_on_the_disk(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda opened: synced.append(os.fstat(opened).st_ino) or fsync(opened))
    AtomicCheckpointIO().save_checkpoint({"step": 1}, tmp_path / "last.ckpt")
    assert synced == [(tmp_path / "last.ckpt").stat().st_ino, tmp_path.stat().st_ino]


def save(step):
    """The last checkpoint, then another one, which must not become the previous one."""
    for name, number in (("last.ckpt", step), ("best-psnr.ckpt", -step)):
        AtomicCheckpointIO().save_checkpoint({"step": torch.tensor(number)}, LAST.with_name(name))


def truncate(name):
    file = LAST.with_name(name)
    os.truncate(file, file.stat().st_size // 2)


def resumed_from():
    path, checkpoint = newest(Path("run"))
    return path.name, checkpoint["step"].item()


def test_a_damaged_checkpoint_never_takes_the_place_of_the_previous_one():
    save(1), save(2)
    assert resumed_from() == ("last.ckpt", 2)
    truncate("last.ckpt")
    for _ in range(2):  # the run that resumed was killed before its first checkpoint
        assert resumed_from() == ("previous.ckpt", 1)
    save(3)
    assert resumed_from() == ("last.ckpt", 3)
    truncate("last.ckpt")
    assert resumed_from() == ("previous.ckpt", 1)
    truncate("previous.ckpt")
    with pytest.raises(CheckpointError, match="no other to resume from"):
        newest(Path("run"))


def test_a_run_that_ended_between_two_renames_twice_keeps_its_newest_whole_checkpoint():
    save(1), save(2)
    os.replace(LAST, LAST.with_name("previous.ckpt"))
    assert resumed_from() == ("previous.ckpt", 2)
    for number in (3, 4):
        save(number)
        os.replace(LAST, LAST.with_name("lost.ckpt"))
        assert resumed_from() == ("previous.ckpt", 2)


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


@pytest.mark.parametrize("spoil", [lambda exported: None, shutil.rmtree, age], ids=["whole", "lost", "old"])
def test_a_finished_run_says_so_and_makes_up_for_its_export(whole, fit, spoil):
    shutil.copytree(whole, "run")
    spoil(Path("run/checkpoint"))
    code, said = fit()
    assert code == 0
    assert "is finished, at step 6" in said
    assert "--auto_resume false" in said
    assert all(torch.equal(value, weights("run")[key]) for key, value in weights(whole).items())
    assert LAST.read_bytes() == (whole / "checkpoints" / "last.ckpt").read_bytes()


def test_a_full_disk_leaves_the_checkpoints(whole, fit):
    shutil.copytree(whole, "run")
    before = {path.name: path.read_bytes() for path in LAST.parent.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)  # the limit on a file's size stands for the disk's
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before[LAST.name]) // 2, limits[1]))
    try:
        code, said = fit("--trainer.max_steps", "8", "--data.val", "null")  # which would be saved as the best first
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2
    assert re.search(r"last\.ckpt could not be written .*File too large.*: make room", said)
    assert {path.name: path.read_bytes() for path in LAST.parent.iterdir()} == before


def test_after_a_damaged_checkpoint_the_run_ends_as_it_would_have(whole, fit):
    shutil.copytree(whole, "run")
    content = bytearray(LAST.read_bytes())
    content[len(content) // 2] ^= 1
    LAST.write_bytes(content)
    code, said = fit()
    assert code == 0
    assert f"{LAST} is damaged" in said
    assert "resumed from run/checkpoints/previous.ckpt, step 4" in said
    assert Path(f"{LAST}.damaged").is_file()
    same(whole, "run")


def test_a_checkpoint_that_may_not_be_read_is_neither_damaged_nor_renamed(run_folder):
    LAST.parent.mkdir(parents=True)
    torch.save({}, LAST)
    LAST.chmod(0)
    for folder in (run_folder, *run_folder.parents[:3]):
        folder.chmod(0o755)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may read everything
    try:
        with pytest.raises(PermissionError):
            newest(Path("run"))
    finally:
        os.seteuid(user)
    assert os.listdir(LAST.parent) == [LAST.name]


def test_a_checkpoint_that_would_run_code_does_not(fit):
    LAST.parent.mkdir(parents=True)
    for protocol in (torch.save, lambda thing, path: Path(path).write_bytes(pickle.dumps(thing))):
        protocol({"state_dict": Hostile("executed")}, LAST)
        for flags in ([], ["--ckpt_path", str(LAST)]):
            code, said = fit(*flags)
            assert code == 2
            assert "holds more than tensors and plain values" in said
    assert not Path("executed").exists()


@pytest.mark.slow
def test_weights_and_biases_without_a_key_is_offline_does_not_ask_and_resumes_its_run(run_folder):
    logger = "logger: {class_path: lightning.pytorch.loggers.WandbLogger, init_args: {project: test}}"
    Path("run.yaml").write_text(Path("run.yaml").read_text().replace("logger: false", logger))
    home = {"HOME": str(run_folder), "NETRC": str(run_folder / "netrc")}
    assert run("run", *FATE, **home, MEETS="0 SIGTERM step 3") == 128 + signal.SIGTERM
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
