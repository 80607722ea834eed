"""The command line of evaluate.py: bad input, its help, several processes, and stopping."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from deblur.data.files import images
from deblur.hub import CheckpointError
from evaluate import Evaluation
from tests import processes
from tests.conftest import ROOT
from tests.test_evaluate import arguments, each, flags, place, rows, run, score  # noqa: F401 (a fixture)

pytestmark = pytest.mark.commands


def start_without_torch(words: list[str], folder: Path) -> subprocess.CompletedProcess:
    """In a process that ends where it imports torch."""
    (folder / "torch.py").write_text("raise SystemExit('torch was imported')")
    command = [sys.executable, ROOT / "evaluate.py", *words]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        ("text named png", ValueError, "a.png"),
        ("different size", ValueError, "31x32"),
        ("output is a file", OSError, "out"),
        ("checkpoint without presets", ValueError, "give --grid"),
        ("damaged checkpoint", CheckpointError, "damaged"),
        ("device", ValueError, "device cuda:99 cannot be used here"),
        ("provider", ValueError, "no ONNX folder, which the provider cuda"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_results(place, tmp_path, what, kind, said):  # noqa: F811
    data = tmp_path / "data"
    given = arguments(place, tmp_path / "out", data=data)
    for side in ("blur", "sharp"):
        images.write(data / side / "a.png", torch.rand(3, 32, 32))
    if what == "text named png":
        (data / "blur" / "a.png").write_text("not an image")
    elif what == "different size":
        images.write(data / "blur" / "a.png", torch.rand(3, 32, 31))
    elif what == "output is a file":
        (tmp_path / "out").write_text("in the way")
    elif what == "checkpoint without presets":
        del given["grid"]
    elif what in ("device", "provider"):
        given[what] = {"device": "cuda:99", "provider": "cuda"}[what]
    else:
        (tmp_path / "damaged").mkdir()
        given["checkpoint"] = str(tmp_path / "damaged")
    with pytest.raises(kind) as caught:
        score(given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("results*"))


def test_slurm_tasks_that_are_not_by_node_are_one_sentence(place, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("SLURM_NTASKS", "2")
    with pytest.raises(ValueError, match="--ntasks-per-node=2") as caught:
        score(arguments(place, tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"metric": "psnr"}, "--metric"),
        ({"metrics": "psnr,zoo,lpps"}, "unknown metric lpps: did you mean lpips?"),
        ({"data": "nowhere"}, "--data nowhere does not exist"),
        ({"grid": "nowhere.yaml"}, "nowhere.yaml cannot be read"),
        ({"checkpoint": "./nowhere"}, "checkpoint ./nowhere is neither a folder, a .ckpt file, a hub id"),
        ({"checkpoint": "run/last.ckpt"}, "checkpoint run/last.ckpt does not exist"),
        ({"outputs": "nowhere"}, "--outputs nowhere does not exist"),
        ({"device": "gpu"}, "--device is one of auto, cpu, cuda, mps, not gpu"),
        ({"limit": 0}, "--limit must be 1 or more"),
        (
            {"checkpoint": None, "grid": None, "outputs": ".", "save_presets": True},
            "--save_presets and --panel need settings of a checkpoint: give --checkpoint, too",
        ),
        ({"checkpoint": None, "grid": None, "outputs": ".", "panel": "a.png"}, "and --panel need settings of a"),
        ({"panel": "panel"}, "--panel must name a .png file"),
        ({"panel": "/dev/null/panel.png"}, "give another --panel"),
        ({"output": "/dev/null/out"}, "cannot write into the folder /dev/null/out:"),
    ],
)
def test_wrong_names_and_paths_come_before_torch(place, tmp_path, changed, said):  # noqa: F811
    wrong = start_without_torch(flags(arguments(place, tmp_path / "out") | changed), tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert said in wrong.stderr
    assert not (tmp_path / "out").exists()
    assert wrong.stderr.startswith("evaluate.py: error: ")
    assert wrong.stderr.count("\n") == 1


@pytest.mark.parametrize("flag", [{"checkpoint": "c"}, {"outputs": "o"}, {"save_presets": True}, {"panel": "p.png"}])
def test_what_belongs_to_one_checkpoint_is_refused_of_two(flag):
    with pytest.raises(ValueError, match="--checkpoints takes no --checkpoint, --outputs, --save_presets or --panel"):
        Evaluation("data", "out", checkpoints=("a", "b"), grid="grid.yaml", **flag)


def test_help_comes_before_torch_and_explains_the_flags(tmp_path):
    asked = start_without_torch(["--help"], tmp_path)
    said = " ".join(asked.stdout.split())
    assert asked.returncode == 0
    assert "--metrics" in said
    assert "default: test)" in said.partition("--split SPLIT which split of the dataset")[2][:30]


def test_every_flag_has_a_test():
    """What each changes is seen in tests/test_e*.py, and the language of texts in tests/evaluation/test_text.py."""
    tests = ROOT / "tests"
    text = "".join(file.read_text() for file in (*tests.glob("test_e*.py"), tests / "evaluation" / "test_text.py"))
    for field in fields(Evaluation):
        assert re.search(rf"--{field.name}\b|\b{field.name}=|\"{field.name}\":", text), field.name


def assert_same_scores(one: Path, two: Path) -> None:
    for a, b in zip(each(one), each(two), strict=True):
        scores = {name: pytest.approx(value, abs=1e-5) for name, value in b.items() if isinstance(value, float)}
        assert a == b | scores | {"seconds": a["seconds"]}


def srun(arguments: list[str]) -> list[subprocess.CompletedProcess]:
    """What two tasks end with that get the variables of srun on one node; srun itself is not needed."""
    job = {"JOB_NAME": "evaluate", "JOB_ID": os.getpid(), "NTASKS": 2, "NTASKS_PER_NODE": 2, "NNODES": 1, "NODEID": 0}
    job["NODELIST"] = "localhost"
    tasks = []
    for rank in range(2):
        variables = {f"SLURM_{name}": str(value) for name, value in (job | {"PROCID": rank, "LOCALID": rank}).items()}
        tasks.append(processes.Command("evaluate.py", arguments, variables))
    return [task.wait() for task in tasks]


@pytest.mark.parametrize("by", ["torchrun", pytest.param("srun", marks=pytest.mark.slow)])
def test_two_processes_share_the_images(place, tmp_path, by):  # noqa: F811
    (tmp_path / "grid.yaml").write_text("product: {steps: [1, 3]}")
    few = {"grid": tmp_path / "grid.yaml", "controls": False}
    given = {name: arguments(place, tmp_path / name, **few) for name in ("one", "two")}
    score(given["one"])
    command = flags(given["two"])
    done = processes.torchrun("evaluate.py", command) if by == "torchrun" else srun(command)
    assert [process.returncode for process in done] == [0, 0], done
    assert ["wrote " in process.stdout for process in done] == [True, False]
    assert_same_scores(tmp_path / "one", tmp_path / "two")
    journals = list((tmp_path / "two" / "journal").glob("scores_*.jsonl"))
    scores = sum(file.read_bytes().count(b"\n") for file in journals)
    assert (len(journals), scores) == (2, len(each(tmp_path / "two"))), "nothing was done twice"


# Stopping, and one process per folder


def test_scores_are_written_before_the_example_images(place, tmp_path):  # noqa: F811
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "examples").write_text("in the way")
    with pytest.raises(OSError, match="examples"):
        score(arguments(place, tmp_path / "out", limit=1))
    assert [line["setting"] for line in rows(tmp_path / "out")][:2] == ["blurry", "predictor"]


def test_ctrl_c_is_one_sentence_and_the_same_command_goes_on(place, tmp_path):  # noqa: F811
    (tmp_path / "grid.yaml").write_text("product: {schedule: log_snr, steps: [20000, 2]}")
    given = arguments(place, tmp_path / "out", grid=tmp_path / "grid.yaml", limit=1, controls=False)
    process = processes.Command("evaluate.py", flags(given))
    journal = tmp_path / "out" / "journal" / "scores_0.jsonl"
    # All rows but the two settings.
    processes.until(lambda: journal.is_file() and journal.read_bytes().count(b"\n") == 3, process)
    second = run(given)
    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert second.stderr.startswith(f"evaluate.py: error: another run (pid {process.pid}) uses {tmp_path / 'out'}")
    process.send_signal(signal.SIGINT)
    first = process.wait()
    assert first.returncode == 130
    assert "Traceback" not in first.stderr
    assert first.stderr.splitlines()[-1] == "evaluate.py: stopped, 3 of 5 done; run again to resume"
    (tmp_path / "grid.yaml").write_text("product: {steps: [3, 2]}")
    score(given)
    assert [line["setting"] for line in rows(tmp_path / "out")][-2:] == ["ddim 3", "ddim 2"]
