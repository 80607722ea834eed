"""What an evaluation's scores depend on: a change of any of it is noticed when the same command runs again."""

import json
import re
import shutil
from pathlib import Path

import pytest

import evaluate
from base.messages import UsageError
from data import images
from tests.evaluation.toy import ALONE
from tests.test_evaluate import arguments, place  # noqa: F401 (a fixture)


def darken(file: Path) -> None:
    """Change an image a little."""
    images.write(file, images.read(file) * 0.98)


def change_checkpoint(folder: Path) -> None:
    index = json.loads((folder / "checkpoint" / "model_index.json").read_text())
    (folder / "checkpoint" / "model_index.json").write_text(json.dumps(index | {"residual_scale": 0.2}))


# What changes -> the fact that the message names, and the change: of files, or of flags.
CHANGES = {
    "the checkpoint": ("checkpoint", change_checkpoint),
    "the seed": ("seed", {"seed": 1}),
    "the precision": ("precision", {"precision": "bf16"}),
    "the size of batches": ("batch_size", {"batch_size": 2}),
    "a metric that is no longer asked for": ("recipe of lpips", {"metrics": "psnr"}),
    "a blurry image": ("image of b", lambda folder: darken(folder / "data" / "blur" / "b.png")),
    "a ground truth": ("image of a", lambda folder: darken(folder / "data" / "sharp" / "a.png")),
    "the number of images": ("image of", {"limit": 2}),
    "another program's image": ("outputs of outputs other", lambda folder: darken(folder / "other" / "b.png")),
}


@pytest.fixture
def begun(place, tmp_path):  # noqa: F811
    """The flags of an evaluation of copies in tmp_path, whose journal was begun."""
    for name in ("checkpoint", "data"):
        shutil.copytree(place / name, tmp_path / name)
    shutil.copytree(tmp_path / "data" / "sharp", tmp_path / "other")
    copies = {"checkpoint": tmp_path / "checkpoint", "data": tmp_path / "data", "outputs": tmp_path / "other"}
    given = arguments(place, tmp_path / "scores", precision="fp32", **copies)
    evaluate.prepare(evaluate.Evaluation(**given), ALONE)
    return given


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_noticed_and_named(begun, tmp_path, what):
    fact, change = CHANGES[what]
    evaluate.prepare(evaluate.Evaluation(**begun), ALONE)
    if callable(change):
        change(tmp_path)
        change = {}
    changed = {name: value for name, value in (begun | change).items() if value is not None}
    with pytest.raises(UsageError, match=f"holds scores with another {fact}") as caught:
        evaluate.prepare(evaluate.Evaluation(**changed), ALONE)
    assert re.search(r": .+ there, .+ now; .*--overwrite true to start anew", str(caught.value))
    evaluate.prepare(evaluate.Evaluation(**changed, overwrite=True), ALONE)


def test_there_is_a_change_for_everything_that_a_score_depends_on(begun, tmp_path):
    facts = json.loads((tmp_path / "scores" / "journal" / "facts.json").read_text())
    tried = {fact.partition(" of")[0] for fact, _ in CHANGES.values()}
    assert facts.keys() == tried | {"device"}, "on another device: tests/evaluation/test_scoring.py"


def test_a_written_image_that_is_gone_is_made_again(begun, tmp_path):
    """Also one whose score is known."""
    given = evaluate.Evaluation(**begun, images=True)
    evaluate.main(given)
    files = {file: file.read_bytes() for file in (tmp_path / "scores" / "images").rglob("*.png")}
    assert {file.parent.name for file in files} == {
        *("blurry", "predictor", "sharp", "outputs_other"),
        *("ddim_2", "ddim_3", "ddpm_2", "ddpm_3"),
    }
    assert files[tmp_path / "scores/images/sharp/a.png"] and len(files) == 8 * 3
    for name in ("sharp/a.png", "ddpm_3/b.png"):
        (tmp_path / "scores" / "images" / name).unlink()
    evaluate.main(given)
    assert {file: file.read_bytes() for file in files} == files
