"""ONNX folders: that they restore as the checkpoint that they were made of, on each engine, and what is refused."""

import json
import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image

import evaluate
import sample
from deblur.checkpoints import checkpoint_hash
from deblur.data.files import images
from deblur.hub import CheckpointError
from deblur.models.networks.base import Cascade
from deblur.models.networks.maxim import Maxim
from deblur.models.networks.nafnet import SlimPredictor
from deblur.onnx import files as onnx_files
from deblur.onnx.graphs import psnr
from deblur.pipeline import load_pipeline
from deblur.settings import SamplingSettings
from deblur.storage import FolderInUse
from deblur.tools.export_onnx import TargetDevice, export_onnx
from deblur.tools.export_onnx import engines as compared_on
from tests import processes
from tests.conftest import ROOT, fresh
from tests.deblur.onnx.conftest import TILE, image
from tests.tiny import RICH, TwoStages, tiny_pipeline

onnx = pytest.importorskip("onnx")
pytestmark = [pytest.mark.commands, pytest.mark.xdist_group("onnx")]  # exports take long, so they are made once
SETTINGS = SamplingSettings("ddpm", steps=3)


def restored(folder, blurry, provider=None):
    pipeline = load_pipeline(str(folder), precision="fp32", provider=provider)
    return pipeline(blurry, replace(SETTINGS, blend=float(pipeline.denoiser is not None)), seed=1, output_type="pt")


@pytest.mark.parametrize(
    ("kind", "size"), [("tiles", (150, 201)), ("tiles", (96, 250)), ("any", (37, 53)), ("coloured_any", (37, 53))]
)
def test_a_folder_restores_as_its_checkpoint(place, kind, size, provider):
    # Tiles of a network whose reach is known are exact, so the whole image is the measure of both.
    blurry = image(*size)
    theirs = restored(place / {"tiles": "slim", "any": "alone", "coloured_any": "coloured"}[kind], blurry)
    ours = restored(place / kind, blurry, provider)
    assert (ours.images - theirs.images).abs().max() < 1e-4 < (ours.images - blurry).abs().mean()
    assert (ours.expected_error - theirs.expected_error).abs().max() < 1e-4
    side = TILE if kind == "tiles" else None
    assert ours.tiles == ({"predictor": side} if kind == "any" else {"predictor": side, "denoiser": side})


def test_the_halves_of_a_gate_are_convolutions_of_their_own(place):
    # OpenVINO would copy what a Split gives, a seventh of the time of pretrained/text; NNCF needs stored weights.
    graph = onnx.load(place / "coloured_any" / "predictor" / onnx_files.GRAPH).graph
    stored = {tensor.name for tensor in graph.initializer}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert all(stored.issuperset(node.input[1:]) for node in convolutions)
    computed = {name for node in convolutions for name in node.output}
    assert not [node for node in graph.node if node.op_type in ("Split", "Slice") and computed & set(node.input)]


def test_half_precision_and_batches(place, provider):
    blurry = torch.cat([image(120, 130), image(120, 130).flip(-1)])
    half = load_pipeline(str(place / "half"), provider=provider)
    theirs = load_pipeline(str(place / "alone"), precision="fp32")
    assert 60 < psnr(half.predict(blurry).images, theirs.predict(blurry).images) < 120
    assert torch.equal(half.predict(blurry).x_init[:1], half.predict(blurry[:1]).x_init)
    graph = onnx.load(place / "half" / "predictor" / "model.onnx").graph
    assert {t.data_type for t in graph.initializer if len(t.dims) == 4} == {onnx.TensorProto.FLOAT16}


