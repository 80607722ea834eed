"""How many calls lead from the scripts to the denoiser."""

import sysconfig
import traceback
from pathlib import Path

import pytest
import torch

import evaluate
import sample
from deblur.data.files import images
from deblur.models.networks.unet import Denoiser
from tests.conftest import ROOT
from tests.tiny import tiny_pipeline

LIBRARIES = sysconfig.get_path("purelib")  # inside ROOT, where README has the environment in .venv


@pytest.mark.parametrize(("script", "most"), [("sample", 12), ("evaluate", 8)])
@pytest.mark.filterwarnings("ignore")
def test_few_calls_lead_from_a_script_to_the_denoiser(script, most, tmp_path, monkeypatch):
    for side in ("blur", "sharp"):
        images.write(tmp_path / "pairs" / side / "a.png", torch.rand(3, 64, 64))
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "grid.yaml").write_text("settings: [{steps: 1}]")
    stacks, forward = [], Denoiser.forward

    def ours(frame):
        return Path(frame.filename).is_relative_to(ROOT) and not Path(frame.filename).is_relative_to(LIBRARIES)

    def recorded(self, *inputs):
        stacks.append([frame for frame in traceback.extract_stack() if ours(frame)])
        return forward(self, *inputs)

    monkeypatch.setattr(Denoiser, "forward", recorded)
    common = ["--checkpoint", str(tmp_path / "checkpoint"), "--output", str(tmp_path / "out"), "--device", "cpu"]
    if script == "sample":
        assert sample.main([str(tmp_path / "pairs" / "blur" / "a.png"), *common, "--steps", "1"]) == 0
    else:
        evaluate.command(["--data", str(tmp_path / "pairs"), "--grid", str(tmp_path / "grid.yaml"), *common])
    files = [Path(frame.filename).name for frame in stacks[0]]
    after_the_command = len(files) - files[::-1].index(f"{script}.py")
    calls = [frame.name for frame in stacks[0][after_the_command:]]
    assert len(calls) <= most, calls
