"""An evaluation that is killed at random moments and started again ends like one that was not."""

import csv
import os
import random
import signal
import time
from pathlib import Path

import pytest

from evaluation.journal import Journal
from evaluation.results import write_results
from evaluation.rows import CONTROLS
from models.settings import SamplingSettings
from tests.evaluation.toy import METRICS, Processes, Toy, summary
from tests.processes import CONTEXT

SIZES = [(16, 12), (24, 20), (16, 12), (16, 12), (24, 20), (16, 12)]
SETTINGS = [SamplingSettings(steps=steps, num_samples=samples) for steps in (2, 5, 7) for samples in (1, 2)]


def work(folder: Path, pause: float, share=(0, 1), barrier=lambda: None) -> None:
    """A whole evaluation, which takes 36 pauses: target of the processes below."""

    class Slow(Toy):
        def samples(self, prediction, setting, names):
            time.sleep(pause)
            return super().samples(prediction, setting, names)

    plan = Slow(SIZES).plan(folder / "journal", SETTINGS, processes=Processes(*share, barrier))
    write_results(folder, summary(plan))


def start(*arguments):
    """A process forked from a server that has imported all this and done nothing yet."""
    process = CONTEXT.Process(target=work, args=arguments)
    process.start()
    return process


def without_seconds(folder: Path) -> list[list[str]]:
    lines = list(csv.reader((folder / "results.csv").open()))
    assert lines[0][-1] == "seconds"
    return [line[:-1] for line in lines]


def test_killed_at_random_moments_it_goes_on_and_ends_the_same(tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    work(tmp_path / "whole", 0)
    moments, kills, lines = random.Random(0), 0, [0]
    while True:
        process = start(tmp_path / "killed", 0.02)
        if kills < 8:
            process.join(moments.uniform(0.1, 0.4))
        else:
            process.join(300)
        if process.exitcode is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.join(300)
        kills += 1
        file = tmp_path / "killed" / "journal" / "scores_0.jsonl"
        lines.append(file.read_bytes().count(b"\n") if file.is_file() else 0)
    assert process.exitcode == 0 and kills >= 2
    assert lines == sorted(lines) and 0 < lines[-1] <= 6 * (3 + len(CONTROLS) + len(SETTINGS))
    assert without_seconds(tmp_path / "killed") == without_seconds(tmp_path / "whole")
    scores = (tmp_path / "killed" / "journal" / "scores_0.jsonl").read_bytes().count(b"\n")
    assert scores == 6 * (3 + len(CONTROLS) + len(SETTINGS)), "nothing was done twice"


@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_at_once_end_the_same(tmp_path, count):
    (tmp_path / "whole").mkdir()
    (tmp_path / "shared").mkdir()
    work(tmp_path / "whole", 0)
    Journal(tmp_path / "shared" / "journal", {"recipe": {name: m.recipe for name, m in METRICS.items()}})
    barrier = CONTEXT.Barrier(count)
    processes = [start(tmp_path / "shared", 0.005, (rank, count), barrier.wait) for rank in range(count)]
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    assert without_seconds(tmp_path / "shared") == without_seconds(tmp_path / "whole")
    files = list((tmp_path / "shared" / "journal").glob("scores_*.jsonl"))
    assert len(files) == count
    lines = sum(file.read_bytes().count(b"\n") for file in files)
    assert lines == 6 * (3 + len(CONTROLS) + len(SETTINGS)), "nothing was done twice"
