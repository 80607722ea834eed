"""Stored predictions: their rounding, and that crops of them lie where their pair's do."""

import math
from dataclasses import fields, replace

import pytest
import torch

from deblur.data.datamodule import DeblurDataModule
from deblur.data.files import images
from deblur.data.layouts import DatasetError, Source, find_pairs
from deblur.data.predictions import FACTS, PredictedBy, Predictions, folder_of
from tests.data.test_pairs import coordinates

OURS = PredictedBy("runs/ours", "1234", size_head=True)


def log_size_of(x_init):
    """A map (1, H, W) that says which row and column a pixel had."""
    return (x_init[:1] * 255 * 64 + x_init[1:2] * 255) / 1024 - 6


@pytest.fixture
def root(tmp_path):
    """Five pairs of 40 x 50 pixels, and their predictions: the blurry image, which is a place and a number."""
    for number in range(5):
        blurry = coordinates(40, 50, number)
        images.write(tmp_path / "pairs/blur" / f"{number}.png", blurry)
        images.write(tmp_path / "pairs/sharp" / f"{number}.png", blurry + 100 / 255)
    stored = store(tmp_path / "pairs")
    for pair in find_pairs(tmp_path / "pairs"):
        x_init = images.read(pair.blurry)
        stored.write(pair.name, x_init, log_size_of(x_init))
    return tmp_path / "pairs"


def store(root, predictor=OURS):
    stored = Predictions(folder_of(root, "train", "blur"), predictor)
    stored.begin()
    return stored


def stream(root, batches, **options):
    """The first training batches."""
    data = DeblurDataModule(train=str(root), predictions=True, patch_size=16, batch_size=4, **options)
    data.setup("fit")
    loader = iter(data.train_dataloader())
    return [data.on_after_batch_transfer(next(loader), 0) for _ in range(batches)]


# Other values of the facts about a predictor, and whether it is another one then.
OTHERS = {
    "checkpoint": ("elsewhere", False),
    "sha256": ("4321", True),
    "size_head": (False, False),
    "stages": (1, True),
}


def test_predictions_are_added_to_those_of_the_same_predictor_alone(root):
    """Its name may change, and whether it has a size head follows from its weights."""
    assert {field.name for field in fields(PredictedBy)} == OTHERS.keys()
    for name, (value, is_other) in OTHERS.items():
        other = replace(OURS, **{name: value})
        if is_other:
            with pytest.raises(DatasetError, match=r"holds the predictions of another predictor, that of runs/ours"):
                store(root, other)
        else:
            store(root, other)
        assert Predictions.of(root, "train", "blur").predictor == OURS


@pytest.mark.parametrize(("split", "options"), [("train", {}), ("test", {"crops_per_image": 2, "mix_batches": 3})])
def test_predictions_are_cropped_and_turned_like_their_pair(root, split, options):
    folder_of(root, "train", "blur").rename(folder_of(root, split, "blur"))
    for batch in stream(f"{root}:{split}", 12, **options):
        assert batch["x_init"].shape == (4, 3, 16, 16)
        assert batch["log_size"].shape == (4, 1, 16, 16)
        assert torch.equal(batch["x_init"], batch["blurry"])
        expected = torch.stack([log_size_of(x_init) for x_init in batch["x_init"]])
        assert (batch["log_size"] - expected).abs().max() < 1e-4


def test_what_is_stored_is_rounded_to_the_files_depth(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x_init = torch.rand(3, 20, 30, generator=generator)
    log_size = torch.empty(1, 20, 30).uniform_(-9.9, math.log(2), generator=generator)
    stored = store(tmp_path)
    stored.write("scene/1", x_init, log_size)
    (tmp_path / "pairs.csv").touch()  # they lie beside a table
    raw = Predictions.of(tmp_path / "pairs.csv", "train", "blur").read("scene/1")
    assert (images.to_float(raw["x_init"]) - x_init).abs().max() < 0.501 / 255
    assert raw["log_size"].shape == (1, 20, 30)
    stored.write("far", x_init, torch.full((1, 20, 30), -30.0))  # e^-30 is nothing
    assert (stored.read("far")["log_size"] == 0).all()


def refused(root, **options):
    with pytest.raises(DatasetError) as caught:
        stream(root, 1, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["x_init", "log_size"])
def test_what_is_missing_or_of_another_size_is_named(root, kind):
    file = folder_of(root, "train", "blur") / kind / "2.png"
    whole = file.read_bytes()
    file.unlink()
    assert "lacks the predictions of 1 pairs, 2 among them" in refused(root)
    images.write(file, torch.zeros(3, 50, 40))
    assert "2.png differs in size from" in refused(root)
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(images.ImageError, match=r"2\.png"):
        stream(root, 1)
    (folder_of(root, "train", "blur") / FACTS).unlink()
    assert f"make them by python -m tools.make_pairs {root} --predict CHECKPOINT" in refused(root)


def test_predictions_of_two_predictors_are_not_mixed(root, tmp_path):
    other = PredictedBy("runs/other", "5678", size_head=True)
    for side in ("blur", "sharp"):
        images.write(tmp_path / "more" / side / "a.png", torch.zeros(3, 20, 20))
    store(tmp_path / "more", other).write("a", torch.zeros(3, 20, 20), torch.zeros(1, 20, 20))
    data = DeblurDataModule(train=[str(root), str(tmp_path / "more")], predictions=True, patch_size=16, batch_size=4)
    with pytest.raises(DatasetError, match="mixes the predictions of several predictors"):
        data.setup("fit")


def test_two_folders_have_no_place_for_predictions(root):
    data = DeblurDataModule(train=Source(blurry=str(root / "blur"), sharp=str(root / "sharp")), predictions=True)
    with pytest.raises(DatasetError, match="needs datasets of pairs, given by their root"):
        data.setup("fit")
