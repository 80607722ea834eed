"""Every flag of the commands in tools/ changes what it names.

A line is what the flag adds to a command, and what must hold of the runs without and with it.
"""

import re
from inspect import signature
from pathlib import Path

import pytest
import torch

from deblur.data.files import images
from deblur.data.predictions import folder_of
from deblur.tools import calibrate, doctor, export, make_pairs

pytestmark = pytest.mark.commands
CLASSES = (["--classes", "mypred.Net"], lambda a, b: b.code == 2 and "class mypred.Net cannot be imported" in b.said)
NO_DEVICE = (["--device", "cuda:99"], lambda a, b: b.code == 2 and "device cuda:99 cannot be used here" in b.said)


def other_blur(a, b):
    """Other blurry images of the same sharp regions."""
    sides = [name for name in a.files if name.startswith(("blur/", "sharp/"))]
    return all((a.files[name] == b.files[name]) == name.startswith("sharp/") for name in sides)


def shape(run, name="a_0"):
    return images.read(run.folder / "sharp" / f"{name}.png").shape


def other_table(a, b):
    """Other numbers in the table; what a progress bar says differs in any case."""
    tables = [[line for line in run.said.splitlines() if re.match(r"\s+[1-5]\s+[\d.]", line)] for run in (a, b)]
    return [len(table) for table in tables] == [5, 5] and tables[0] != tables[1]


def predicted(split, variant):
    """Whether the predictions of a split and variant, and of no other, are there."""
    wanted = folder_of("data", split, variant)
    found = {path.parent for path in Path("data").rglob("predictor.json")}
    return found == {wanted}


MAKE = ["photos", "--config", "quiet.yaml", "--output", "OUT", "--crops", "1", "--size", "24", "--workers", "1"]
PREDICT = ["--predict", "sized"]
MAKE_PAIRS = {
    "config": (["--config", "noisy.yaml"], other_blur),
    "output": ([], lambda a, b: {"blur/a_0.png", "sharp/b_0.png", "pairs.json"} <= a.files.keys()),
    "names": (["--names", "one.txt"], lambda a, b: "blur/b_0.png" in a.files and "blur/b_0.png" not in b.files),
    "crops": (["--crops", "2"], lambda a, b: "blur/a_1.png" in b.files and "blur/a_1.png" not in a.files),
    "size": (["--size", "20"], lambda a, b: (shape(a), shape(b)) == ((3, 24, 24), (3, 20, 20))),
    "candidates": (["--candidates", "40"], lambda a, b: a.files["sharp/a_0.png"] != b.files["sharp/a_0.png"]),
    "seed": (["--seed", "1"], lambda a, b: a.files["blur/a_0.png"] != b.files["blur/a_0.png"]),
    "predict": (PREDICT, lambda a, b: any("predictions" in name for name in b.files.keys() - a.files.keys())),
    "device": ([*PREDICT, *NO_DEVICE[0]], NO_DEVICE[1]),
    "classes": ([*PREDICT, *CLASSES[0]], CLASSES[1]),
}

CALIBRATE = {
    "split": (["--split", "train"], other_table),
    "precision": (["--precision", "bf16"], other_table),
}

EXPORT = {
    "source": ([], lambda a, b: a.code == 0 and "the weights of sized in fp16" in a.said),
    "output": ([], lambda a, b: "model_index.json" in a.files),
    "dtype": (["--dtype", "bf16"], lambda a, b: (a.types, b.types) == ({torch.float16}, {torch.bfloat16})),
    "average_with": (["--average_with", "other"], lambda a, b: "0.2" in (b.folder / "model_index.json").read_text()),
    "classes": CLASSES,
}

DOCTOR = {
    "root": ([], lambda a, b: "data: layout gopro, variant blur: 1 pairs in train, 2 pairs in test" in a.said),
    "variant": (["--variant", "blur_gamma"], lambda a, b: "data: layout gopro, variant blur_gamma: " in b.said),
}
# Flags whose tests stand beside those of the tool.
ELSEWHERE = {
    "make_pairs": ("photos", "workers", "first", "stages", "split", "variant"),
    "calibrate": ("checkpoint", "data", "save"),
    "doctor": ("num_workers",),
}
COMMANDS = {  # its function, its table, the words of a run without a flag, and how the command reads them
    "make_pairs": (make_pairs.make, MAKE_PAIRS, MAKE, {"nargs": "+"}),
    "calibrate": (calibrate.calibrate, CALIBRATE, ["sized", "data", "--precision", "fp32"], {"positional": 2}),
    "export": (export.export_checkpoint, EXPORT, ["sized", "OUT"], {"positional": 2}),
    "doctor": (doctor.main, DOCTOR, ["data", "--num_workers", "0"], {}),
}
CASES = [(name, flag) for name, (_, table, *_) in COMMANDS.items() for flag in table]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_a_command_is_tested(name):
    function, table, *_ = COMMANDS[name]
    assert set(signature(function).parameters) == {*table, *ELSEWHERE.get(name, ())}


@pytest.mark.parametrize(("name", "flag"), CASES)
def test_a_flag_does_what_it_says(ran, known, name, flag):
    function, table, words, how = COMMANDS[name]
    more, holds = table[flag]
    known[name] = known.get(name) or ran(function, words, **how)
    assert known[name].code == 0, known[name].said
    assert holds(known[name], ran(function, [*words, *more], **how))


@pytest.mark.parametrize(("split", "variant"), [("train", "blur"), ("test", "blur"), ("test", "blur_gamma")])
def test_predictions_are_of_the_split_and_the_variant_that_are_named(ran, place, tmp_path, monkeypatch, split, variant):
    words = [str(place / "data"), "--predict", str(place / "sized"), "--device", "cpu"]
    try:
        done = ran(make_pairs.make, [*words, "--split", split, "--variant", variant], nargs="+")
        assert done.code == 0, done.said
        assert predicted(split, variant)
    finally:
        for path in (place / "data").rglob("predictions"):
            path.rename(tmp_path / path.parent.name)


def test_own_networks_are_exported_to_onnx_by_their_names(ran):
    export_onnx = pytest.importorskip("deblur.tools.export_onnx")
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    words = ["sized", "--output", "OUT", "--classes", "mypred.Net"]
    assert "class mypred.Net cannot be imported" in ran(export_onnx.export_onnx, words).said
