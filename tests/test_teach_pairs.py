import json

import pytest
import torch

from benchmarks.teach_pairs import main
from data import images
from data.layouts import DatasetError, find_pairs
from data.pairs import read_pair
from models.slim_unet import SlimPredictor
from tests import processes
from tests.tiny import tiny_pipeline

BRIGHTER = 0.2  # what the teacher adds, in units of [0, 1]


@pytest.fixture
def world(tmp_path):
    """A teacher that brightens, a pair that it helps, and one that it harms."""
    predictor = SlimPredictor((8,), (1,))
    torch.nn.init.constant_(predictor.unet.head.bias, 2 * BRIGHTER)
    tiny_pipeline(predictor, stirred=False).save_pretrained(tmp_path / "teacher")
    for name, sharp in (("helped", 0.7), ("harmed", 0.3), ("helped.1", 0.7)):
        blurry = torch.rand(3, 20, 24, generator=torch.Generator().manual_seed(0)) * 0.1 + 0.4
        images.write(tmp_path / "pairs" / "blur" / "scene" / f"{name}.png", blurry)
        images.write(tmp_path / "pairs" / "sharp" / "scene" / f"{name}.png", torch.full((3, 20, 24), sharp))
    return tmp_path


def teach(world, output="taught"):
    main(str(world / "pairs"), str(world / output), str(world / "teacher"), device="cpu")
    return {pair.name: read_pair(pair) for pair in find_pairs(world / output, "train")}


def test_the_target_is_the_prediction_where_it_helps_and_the_sharp_image_where_it_harms(world):
    pairs = teach(world)
    for name in ("scene/helped", "scene/helped.1"):
        blurry, target = pairs[name]
        assert torch.allclose(target, blurry + BRIGHTER, atol=2 / 255)
    _, target = pairs["scene/harmed"]
    assert torch.allclose(target, torch.tensor(0.3), atol=1 / 255)
    assert json.loads((world / "taught" / "teacher.json").read_text())["teacher"] == str(world / "teacher")


def test_a_stopped_command_keeps_what_it_made_and_refuses_other_settings(world):
    teach(world)
    (world / "taught").rename(world / ".taught.part")
    made = world / ".taught.part" / "sharp" / "scene"
    images.write(made / "helped.png", torch.zeros(3, 20, 24))
    (made / "harmed.png").unlink()
    tiny_pipeline().save_pretrained(world / "other")
    with pytest.raises(DatasetError, match="begun with other settings"):
        main(str(world / "pairs"), str(world / "taught"), str(world / "other"), device="cpu")
    pairs = teach(world)
    assert not pairs["scene/helped"][1].any(), "what was made stays"
    assert torch.allclose(pairs["scene/harmed"][1], torch.tensor(0.3), atol=1 / 255)


def test_a_folder_that_is_there_is_refused_in_one_sentence(world):
    done = processes.run("benchmarks.teach_pairs", [world / "pairs", "--output", world / "pairs"])
    assert done.returncode == 2 and done.stderr.endswith("is there already: give a new folder.\n")
