"""What an evaluation's scores depend on, and how a run of evaluate.py goes on from what is there."""

import json
import os
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from deblur.checkpoints import checkpoint_hash
from deblur.cli import UsageError
from deblur.data.files import images
from deblur.evaluation.controls import RECIPES
from tests.test_evaluate import arguments, each, place, score  # noqa: F401 (a fixture)

pytestmark = pytest.mark.commands


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


@pytest.fixture(scope="module")
def begun(place, tmp_path_factory):  # noqa: F811
    """The folder of a small evaluation with copies of what it depends on: its checkpoint, data and other outputs."""
    folder = tmp_path_factory.mktemp("begun")
    for name in ("checkpoint", "data"):
        shutil.copytree(place / name, folder / name)
    shutil.copytree(folder / "data" / "sharp", folder / "other")
    score(of_copies(place, folder))
    return folder


def of_copies(place, folder, **changes) -> dict:  # noqa: F811
    copies = {"checkpoint": folder / "checkpoint", "data": folder / "data", "outputs": folder / "other"}
    given = {"precision": "fp32", "controls": False} | copies | changes
    return arguments(place, folder / "scores", **given)


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_noticed_and_named(place, begun, tmp_path, what):  # noqa: F811
    fact, change = CHANGES[what]
    folder = shutil.copytree(begun, tmp_path / "copy")
    if callable(change):
        change(folder)
        change = {}
    with pytest.raises(UsageError, match=f"holds scores with another {fact}") as caught:
        score(of_copies(place, folder, **change))
    assert re.search(r": .+ there, .+ now; .*--overwrite true to start anew", str(caught.value))


def test_overwrite_starts_anew(place, begun, tmp_path):  # noqa: F811
    folder = shutil.copytree(begun, tmp_path / "copy")
    score(of_copies(place, folder, seed=1, limit=1, overwrite=True))
    assert {line["image"] for line in each(folder / "scores")} == {"a"}


def test_there_is_a_change_for_everything_that_a_score_depends_on(begun):
    facts = json.loads((begun / "scores" / "journal" / "facts.json").read_text())
    assert facts["recipe"].keys() == {"psnr", "ssim", "lpips", *RECIPES}
    tried = {fact.partition(" of")[0] for fact, _ in CHANGES.values()}
    assert facts.keys() == tried | {"device"}, "on another device: tests/evaluation/test_scoring.py"


def test_the_checkpoint_is_lite_if_none_is_named(place, tmp_path):  # noqa: F811
    score(arguments(place, tmp_path / "scores", checkpoint=None, limit=1, controls=False, metrics="psnr"))
    facts = json.loads((tmp_path / "scores" / "journal" / "facts.json").read_text())
    assert facts["checkpoint"] == checkpoint_hash("lite")


def test_a_written_image_that_is_gone_is_made_again(place, begun, tmp_path):  # noqa: F811
    """Also one whose score is known."""
    given = of_copies(place, shutil.copytree(begun, tmp_path / "copy"), images=True)
    score(given)
    folder = tmp_path / "copy" / "scores" / "images"
    files = {file: file.read_bytes() for file in folder.rglob("*.png")}
    rows = {"blurry", "predictor", "sharp", "outputs_other", "ddim_2", "ddim_3", "ddpm_2", "ddpm_3"}
    assert {file.parent.name for file in files} == rows
    assert files[folder / "sharp/a.png"]
    assert len(files) == 8 * 3
    for name in ("sharp/a.png", "ddpm_3/b.png"):
        (folder / name).unlink()
    score(given)
    assert {file: file.read_bytes() for file in files} == files


def test_a_name_that_is_not_utf_8_is_scored_like_any_other_and_recorded_escaped(place, tmp_path):  # noqa: F811
    name = os.fsdecode(b"caf\xe9")
    for side in ("blur", "sharp"):
        (tmp_path / "data" / side).mkdir(parents=True)
        shutil.copyfile(place / "data" / side / "a.png", tmp_path / "data" / side / f"{name}.png")
        shutil.copyfile(place / "data" / side / "b.png", tmp_path / "data" / side / "b.png")
    (tmp_path / "grid.yaml").write_text("product: {steps: [1]}\n")
    given = arguments(place, tmp_path / "out", data=tmp_path / "data", grid=tmp_path / "grid.yaml", metrics="psnr,ssim")
    for _ in range(2):  # the second time from the stored scores
        score(given)
        found = pq.read_table(tmp_path / "out" / "per_image.parquet").to_pylist()
        assert {row["image"] for row in found} == {"caf\\xe9", "b"}
    assert {entry["image"] for entry in json.loads((tmp_path / "out" / "results.json").read_text())["examples"]} == {
        "caf\\xe9",
        "b",
    }
