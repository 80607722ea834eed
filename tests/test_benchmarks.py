"""The benchmarks on tiny images."""

import json
import subprocess
import sys
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path

import pytest
import torch
from diffusers import DDPMScheduler

from deblur.checkpoints import load_pipeline
from deblur.models.networks.maxim import Maxim
from deblur.models.networks.unet import UNetPredictor
from deblur.pipeline import DeblurPipeline
from deblur.tools.benchmarks import deployment
from deblur.tools.benchmarks.record import machine, write_json
from tests.conftest import ROOT
from tests.tiny import tiny_pipeline

pytestmark = pytest.mark.commands


def merged(module: str, output: Path, before: dict, *flags: str) -> dict:
    """What a benchmark leaves of a file that held other cases already."""
    output.write_text(json.dumps({"cases": before}))
    command = [sys.executable, "-m", f"tools.benchmarks.{module}", *flags, "--quick", "true", "--output", output]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    return json.loads(output.read_text())


@pytest.mark.slow
def test_sampling_measures_and_merges(tmp_path):
    before = {"1/fp32-nchw/eager": {"seconds": 100.0}}
    pytest.importorskip("spandrel")
    flags = ["pretrained/lite", "--repeats", "1", "--cases", "1/bf16*/eager,nafnet"]
    found = merged("sampling", tmp_path / "sampling.json", before, *flags)
    new = found["cases"]["1/bf16-channels_last/eager"]
    assert set(found["cases"]) == {"1/fp32-nchw/eager", "1/bf16-channels_last/eager", "nafnet"}
    assert found["cases"]["nafnet"]["seconds"] > 0
    assert new["seconds"] > 0
    assert new["peak_mib"] > 100
    assert new["gflop_step"] > 0
    assert new["commit"]
    assert new["device"]
    assert found["times_as_fast_as_plain_fp32"]["1/bf16-channels_last/eager"] > 1


@pytest.mark.slow
def test_sampling_measures_a_predictor_alone(tmp_path):
    scheduler = DDPMScheduler(num_train_timesteps=1, trained_betas=[0.5])
    DeblurPipeline(UNetPredictor(8, (1, 2), 1), None, scheduler).save_pretrained(tmp_path / "checkpoint")
    case, flags = "predictor/fp32-nchw/eager", (str(tmp_path / "checkpoint"), "--repeats", "1")
    found = merged("sampling", tmp_path / "sampling.json", {}, *flags, "--cases", case)
    assert found["cases"][case]["gflop_predictor"] > 0
    assert found["cases"][case]["gflop_step"] == 0


def test_a_record_says_where_it_was_made_and_is_whole(tmp_path):
    file, facts = tmp_path / "new" / "result.json", machine("cpu", 3)
    write_json(file, facts)
    assert json.loads(file.read_text()) == facts
    assert facts["device"]
    assert facts["cores"] >= 1
    assert facts["threads"] == 3
    assert facts["torch"] == torch.__version__
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(file, {"first": 1, "second": object()})
    assert json.loads(file.read_text()) == facts
    assert list(file.parent.iterdir()) == [file]


def test_the_deployment_benchmark_measures_the_engines(tmp_path):
    where = {"threads": torch.get_num_threads(), "work": str(tmp_path / "work"), "output": str(tmp_path)}
    where |= {"width": 96, "height": 64}
    engines = "torch fp32,torch bf16"
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    deployment.main(str(tmp_path / "checkpoint"), "speed", engines, repeats=1, **where)
    [cases] = json.loads((tmp_path / "deployment.json").read_text())["checkpoints"].values()
    assert cases["speed"].keys() == {"predictor", "restoration"}
    assert all(engines["torch fp32"]["processor_seconds"] > 0 for engines in cases["speed"].values())
    assert cases["speed"]["predictor"]["torch bf16"]["torch bf16, times as fast"] == 1
    assert "| torch fp32 |" in (tmp_path / "deployment.md").read_text()
    assert "predictor, 96x64 |" in (tmp_path / "deployment.md").read_text()
    assert cases["runs"]["speed"]["openvino"]
    deployment.main(str(tmp_path / "checkpoint"), "speed", "torch fp32", repeats=1, **where, name="avx2")
    assert "against torch fp32 |" in (tmp_path / "avx2.md").read_text()  # a processor without bf16
    with pytest.raises(ValueError, match="engine torch is none of torch fp32, "):
        deployment.main("pretrained/lite", engines="torch", **where)


def test_the_deployment_benchmark_measures_some_of_the_stages(tmp_path):
    staged = tiny_pipeline(Maxim(stages=2))
    staged.denoiser = None
    staged.save_pretrained(tmp_path / "staged")
    where = {"work": str(tmp_path / "work"), "output": str(tmp_path), "width": 64, "height": 64, "repeats": 2}
    for stages in (None, 1):
        deployment.main(str(tmp_path / "staged"), "speed", "torch fp32", stages=stages, **where)
    [cases] = json.loads((tmp_path / "deployment.json").read_text())["checkpoints"].values()
    assert cases.keys() == {"speed", "speed, 1 stage", "runs"}
    assert "predictor, 1 stage, 64x64 |" in (tmp_path / "deployment.md").read_text()
    blurry, whole = torch.rand(1, 3, 64, 64), load_pipeline(str(tmp_path / "staged"), precision="fp32")
    for stages in (None, 1):
        measured = deployment.loaded({"torch fp32": str(tmp_path / "staged")}, stages)["torch fp32"]
        assert torch.equal(measured.predict(blurry).x_init, whole.predict(blurry, stages=stages).x_init)
    with pytest.raises(ValueError, match="--stages is for the case speed: give --cases speed"):
        deployment.main(str(tmp_path / "staged"), "speed,start", "torch fp32", stages=1, **where)


@pytest.mark.slow
def test_training_measures_and_merges(tmp_path):
    before, cases = {"demo/plain": {"crops_per_s": 0.001}}, ["demo/nchw", "finetune/nchw"]
    found = merged("training", tmp_path / "training.json", before, "--steps", "2", "--cases", ",".join(cases))
    new = found["cases"]["demo/nchw"]
    assert set(found["cases"]) == {"demo/plain", *cases}
    assert found["times_as_fast_as_plain"]["demo/nchw"] > 1
    assert 0 < new["mfu"] < 1
    assert 0 <= new["data_wait"] <= 1
    assert new["peak_gib"] > 0.1
    assert new["commit"]


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "tools" / "benchmarks").glob("*.py")))
def test_a_benchmark_replaces_what_the_documents_cite_only_if_it_is_told(name):
    main = getattr(import_module(f"deblur.tools.benchmarks.{name}"), "main", None)
    arguments = signature(main).parameters if main else {}
    for argument in arguments.values():
        assert "tools/benchmarks/results" not in str(argument.default)
    if "output" in arguments and arguments["output"].default not in (Parameter.empty, None):
        assert arguments["output"].default.startswith("runs/benchmarks")
