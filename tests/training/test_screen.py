"""The progress bar."""

import re

import pytest

from base import progress
from tests.tiny import train_run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seconds", [0, 1000])
def test_without_a_terminal_a_run_prints_a_line_now_and_then(run_folder, monkeypatch, capsys, seconds):
    monkeypatch.setattr(progress, "SECONDS", seconds)
    flags = ["--trainer.val_check_interval", "2", "--trainer.log_every_n_steps", "1", "--trainer.enable_progress_bar"]
    for steps, counted in ((2, [1, 2]), (4, [3, 4])):  # the second run resumes the first
        capsys.readouterr()
        train_run("run", "--trainer.max_steps", str(steps), *flags, "true")
        said = capsys.readouterr().err
        lines = re.findall(rf"^training: .* (\d)/{steps} .*loss", said, re.M)
        assert sorted({int(line) for line in lines}) == counted * (not seconds)  # closing repeats the last
        assert "\r" not in said and "v_num" not in said
