"""What the scripts say of flags and values that are wrong, in one sentence, before any library is loaded."""

import contextlib
import io
import os
import subprocess
import sys

import pytest

import evaluate
from deblur.cli import UsageError, call, make_parser, run_command

REST = ["--data", ".", "--output", "out"]


def shown(
    images: list[str], compare: bool = False, steps: int = 3, both: tuple[str, str] | None = None, start: float = 0.0
):
    """Show images.

    Args:
        images: to show.
        compare: side by side.
        steps: how many
            of them.
        both: two names.
        start: where.
    """
    return images, compare, steps, both, start


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["a.png", "--compare", "b.png"], (["a.png", "b.png"], True, 3, None, 0)),
        (["--compare", "no", "a.png"], (["a.png"], False, 3, None, 0)),
        (["a.png", "--compare"], (["a.png"], True, 3, None, 0)),
        (["a.png", "--compare", "0"], (["a.png"], False, 3, None, 0)),
        (["--compare", "1", "a.png"], (["a.png"], True, 3, None, 0)),
        (["--both", "A", "B", "a.png", "--steps=2", "--start", "-3"], (["a.png"], False, 2, ("A", "B"), -3)),
        (["--steps", "2", "--", "-a.png", "--compare"], (["-a.png", "--compare"], False, 2, None, 0)),
    ],
)
def test_a_command_line_is_taken_apart(args, found):
    assert call(shown, args, "show.py", "Shows.", nargs="+") == found


def test_a_file_with_a_dash_at_its_head_is_taken_for_a_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-a.png").touch()
    with pytest.raises(UsageError, match=r"-a\.png is taken for a flag: write \./-a\.png"):
        call(shown, ["-a.png"], "show.py", "Shows.", nargs="+")


def test_help_has_descriptions_types_and_defaults(capsys):
    with pytest.raises(SystemExit):
        call(shown, ["--help"], "show.py", "Shows:\n\n    python show.py a.png", nargs="+")
    text, usage = capsys.readouterr().out, "usage: python show.py IMAGES ... [--FLAG VALUE ...]"
    assert text.startswith(f"{usage}\n\nShows:\n\n    python show.py a.png\n")
    text = " ".join(text.split())
    assert "images to show." in text
    assert "--steps STEPS how many of them. (type: int, default: 3)" in text


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([*REST, "--metric", "psnr"], "--metric is unknown: did you mean --metrics?"),
        ([*REST, "--precision", "fp16"], "--precision is one of auto, fp32, bf16, not fp16: did you mean bf16?"),
        ([*REST, "--limit", "x"], "--limit is a whole number, not x"),
        ([*REST, "--overwrite", "off", "more"], "more belongs to no flag (--help lists the flags)"),
        ([*REST, "--checkpoints", "A"], "--checkpoints needs two values: --checkpoints A B"),
        ([*REST, "--device", "gpu"], "--device is one of auto, cpu, cuda, mps, not gpu: did you mean cpu?"),
        (REST[:2], "--output is missing: python evaluate.py --data PATH --output PATH [--FLAG VALUE ...]"),
        (
            [*REST, "--checkpoints", "A", "B", "--grid", "g", "--save_presets"],  # a bare flag is true
            "--checkpoints takes no --checkpoint, --outputs, --save_presets or --panel",
        ),
    ],
)
def test_a_wrong_command_line_of_evaluate_py(args, sentence):
    with pytest.raises(ValueError) as error:
        evaluate.command(args)
    assert str(error.value) == sentence


def test_values_are_those_that_are_given():
    parser = make_parser("evaluate.py", "")
    parser.add_class_arguments(evaluate.Evaluation)
    found = parser.given([*REST, "--checkpoints", "A", "B", "--split", "no"])
    assert found == {"data": ".", "output": "out", "checkpoints": ("A", "B"), "split": "no"}
    for word, value in (("False", False), ("off", False), ("YES", True)):
        assert parser.given([*REST, "--overwrite", word])["overwrite"] is value
    with pytest.raises(UsageError, match="--overwrite is true or false, not 2"):
        parser.given([*REST, "--overwrite=2"])


LINES = """
import sys
from deblur.cli import run_command

def say():
    for number in range(20_000):
        print("a line", number)
        print("a line of stderr", number, file=sys.stderr)
    open(sys.argv[1], "w").write("done")

sys.exit(run_command("say", say, ""))
"""


@pytest.mark.parametrize(
    ("streams", "said"),
    [
        ("2>{0}/err | head -1", "a line 0\n"),
        ("2>{0}/err | true", ""),
        ("2>&1 | true", ""),
        ("2>{0}/err >&-", ""),
        (">&- 2>&-", ""),
    ],
)
def test_a_command_does_its_work_whoever_reads_its_lines(streams, said, tmp_path):
    script = tmp_path / "say.py"
    script.write_text(LINES)
    command = f"{{ {sys.executable} {script} {tmp_path}/file; echo $? >{tmp_path}/code; }} {streams.format(tmp_path)}"
    shell = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": "."})
    assert (tmp_path / "file").read_text() == "done"
    assert (tmp_path / "code").read_text() == "0\n"
    assert shell.stdout == said
    assert "BrokenPipe" not in shell.stderr
    if (tmp_path / "err").exists():
        assert (tmp_path / "err").read_text().count("\n") == 20_000  # nothing but its lines


def test_a_notebook_s_own_stream_shows_the_lines():
    lines = io.StringIO()
    with contextlib.redirect_stdout(lines):
        assert run_command("say", lambda: print("restored"), "") == 0
    assert lines.getvalue() == "restored\n"