def test_openvino_computes_a_float_graph_in_bf16_where_the_processor_has_it(place):
    has_bf16 = "BF16" in pytest.importorskip("openvino").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    found = {name: load_pipeline(str(place / "any"), precision=name) for name in ("auto", "bf16", "fp32")}
    assert [one.precision for one in found.values()] == ["bf16" if has_bf16 else "fp32", "bf16", "fp32"]
    assert {one.place for one in found.values()} == {"openvino cpu"}  # the default where it is installed
    rounded, exact = (found[name].predict(image(60, 70)).x_init for name in ("bf16", "fp32"))
    difference = (rounded - exact).abs().max()
    assert (1e-4 < difference < 0.05) if has_bf16 else difference < 0.05


LOADED_AND_FREED = """
import os, signal, sys
from deblur.pipeline import load_pipeline
first, second = (load_pipeline(sys.argv[1], precision="fp32") for _ in range(2))
del first, second
signal.signal(signal.SIGCHLD, lambda *_: print("handled"))
os.kill(os.getpid(), signal.SIGCHLD)
"""


def test_a_signal_is_handled_after_checkpoints_in_openvino_were_freed(place):
    pytest.importorskip("openvino")
    ended = processes.run("-c", [LOADED_AND_FREED, place / "tiles"])
    assert (ended.returncode, ended.stdout.strip()) == (0, "handled"), ended.stderr


def test_without_openvino_onnxruntime_is_the_default(place, monkeypatch):
    monkeypatch.setattr(onnx_files.importlib.util, "find_spec", lambda name: None if name == "openvino" else name)
    assert load_pipeline(str(place / "any")).place == "onnxruntime cpu"
    with pytest.raises(CheckpointError, match=r"needs the package openvino: pip install -r requirements-extra.txt"):
        load_pipeline(str(place / "any"), provider="openvino")


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("target", get_args(TargetDevice))
def test_an_export_is_compared_on_each_engine_that_it_may_meet_here(monkeypatch, target, there):
    monkeypatch.setattr(onnx_files.importlib.util, "find_spec", lambda name: name if there else None)
    expected = ("cpu", "openvino") if target == "cpu" and there else ("cpu",)
    assert compared_on(target) == expected


def test_what_is_smaller_than_a_tile_is_padded_by_its_border(place):
    small = image(40, 60)
    ours = load_pipeline(str(place / "tiles"), precision="fp32").predictor(small)
    wide = torch.nn.functional.pad(small, (0, TILE - 60, 0, TILE - 40), mode="replicate")
    theirs = load_pipeline(str(place / "slim"), precision="fp32").predictor(wide)
    assert [output.shape for output in ours] == [(1, 3, 40, 60), (1, 1, 40, 60)]
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other[..., :40, :60]).abs().max() < 1e-5


def test_the_folder_says_what_it_is(place):
    index = json.loads((place / "tiles" / "model_index.json").read_text())
    before = json.loads((place / "slim" / "model_index.json").read_text())
    assert index["predictor"][1] == index["denoiser"][1] == "OnnxNetwork"
    for kept in ("presets", "residual_scale", "scale_kind", "scheduler", "sigma_min", "sigma_max"):
        assert index[kept] == before[kept]
    assert (place / "tiles" / "README.md").read_text() == "the card"
    for part in ("predictor", "denoiser"):
        ours, theirs = ((place / folder / part / "config.json").read_text() for folder in ("tiles", "slim"))
        assert ours == theirs
    assert not list((place / "tiles").rglob("*.safetensors"))
    assert len({checkpoint_hash(str(place / name)) for name in ("tiles", "any", "slim")}) == 3


def test_an_export_for_tensorrt_has_tiles_of_512_pixels(place, tmp_path):
    export_onnx(str(place / "alone"), str(tmp_path / "trt"), target_device="tensorrt")
    assert onnx_files.read_facts(tmp_path / "trt" / "predictor").side == 512


def test_graphs_do_not_say_where_they_were_made(place):
    for graph in place.rglob("model.onnx"):
        assert str(ROOT).encode() not in graph.read_bytes()
        assert b"slim_unet.py" not in graph.read_bytes()


