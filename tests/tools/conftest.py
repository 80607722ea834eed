"""Small inputs for the commands of tools/, and runs of these in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from deblur.cli import call, run_command
from deblur.data.files import images
from deblur.models.networks.unet import UNetPredictor
from tests.tiny import tiny_pipeline

BLUR = """
data:
  blur:
    camera: [{{class_path: deblur.data.camera.CameraShake, init_args: {{length: [5, 5]}}}}]
    shot_noise: [{0}, {0}]
"""


@dataclass
class Run:
    """What a command left: its exit code, what it said, and its output folder."""

    code: int
    said: str
    folder: Path

    @property
    def files(self) -> dict[str, bytes]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in found}

    @property
    def types(self) -> set[torch.dtype]:
        """Those of the weights that it wrote."""
        return {value.dtype for path in self.folder.rglob("*.safetensors") for value in load_file(path).values()}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Checkpoints, photographs to blur, and a dataset of two splits and two kinds of blurry images."""
    folder = tmp_path_factory.mktemp("flags")
    tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True)).save_pretrained(folder / "sized")
    tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True), residual_scale=0.3).save_pretrained(folder / "other")
    generator = torch.Generator().manual_seed(0)
    for name in "ab":
        images.write(folder / "photos" / f"{name}.png", torch.rand(3, 60, 72, generator=generator))
    (folder / "photos" / "one.txt").write_text("a.png\n")
    for name, noise in (("quiet", 0.0), ("noisy", 0.01)):
        (folder / f"{name}.yaml").write_text(BLUR.format(noise))
    for split, count in (("train", 1), ("test", 2)):
        for k in range(count):
            sharp = torch.rand(3, 32, 40, generator=generator)
            for kind, share in (("sharp", 1.0), ("blur", 0.5), ("blur_gamma", 0.3)):
                scene = folder / "data" / split / f"scene_{split}" / kind
                images.write(scene / f"{k:02}.png", share * sharp + (1 - share) * sharp.mean())
    return folder


@pytest.fixture(scope="module")
def known():
    """Runs that several flags are compared with, by their commands."""
    return {}


@pytest.fixture
def ran(place, tmp_path, monkeypatch, capsys):
    """A function that runs a command in this process; OUT among its words becomes a folder of its own."""
    monkeypatch.chdir(place)
    count = 0

    def ran(function: Callable, words: list[str], script: str = "tools.test", **how):
        nonlocal count
        count += 1
        folder = tmp_path / f"out{count}"
        given = [str(folder) if word == "OUT" else word for word in words]
        code = run_command(script, lambda: call(function, given, script, about="", **how), "stopped")
        return Run(code, "".join(capsys.readouterr()), folder)

    return ran
