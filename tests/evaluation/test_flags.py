"""Every flag of evaluate.py changes what it names."""

from dataclasses import fields
from pathlib import Path

import pytest

import evaluate
from deblur.data.files import images
from deblur.evaluation.grid import CONTROLS
from deblur.evaluation.pixels import psnr

pytestmark = pytest.mark.commands


def of_evaluate(args):
    base = {"--data": "data", "--metrics": "psnr", "--device": "cpu", "--precision": "fp32"}
    base |= {"--checkpoint": "checkpoint", "--grid": "grid.yaml"}
    try:
        evaluate.command([*args, *(part for flag, value in base.items() if flag not in args for part in (flag, value))])
    except ValueError as error:
        print(error)
        return 2
    return 0


def rows(run):
    return [row["setting"] for row in run.results["rows"]]


def of_row(run, label):
    return {image: score for (row, image), score in run.scores.items() if row == label}


# Images take most of the time of a run, so several flags share one. None of what a flag is looked at by comes from
# another flag of its run.
RUNS = {
    "plain": [],
    "one": ["--checkpoint", "other", "--metrics", "psnr,psnr_aligned", "--panel", "shown.png", "--limit", "4"],
    "two": ["--seed", "1", "--batch_size", "3", "--grid", "two.yaml", "--checkpoint", "drifting"],
    "three": ["--variant", "blur_gamma", "--split", "train", "--images", "true"],
    "four": ["--precision", "bf16", "--outputs", "outputs", "--controls", "false", "--checkpoint", "checkpoint"],
    "device": ["--device", "cuda:99"],
    "provider": ["--provider", "cuda", "--checkpoint", "checkpoint"],
}


def of_gamma(plain, run):
    """The blurry images of the other kind are scored."""
    pair = (images.read(f"data/train/scene/{kind}/00.png")[None] for kind in ("blur_gamma", "sharp"))
    return of_row(run, "blurry") == {"scene/00": pytest.approx(psnr(*pair).item())}


EVALUATE = {
    "data": ("plain", lambda a, b: a.results["data"]["root"] == "data" and len(of_row(a, "sharp")) == 12),
    "output": ("plain", lambda a, b: (a.folder / "results.csv").is_file()),
    "checkpoint": ("one", lambda a, b: of_row(b, "ddim 2").items().isdisjoint(of_row(a, "ddim 2").items())),
    "metrics": ("one", lambda a, b: b.results["metrics"].keys() - a.results["metrics"] == {"psnr_aligned"}),
    "controls": ("four", lambda a, b: {*CONTROLS} <= {*rows(a)} and {*CONTROLS}.isdisjoint(rows(b))),
    "panel": ("one", lambda a, b: Path("shown.png").is_file() and not (b.folder / "panel.png").exists()),
    "limit": ("one", lambda a, b: [*of_row(b, "sharp")] == [f"scene/{k:02}" for k in (0, 3, 6, 9)]),
    "seed": ("two", lambda a, b: of_row(a, "noised 40") != of_row(b, "noised 40")),
    "batch_size": (
        "two",
        lambda a, b: {shape[0] for shape in b.seen["predictor"]} <= {3, 2, 1} and (3, 3, 16, 12) in b.seen["predictor"],
    ),
    "grid": ("two", lambda a, b: len(rows(b)) == len(rows(a)) + 1),
    "images": (
        "three",
        lambda a, b: (
            (b.folder / "images" / "sharp" / "scene" / "00.png").is_file() and not (a.folder / "images").exists()
        ),
    ),
    "split": ("three", lambda a, b: len(of_row(b, "sharp")) == 1),
    "variant": ("three", of_gamma),
    "precision": ("four", lambda a, b: of_row(a, "predictor") != of_row(b, "predictor")),
    "provider": ("provider", lambda a, b: b.code == 2 and "no ONNX folder, which the provider cuda" in b.said),
    "outputs": ("four", lambda a, b: {*rows(b)} - {*rows(a)} == {"outputs outputs"}),
    "device": ("device", lambda a, b: b.code == 2 and "device cuda:99 cannot be used here" in b.said),
}


def test_every_flag_of_evaluate_py_is_tested():
    # In tests/test_evaluate.py, tests/test_evaluate_resume.py, tests/test_extend.py, and tests/evaluation/test_text.py.
    elsewhere = {"checkpoints", "save_presets", "overwrite", "classes", "language"}
    assert {field.name for field in fields(evaluate.Evaluation)} == {*EVALUATE, *elsewhere}


@pytest.mark.parametrize("flag", EVALUATE)
def test_a_flag_of_evaluate_py_does_what_it_says(called, known, flag, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    run, holds = EVALUATE[flag]
    for name in ("plain", run):
        known[name] = known.get(name) or called(of_evaluate, *RUNS[name])
    assert known["plain"].code == 0
    assert holds(known["plain"], known[run])
