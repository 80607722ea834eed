"""The benchmarks on tiny images: that they measure, merge and say what they ran on, not what comes out."""

import json
import subprocess
import sys
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path

import pytest
import torch
from diffusers import DDPMScheduler
from matplotlib.figure import Figure

from benchmarks import curves, deployment
from benchmarks.record import machine, write_json
from models.pipeline import DeblurPipeline
from models.unet import UNetPredictor
from tests.tiny import tiny_pipeline

ROOT = Path(__file__).parents[1]


def merged(module: str, output: Path, before: dict, *flags: str) -> dict:
    """What a benchmark leaves of a file that held other cases already."""
    output.write_text(json.dumps({"cases": before}))
    command = [sys.executable, "-m", f"benchmarks.{module}", *flags, "--quick", "true", "--output", output]
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
    assert new["seconds"] > 0 and new["peak_mib"] > 100 and new["gflop_step"] > 0 and new["commit"] and new["device"]
    assert found["times_as_fast_as_plain_fp32"]["1/bf16-channels_last/eager"] > 1


@pytest.mark.slow
def test_sampling_measures_a_predictor_alone(tmp_path):
    scheduler = DDPMScheduler(num_train_timesteps=1, trained_betas=[0.5])
    DeblurPipeline(UNetPredictor(8, (1, 2), 1), None, scheduler).save_pretrained(tmp_path / "checkpoint")
    case, flags = "predictor/fp32-nchw/eager", (str(tmp_path / "checkpoint"), "--repeats", "1")
    found = merged("sampling", tmp_path / "sampling.json", {}, *flags, "--cases", case)
    assert found["cases"][case]["gflop_predictor"] > 0 and found["cases"][case]["gflop_step"] == 0


def test_a_record_says_where_it_was_made_and_is_whole(tmp_path):
    file = tmp_path / "new" / "result.json"
    facts = machine("cpu", 3)
    write_json(file, facts)
    assert json.loads(file.read_text()) == facts
    assert facts["device"] and facts["cores"] >= 1 and facts["threads"] == 3 and facts["torch"] == torch.__version__
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(file, {"first": 1, "second": object()})
    assert json.loads(file.read_text()) == facts and list(file.parent.iterdir()) == [file]


def test_the_deployment_benchmark_measures_the_engines(tmp_path, monkeypatch):
    monkeypatch.setattr(deployment, "WIDTH", 96)
    monkeypatch.setattr(deployment, "HEIGHT", 64)
    where = {"threads": torch.get_num_threads(), "work": str(tmp_path / "work"), "output": str(tmp_path)}
    engines = "torch fp32,torch bf16"
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    deployment.main(str(tmp_path / "checkpoint"), "speed", engines, repeats=1, **where)
    [cases] = json.loads((tmp_path / "deployment.json").read_text())["checkpoints"].values()
    assert cases["speed"].keys() == {"predictor", "restoration"}
    assert all(engines["torch fp32"]["processor_seconds"] > 0 for engines in cases["speed"].values())
    assert cases["speed"]["predictor"]["torch bf16"]["torch bf16, times as fast"] == 1
    assert "| torch fp32 |" in (tmp_path / "deployment.md").read_text() and cases["runs"]["speed"]["openvino"]
    deployment.main(str(tmp_path / "checkpoint"), "speed", "torch fp32", repeats=1, **where, name="avx2")
    assert "against torch fp32 |" in (tmp_path / "avx2.md").read_text()  # a processor without bf16
    with pytest.raises(ValueError, match="engine torch is none of torch fp32, "):
        deployment.main("pretrained/lite", engines="torch", **where)


@pytest.mark.slow
def test_training_measures_and_merges(tmp_path):
    before = {"demo/plain": {"crops_per_s": 0.001}}
    cases = ["demo/nchw", "small/nchw", "base/nchw"]
    found = merged("training", tmp_path / "training.json", before, "--steps", "2", "--cases", ",".join(cases))
    new = found["cases"]["demo/nchw"]
    assert set(found["cases"]) == {"demo/plain", *cases} and found["times_as_fast_as_plain"]["demo/nchw"] > 1
    assert 0 < new["mfu"] < 1 and 0 <= new["data_wait"] <= 1 and new["peak_gib"] > 0.1 and new["commit"]


def test_curves_are_drawn_from_an_evaluation(tmp_path):
    def row(name, psnr, lpips, **fields):
        fields = {"steps": 1, "blend": 1.0, "start": None, "average": False} | fields if fields else {}
        scores = {"psnr": {"mean": psnr}, "lpips": {"mean": lpips}}
        return {"setting": name, "fields": fields, "images": 2, "metrics": scores}

    rows = [row("blurry", 24, 0.4), row("predictor", 26, 0.3), row("sharpened 1", 25, 0.25), row("noised 2", 25, 0.4)]
    rows += [row("half", 25.5, 0.25, blend=0.5), row("all", 25, 0.2, blend=1.0), row("two", 25, 0.3, steps=2)]
    rows += [row("kept", 25.6, 0.27, blend=0.5, keep_sharp=5.0), row("part", 25.4, 0.3, blend=0.5, steps=2)]
    controls = {"rows": {"sharpened": ["sharpened 1"], "noised": ["noised 2"]}}
    axes = Figure().subplots()
    curves.draw(axes, {"rows": rows, "controls": controls, "metrics": ["psnr", "lpips"]})
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines["one step, by blend"] == [[26, 0.3], [25.5, 0.25], [25, 0.2]]
    assert lines["sharpened"] == [[26, 0.3], [25, 0.25]] and lines["noised"] == [[26, 0.3], [25, 0.4]]
    assert [text.get_text() for text in axes.texts] == [
        "0.5",
        "1",
        "2 steps",
        "0.5, sharp kept",
        "0.5, 2 steps",
    ] and axes.yaxis_inverted()
    assert axes.get_xlim()[0] < 24
    far = Figure().subplots()
    curves.draw(far, {"rows": [row("blurry", 20, 0.4), *rows[1:]], "controls": controls})
    assert 20 < far.get_xlim()[0] < 25  # the settings fill the axes


def test_a_metric_is_drawn_by_steps_for_each_sampler():
    def row(name, score, **fields):
        return {"setting": name, "fields": fields, "metrics": {"psnr": {"mean": score}}}

    common = {"sampler": "ddim", "schedule": "training", "eta": 0.0, "blend": 1.0}
    rows = [row("predictor", 26), row("sharpened 1", 25), *(row("", 30 - n, **common, steps=n) for n in (8, 1))]
    rows += [row("", 24, **common | {"eta": 1.0}, steps=2), row("", None, **common, steps=3)]
    axes = Figure().subplots()
    curves.draw_steps(axes, {"rows": rows, "metrics": {"psnr": {"title": "PSNR (dB)"}}}, "psnr")
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines.pop("predictor")[0][1] == 26
    assert lines == {"ddim, training, eta 0": [[1, 29], [8, 22]], "ddim, training, eta 1": [[2, 24]]}


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py")))
def test_a_benchmark_replaces_what_the_documents_cite_only_if_it_is_told(name):
    main = getattr(import_module(f"benchmarks.{name}"), "main", None)
    arguments = signature(main).parameters if main else {}
    for argument in arguments.values():
        assert "benchmarks/results" not in str(argument.default)
    if "output" in arguments and arguments["output"].default not in (Parameter.empty, None):
        assert arguments["output"].default.startswith("runs/benchmarks")
