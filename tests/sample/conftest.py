"""Photographs, checkpoints of tiny networks, and runs of sample.py on them."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import sample
from deblur.checkpoints import save_presets, update_index
from deblur.data.files import images
from deblur.models.networks.unet import Denoiser, UNetPredictor
from deblur.settings import SamplingSettings
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


@dataclass
class Run:
    """What a command left: its exit code, what it said, the folder it wrote to, and the shapes its networks saw."""

    code: int
    said: str
    folder: Path
    seen: dict[str, list[tuple]]

    @property
    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.suffix == ".png"}

    @property
    def entry(self) -> dict:
        """What the manifest says of the first photograph."""
        return next(iter(json.loads((self.folder / "manifest.json").read_text()).values()))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Four checkpoints, and two photographs of one size."""
    folder = tmp_path_factory.mktemp("flags")
    tiny_pipeline().save_pretrained(folder / "checkpoint")
    perceptual = SamplingSettings("ddpm", steps=3, blend=0.7)
    save_presets(folder / "checkpoint", {"balanced": SamplingSettings(steps=2), "perceptual": perceptual})
    tiny_pipeline(residual_scale=0.3).save_pretrained(folder / "other")
    generator = torch.Generator().manual_seed(0)
    for name in "ab":
        images.write(folder / "photos" / f"{name}.png", torch.rand(3, 72, 150, generator=generator))
    drifting = tiny_pipeline(residual_scale=1.0)
    nn.init.constant_(drifting.denoiser.unet.head.bias, 0.5)
    drifting.save_pretrained(folder / "drifting")
    tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True)).save_pretrained(folder / "calibrated")
    update_index(folder / "calibrated", error_curve={"estimate": [1.0], "mean": [2.0], "bound": [4.0]})
    return folder


@pytest.fixture(scope="module")
def known():
    """Runs that several flags are compared with, by their command lines."""
    return {}


@pytest.fixture
def called(place, tmp_path, monkeypatch, capsys):
    """A function that runs a script in this process, with what it writes going to a folder of its own."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("CXX", "no-such-compiler")
    made = []

    def call(script, *flags):
        seen = {"predictor": [], "denoiser": []}

        def look(module, given, output):
            name = {UNetPredictor: "predictor", Denoiser: "denoiser"}.get(type(module))
            if name:
                seen[name].append(tuple(given[0].shape))

        given = list(map(str, flags))
        if "--output" not in given:
            given += ["--output", str(tmp_path / f"out{len(made)}")]
        made.append(given)
        hook = nn.modules.module.register_module_forward_hook(look)
        try:
            code = script(given)
        finally:
            hook.remove()
        return Run(code, "".join(capsys.readouterr()), Path(given[given.index("--output") + 1]), seen)

    return call
