"""Photographs, and checkpoints of tiny networks, for the tests of sample.py."""

import pytest
import torch

import sample
from deblur.data.files import images
from tests.flags import called, known, place  # noqa: F401
from tests.tiny import tiny_pipeline


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline") / "checkpoint"
    tiny_pipeline().save_pretrained(folder)
    return folder


@pytest.fixture
def photos(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for name, size in (("a.png", (20, 31)), ("sub/b.jpg", (17, 9)), ("c.webp", (1, 1))):
        images.write(tmp_path / "photos" / name, torch.rand(3, *size, generator=generator))
    return tmp_path / "photos"


def with_presets(folder, **presets):
    """A checkpoint with these presets."""
    pipeline = tiny_pipeline()
    pipeline.register_to_config(presets=presets)
    pipeline.save_pretrained(folder / "checkpoint")
    return str(folder / "checkpoint")


def run(*arguments):
    return sample.main([*map(str, arguments), "--steps", "2"])


def restored(folder):
    """The files that are restored images, by name."""
    files = (file for file in folder.rglob("*.*") if file.suffix not in (".json", ".lock"))
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
