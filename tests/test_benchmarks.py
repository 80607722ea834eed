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

from deblur.models.networks.unet import UNetPredictor
from deblur.pipeline import DeblurPipeline
from deblur.storage import write_json
from deblur.tools.benchmarks.record import machine
from tests.conftest import ROOT

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