def test_sample_takes_a_folder(place, tmp_path, capsys):
    images.write(tmp_path / "photo.png", image(100, 110)[0])
    words = [str(tmp_path / "photo.png"), "--checkpoint", str(place / "tiles"), "--output", str(tmp_path / "out")]
    assert sample.main([*words, "--provider", "cpu", "--compare"]) == 0
    assert "onnxruntime cpu, fp32; predictor in tiles of 96" in capsys.readouterr().out
    [entry] = json.loads((tmp_path / "out" / "manifest.json").read_text()).values()
    assert (entry["precision"], entry["device"]) == ("fp32", "onnxruntime cpu")
    assert entry["tiles"] == {"predictor": 96, "denoiser": 96}
    assert sample.main([*words, "--provider", "cpu", "--compare"]) == 0
    assert "1 done before" in capsys.readouterr().out
    for flags, said in (
        (["--tile", "64"], "takes tiles of 96 pixels and no others"),
        (["--compile"], "nothing to compile"),
        (["--provider", "cpu", "--precision", "bf16"], "in fp32: omit the precision bf16 or give --provider openvino"),
        (["--device", "mps"], "device mps cannot be used here"),
        (["--checkpoint", str(place / "slim"), "--provider", "cpu"], "is no ONNX folder"),
        (["--provider", "tensorrt"], "cannot run on tensorrt: pip install onnxruntime-gpu"),
    ):
        assert sample.main([*words, *flags, "--overwrite"]) == 2
        assert said in capsys.readouterr().err


def test_evaluate_takes_a_folder(place, tmp_path):
    for side, name in (("blur", "a"), ("sharp", "a")):
        images.write(tmp_path / "pairs" / side / f"{name}.png", image(100, 110)[0])
    words = ["--checkpoint", str(place / "tiles"), "--data", str(tmp_path / "pairs"), "--metrics", "psnr"]
    evaluate.command([*words, "--output", str(tmp_path / "out"), "--provider", "cpu"])
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert json.dumps(found).count('"onnxruntime cpu"') == 1
    assert "predictor" in json.dumps(found)
    with pytest.raises(ValueError, match="an ONNX folder in fp32: omit the precision bf16"):
        evaluate.command([*words, "--output", str(tmp_path / "other"), "--provider", "cpu", "--precision", "bf16"])


def test_what_cannot_be_exported_is_one_sentence(place, tmp_path):
    for said, source, options in (
        ("is an ONNX folder already", "tiles", {}),
        ("give --tile, a multiple of 4 of at least", "slim", {"tile": 98}),
        ("give --tile, a multiple of 4 of at least", "slim", {"tile": 16}),
        ("go together", "slim", {"precision": "int8"}),
        ("go together", "slim", {"calibration": "photos"}),
    ):
        with pytest.raises(CheckpointError, match=said):
            export_onnx(str(place / source), str(tmp_path / "out"), **options)
    with pytest.raises(FolderInUse, match="not an empty folder"):
        export_onnx(str(place / "slim"), str(place / "tiles"))
    assert not list(tmp_path.iterdir())


def test_without_the_packages_a_sentence_names_the_extra(place, monkeypatch):
    real = onnx_files.importlib.util.find_spec
    for missing, use in (
        ("onnx", lambda: load_pipeline(str(place / "tiles"))),
        ("onnxruntime", lambda: load_pipeline(str(place / "tiles"), provider="cpu")),
        ("onnxscript", lambda: export_onnx(str(place / "slim"), "nowhere")),
        ("nncf", lambda: export_onnx(str(place / "slim"), "nowhere", "int8", calibration="pairs")),
    ):
        monkeypatch.setattr(onnx_files.importlib.util, "find_spec", lambda name, gone=missing: name != gone or None)
        with pytest.raises(CheckpointError, match=f"needs the package {missing}: pip install -r requirements-extra"):
            use()
    monkeypatch.setattr(onnx_files.importlib.util, "find_spec", real)


