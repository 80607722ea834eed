"""An evaluation that is killed at random moments and started again ends like one that was not."""

import csv
import os
import random
import signal
import time
from pathlib import Path

from evaluation.results import write_results
from evaluation.rows import CONTROLS
from models.settings import SamplingSettings
from tests.evaluation.toy import Toy
from tests.processes import CONTEXT

SIZES = [(16, 12), (24, 20), (16, 12), (16, 12), (24, 20), (16, 12)]
SETTINGS = [SamplingSettings(steps=steps, num_samples=samples) for steps in (2, 5, 7) for samples in (1, 2)]


def work(folder: Path, pause: float) -> None:
    """A whole evaluation, which takes 36 pauses: target of the process below."""

    class Slow(Toy):
        def samples(self, prediction, setting, names):
            time.sleep(pause)
            return super().samples(prediction, setting, names)

    write_results(folder, Slow(SIZES).summary(folder / "journal", SETTINGS))


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
        process = CONTEXT.Process(target=work, args=(tmp_path / "killed", 0.02))
        process.start()
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
