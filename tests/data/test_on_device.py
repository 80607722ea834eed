"""Frames that stay on the device: the crops are those that are read, turned and flipped one by one."""

import pytest
import torch

from deblur.data.files import images
from deblur.data.layouts import DatasetError, find_pairs
from deblur.data.on_device import FramesOnDevice
from deblur.data.pairs import Mix, TrainPairs, TrainSharp, flatten, generator_of
from deblur.data.predictions import PredictedBy, Predictions
from tests.data.test_pairs import same

SIDE = 16
SIZES = [(40, 30), (17, 50), (9, 33), (12, 11)]  # the last two are padded
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


def write_pairs(root, depths):
    for number, (size, depth) in enumerate(zip(SIZES, depths, strict=True)):
        for folder in ("blur", "sharp"):
            image = torch.rand(3, *size, generator=generator_of(folder, number))
            images.write(root / folder / f"{number}.png", image, depth=depth)
    return find_pairs(root)


@pytest.fixture(params=["pairs", "predictions", "16 bits", "8 and 16 bits", "photographs", "mix"])
def dataset(request, tmp_path):
    depths = {"16 bits": (16,) * 4, "8 and 16 bits": (8, 16, 8, 16)}.get(request.param, (8,) * 4)
    pairs = write_pairs(tmp_path, depths)
    if request.param == "photographs":
        return Mix([TrainSharp([pair.sharp for pair in pairs], SIDE - 8, margin=4, crops_per_image=2)], [None])
    options = {"crops_per_image": 2}
    if request.param == "predictions":
        options["predictions"] = Predictions(tmp_path / "predictions", PredictedBy("none", "0", size_head=True))
        options["predictions"].begin()
        for pair in pairs:
            sharp = images.read(pair.sharp)
            options["predictions"].write(pair.name, 1 - sharp, sharp[:1] - 4)
    parts = [TrainPairs(pairs, SIDE, **options), TrainPairs(pairs[1:], SIDE, seed=4, **options)]
    return Mix(parts, [1.0, 2.5]) if request.param == "mix" else Mix(parts[:1], [None])


@pytest.mark.parametrize("device", DEVICES)
def test_crops_are_those_of_the_files(dataset, device):
    """Positions, quarter turns and flips of all frames alike, in order, with names and seeds."""
    frames = FramesOnDevice(dataset, torch.device(device))
    for first in (0, 7, 30):
        batch = frames.batch(range(first, first + 7))
        read = flatten([dataset[number] for number in range(first, first + 7)])
        if device == "cpu":
            same([batch], [read])
        assert batch["name"] == read["name"]
        for kind in read.keys() - {"name", "seed"}:
            assert batch[kind].device.type == device
            assert (batch[kind].cpu() - read[kind]).abs().max() < 1e-6


@pytest.mark.parametrize("depth", [8, 16])
def test_frames_that_do_not_fit_are_refused(tmp_path, monkeypatch, depth):
    dataset = Mix([TrainPairs(write_pairs(tmp_path, (depth,) * 4), SIDE)], [None])
    needed = 2 * depth // 8 * 3 * (40 * 30 + 17 * 50 + 16 * 33 + 16 * 16)
    monkeypatch.setattr("deblur.data.on_device.free_memory", lambda device: needed)
    FramesOnDevice(dataset, torch.device("cpu"))
    monkeypatch.setattr("deblur.data.on_device.free_memory", lambda device: needed - 1)
    with pytest.raises(DatasetError, match=r"keep_on_device needs .* GB for all frames, and cpu has"):
        FramesOnDevice(dataset, torch.device("cpu"))
