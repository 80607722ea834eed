"""Whole runs of evaluate.py that are killed, or spread over processes: minutes, so marked slow."""

import csv
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.processes import CONTEXT
from tests.test_evaluate import ROOT, arguments, flags, place, score  # noqa: F401 (a fixture)

pytestmark = pytest.mark.slow
GRID = "product: {sampler: [ddim, ddpm], steps: [2, 5, 9, 40], blend: [0.5, 1.0]}\n"


def start(given: dict):
    """An evaluation in a process forked from a server that has its imports done."""
    process = CONTEXT.Process(target=score, args=(given,))
    process.start()
    return process


def table(output: Path) -> list[list[str]]:
    lines = list(csv.reader((output / "results.csv").open()))
    assert lines[0][-1] == "seconds"
    return [line[:-1] for line in lines]


def test_twenty_kills_leave_the_results_as_they_would_have_been(place, tmp_path):  # noqa: F811
    (tmp_path / "grid.yaml").write_text(GRID)
    given = {"grid": tmp_path / "grid.yaml", "batch_size": 3}
    score(arguments(place, tmp_path / "whole", **given))
    given = arguments(place, tmp_path / "killed", **given)
    moments, kills = random.Random(0), 0
    while kills < 20:
        process = start(given)
        process.join(moments.uniform(0.5, 4.0))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        else:
            assert process.exitcode == 0  # done: the rest of the moments fall on runs that only write the files again
        process.join(300)
    process = start(given)
    process.join(300)
    assert process.exitcode == 0
    assert table(tmp_path / "killed") == table(tmp_path / "whole")


def assert_same_scores(one: Path, two: Path, tolerance: float) -> None:
    tables = [pq.read_table(path / "per_image.parquet").drop(["seconds"]).to_pylist() for path in (one, two)]
    for a, b in zip(*tables, strict=True):
        assert a == {k: pytest.approx(v, abs=tolerance) if isinstance(v, float) else v for k, v in b.items()}


def test_one_two_and_three_processes_agree(place, tmp_path):  # noqa: F811
    (tmp_path / "grid.yaml").write_text(GRID)
    for count in (1, 2, 3):
        given = arguments(place, tmp_path / str(count), grid=tmp_path / "grid.yaml")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
        done = subprocess.run(
            [*launcher, ROOT / "evaluate.py", *flags(given)], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("wrote ") == 1
        assert len(list((tmp_path / str(count) / "journal").glob("scores_*.jsonl"))) == count
        assert_same_scores(tmp_path / "1", tmp_path / str(count), 1e-6)


def test_the_variables_of_slurm_make_processes_share_the_images(place, tmp_path):  # noqa: F811
    """What srun sets for two tasks on one node; srun itself is not needed."""
    (tmp_path / "grid.yaml").write_text(GRID)
    score(arguments(place, tmp_path / "alone", grid=tmp_path / "grid.yaml"))
    given = arguments(place, tmp_path / "shared", grid=tmp_path / "grid.yaml")
    job = {"JOB_NAME": "evaluate", "JOB_ID": os.getpid(), "NTASKS": 2, "NTASKS_PER_NODE": 2, "NNODES": 1, "NODEID": 0}
    job["NODELIST"] = "localhost"
    tasks = []
    for rank in range(2):
        variables = {f"SLURM_{name}": str(value) for name, value in (job | {"PROCID": rank, "LOCALID": rank}).items()}
        command = [sys.executable, ROOT / "evaluate.py", *flags(given)]
        tasks.append(subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True))
    outputs = [task.communicate(timeout=500)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0]
    assert ["wrote " in output for output in outputs] == [True, False]
    assert len(list((tmp_path / "shared" / "journal").glob("scores_*.jsonl"))) == 2
    assert_same_scores(tmp_path / "alone", tmp_path / "shared", 1e-6)


def test_the_size_of_batches_changes_no_score(place, tmp_path):  # noqa: F811
    (tmp_path / "grid.yaml").write_text(GRID)
    given = {"grid": tmp_path / "grid.yaml", "precision": "fp32"}
    for size in (1, 8):
        score(arguments(place, tmp_path / str(size), **given, batch_size=size))
    assert_same_scores(tmp_path / "1", tmp_path / "8", 1e-3)
