"""What the scripts say of flags and values that are wrong, in one sentence, before any library is loaded."""

import pytest

import evaluate
import sample
from base.command_line import split, values
from base.messages import UsageError

KINDS = {"compare": bool, "steps": int, "both": tuple[str, str] | None}
REST = ["--data", ".", "--output", "out"]


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["a.png", "--compare", "b.png"], (["a.png", "b.png"], {"compare": "true"})),
        (["--compare", "no", "a.png"], (["a.png"], {"compare": "no"})),
        (["--both", "A", "B", "--steps=2"], ([], {"both": '["A", "B"]', "steps": "2"})),
    ],
)
def test_a_command_line_is_split(args, found):
    assert split(args, KINDS, "x.py") == found


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([*REST, "--metric", "psnr"], "--metric is unknown: did you mean --metrics?"),
        ([*REST, "--precision", "fp16"], "--precision is one of auto, fp32, bf16, not fp16: did you mean bf16?"),
        ([*REST, "--limit", "x"], "--limit is a whole number, not x"),
        ([*REST, "--overwrite", "off", "more"], "more belongs to no flag (--help lists the flags)"),
        ([*REST, "--checkpoints", "A"], "--checkpoints needs two values: --checkpoints A B"),
        ([*REST, "--device", "gpu"], "--device is one of auto, cpu, cuda, mps, not gpu: did you mean cpu?"),
        (REST[:2], "--output is missing: python evaluate.py --data PAIRS --output scores (see --help)"),
        (
            [*REST, "--checkpoints", "A", "B", "--grid", "g", "--save_presets"],  # a bare flag is true
            "--checkpoints takes no --checkpoint, --outputs or --save_presets",
        ),
    ],
)
def test_a_wrong_command_line_of_evaluate_py(args, sentence):
    with pytest.raises(ValueError) as error:
        evaluate.cli(args)
    assert str(error.value) == sentence


def test_evaluate_py_explains_its_flags(capsys):
    evaluate.cli(["--data", "--help"])
    said = capsys.readouterr().out
    assert "\n  --checkpoints TEXT TEXT\n" in said and "\n  --split TEXT = test\n" in said and "typing" not in said


def test_a_device_that_is_none_is_found_at_once(capsys, tmp_path):
    assert sample.main([str(tmp_path), "--output", "out", "--device", "gpu"]) == 2
    assert "--device is one of auto, cpu, cuda, mps, not gpu: did you mean cpu?" in capsys.readouterr().err


def test_values_are_those_of_the_fields():
    found = values((evaluate.Evaluation,), {"data": "a", "output": "b", "checkpoints": '["A", "B"]', "overwrite": "no"})
    assert (found["checkpoints"], found["overwrite"], found["seed"]) == (("A", "B"), False, 0)
    with pytest.raises(UsageError, match="--overwrite is true or false, not 2"):
        values((evaluate.Evaluation,), {"data": "a", "output": "b", "overwrite": "2"})