PROVIDERS = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("kind", ["tiles", "half"])
def test_a_provider_restores_as_the_cpu(place, provider, kind):
    if PROVIDERS[provider] not in pytest.importorskip("onnxruntime").get_available_providers():
        pytest.skip(f"needs a CUDA device with onnxruntime's provider {provider}")
    blurry = torch.rand(1, 3, 120, 100, generator=torch.Generator().manual_seed(0))
    ours, theirs = (load_pipeline(str(place / kind), provider=one).predict(blurry).images for one in (provider, "cpu"))
    assert psnr(ours, theirs) > 50
    if provider == "tensorrt":
        engines = place / kind / "predictor" / "engines"
        before = {file.name: file.stat().st_mtime_ns for file in engines.glob("*.engine")}
        assert before
        assert load_pipeline(str(place / kind), provider=provider).predict(blurry).images.shape == ours.shape
        assert {file.name: file.stat().st_mtime_ns for file in engines.glob("*.engine")} == before


def test_maxim_is_not_quantised(tmp_path):
    tiny_pipeline(Cascade(Maxim(stages=1), SlimPredictor((8,), (1,), images=2))).save_pretrained(tmp_path / "maxim")
    with pytest.raises(CheckpointError, match="holds MAXIM, which INT8 makes slower and worse: omit --precision int8"):
        export_onnx(str(tmp_path / "maxim"), str(tmp_path / "int8"), "int8", calibration="pairs")
    assert not (tmp_path / "int8").exists()


@pytest.mark.parametrize("stages", [None, 1])
def test_a_graph_has_the_stages_that_were_asked_for_whatever_a_preset_says(tmp_path, stages):
    pipeline = tiny_pipeline(TwoStages())
    pipeline.denoiser = None
    pipeline.register_to_config(presets={"balanced": {"blend": 0.0}, "fast": {"blend": 0.0, "stages": 1}})
    pipeline.register_to_config(working_size={"smallest": 80, "stages": 1})
    pipeline.save_pretrained(tmp_path / "staged")
    export_onnx(str(tmp_path / "staged"), str(tmp_path / "graph"), stages=stages, classes=RICH)
    exported = load_pipeline(str(tmp_path / "graph"), provider="cpu")
    assert exported.working_size.smallest == 80
    theirs, other = (pipeline.predict(image(96, 100), stages=n).images for n in (stages, 1 if stages is None else 2))
    for preset in ("balanced", "fast"):
        ours = exported(image(96, 100), preset, output_type="pt").images
        assert (ours - theirs).abs().max() < 1e-5 < (ours - other).abs().max()
    with pytest.raises(ValueError, match="stages is 1, and an ONNX folder has those of its export: export the check"):
        exported.predict(image(96, 100), stages=1)
    for wrong in (0, 3):
        with pytest.raises(ValueError, match=f"stages is {wrong}, and this checkpoint's predictor has 2: give 1 to 2"):
            export_onnx(str(tmp_path / "staged"), str(tmp_path / "other"), stages=wrong, classes=RICH)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("checkpoint", ["any", "coloured_any"])
def test_the_python_of_the_page_predicts_without_pytorch_as_the_pipeline_does(place, tmp_path, checkpoint):
    """That of docs/deployment.md."""
    page = (ROOT / "docs" / "deployment.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "deployed").mkdir()
    (tmp_path / "deployed" / "lite").symlink_to(place / checkpoint)
    images.write(tmp_path / "photo.jpg", torch.rand(3, 37, 54))
    done = fresh(f"{code}\nimport sys\nprint({{'torch', 'deblur'}} & set(sys.modules))", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr
    pipeline = load_pipeline(str(place / checkpoint), provider="cpu")
    theirs = pipeline.predict(images.read(tmp_path / "photo.jpg")[None]).images[0]
    ours = np.int64(Image.open(tmp_path / "restored.png")).transpose(2, 0, 1)
    assert np.abs(ours - (255 * theirs).round().numpy()).max() <= 1
