"""The benchmarks on tiny images, and gates and ratios of denoisers whose errors are known."""

import json
import subprocess
import sys
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path

import pytest
import torch
from diffusers import DDPMScheduler
from torch import nn

from deblur.checkpoints import load_pipeline
from deblur.models.diffusion import residual
from deblur.models.networks.base import IdentityPredictor
from deblur.models.networks.maxim import Maxim
from deblur.models.networks.unet import UNetPredictor
from deblur.pipeline import DeblurPipeline
from deblur.settings import SamplingSettings
from deblur.tools.benchmarks import deployment
from deblur.tools.benchmarks.posterior import draw, ratios, reliability
from deblur.tools.benchmarks.record import machine, write_json
from deblur.tools.benchmarks.refiner_gates import refiner_gates
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


SIDE, SIGMAS = 48, (0.5, 4.0)


class Oracle(nn.Module):
    """Puts out `share` of the true r_0, and noise of a size in the left half, where the residual is flat."""

    prediction_type, receptive_field, stride, device = "sample", 0, 1, torch.device("cpu")

    def __init__(self, r_0, share=1.0, grain=0.0):
        super().__init__()
        self.r_0, self.share, self.grain = r_0, share, grain

    def forward(self, r_t, blurry, alpha_bar, x_init, s):
        noise = torch.randn(r_t.shape, generator=torch.Generator().manual_seed(3))
        noise[..., SIDE // 2 :] = 0
        return self.share * self.r_0 + self.grain * noise


@pytest.fixture
def pair():
    """blurry, sharp, and their difference in [-1, 1]: tiny in the left half, large in the right."""
    generator = torch.Generator().manual_seed(0)
    blurry = 0.3 + 0.4 * torch.rand(3, SIDE, SIDE, generator=generator)
    missed = 0.02 * torch.randn(3, SIDE, SIDE, generator=generator)
    missed[..., : SIDE // 2] *= 0.05
    return blurry, blurry + missed, 2 * missed


def gates(pair, share, grain=0.0, blend=1.0, scale=0.04):
    blurry, sharp, missed = pair
    scheduler = DDPMScheduler(num_train_timesteps=10, trained_betas=[0.5] * 10)
    s = torch.tensor(scale).view(1, -1, 1, 1) * torch.ones(1, 1, SIDE, SIDE)
    denoiser = Oracle(residual(missed[None], 0.0, s), share, grain)
    pipeline = DeblurPipeline(IdentityPredictor(), denoiser, scheduler, scale)
    return refiner_gates(pipeline, [("one", blurry, sharp)], SIGMAS, SamplingSettings(steps=2, blend=blend))


@pytest.mark.parametrize("scale", [0.04, [0.06, 0.0, 0.0]], ids=["rgb", "luma"])
def test_a_perfect_denoiser_has_no_error_and_all_the_power(pair, scale):
    found = gates(pair, share=1.0, scale=scale)
    for sigma in SIGMAS:
        assert found[f"flat_error/{sigma:g}"] == pytest.approx(0, abs=1e-4)
        assert found[f"edge_error/{sigma:g}"] == pytest.approx(0, abs=1e-6)
        assert found[f"edge_slope/{sigma:g}"] == pytest.approx(1, abs=1e-4)
    assert found["edge_power"] == pytest.approx(1, abs=1e-2)


def test_a_shrunken_estimate_shows_in_slope_error_and_power(pair):
    found = gates(pair, share=0.5)
    assert found["edge_slope/4"] == pytest.approx(2, rel=1e-4)
    assert found["edge_error/4"] == pytest.approx(0.25, rel=1e-4)
    assert found["edge_power"] == pytest.approx(0.25, rel=1e-2)


def test_noise_in_flat_regions_shows_there_alone(pair):
    # The true residual is of size .05 there, in units of s; noise of .1 has four times its power.
    found = gates(pair, share=0.0, grain=0.1)
    assert found["flat_error/4"] == pytest.approx(5, rel=0.1)
    assert found["edge_error/4"] == pytest.approx(1, rel=1e-2)
    assert found["flat_power"] == pytest.approx(4, rel=0.1)


def test_without_refinement_there_is_no_power(pair):
    assert "edge_power" not in gates(pair, share=1.0, blend=0.0)


def gaussian(images=200, samples=16, spread=1.0):
    """Ground truths, predictions that are the posterior's mean, and samples, exact where `spread` is 1."""
    generator = torch.Generator().manual_seed(0)
    size = 0.01 + 0.1 * torch.rand(images, 1, 3, 8, 8, generator=generator)
    noise = torch.randn(images, samples + 1, 3, 8, 8, generator=generator) * size
    predictions = torch.rand(images, 3, 8, 8, generator=generator)
    return predictions, predictions[:, None] + spread * noise[:, 1:], predictions + noise[:, 0]


def test_exact_samples_have_the_ideal_ratios_and_lie_on_the_diagonal():
    predictions, samples, sharp = gaussian()
    found = ratios(predictions, samples, sharp)
    assert list(found) == [1, 2, 4, 8, 16]
    for n, ratio in found.items():
        assert abs(ratio - (1 + 1 / n)) < 0.02
    for one in reliability(samples, sharp)[2:-2]:  # sorting by an estimate favours its own errors at the ends
        assert 0.85 < one["error"] / one["deviation"] < 1.15


def test_too_small_a_spread_is_seen(tmp_path):
    predictions, samples, sharp = gaussian(spread=0.5)
    assert abs(ratios(predictions, samples, sharp)[1] - 1.25) < 0.02
    bins = reliability(samples, sharp)
    assert all(one["error"] > 1.5 * one["deviation"] for one in bins)
    draw(tmp_path / "plot.png", bins)
    assert (tmp_path / "plot.png").stat().st_size > 5000
