import json
import shutil

import numpy as np
import pytest
import torch

from data import images
from deployment.export import parity, psnr
from deployment.quantise import between_the_ends, calibrate, quantise
from models.checkpoints import load_pipeline
from models.index import CheckpointError
from models.sampling import make_scheduler

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.xdist_group("onnx")
from onnx import TensorProto, helper  # noqa: E402


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Three pairs, soft and sharp."""
    folder = tmp_path_factory.mktemp("pairs")
    generator = torch.Generator().manual_seed(0)
    for name in "abc":
        sharp = torch.nn.functional.interpolate(torch.rand(1, 3, 14, 14, generator=generator), (112, 112))[0]
        images.write(folder / "sharp" / f"{name}.png", sharp)
        images.write(folder / "blur" / f"{name}.png", torch.nn.functional.avg_pool2d(sharp, 5, 1, 2))
    return str(folder)


@pytest.fixture
def folder(place, tmp_path):
    """A copy of the folder of fixed tiles, in float32."""
    shutil.copytree(place / "tiles", tmp_path / "deployed")
    return tmp_path / "deployed"


@pytest.fixture
def pipeline(place):
    return load_pipeline(str(place / "slim"), precision="fp32")


def kinds(graph):
    """Of each convolution, the types of its weights."""
    stored = {tensor.name: tensor.data_type for tensor in graph.initializer}
    made = {node.output[0]: node for node in graph.node}
    weights = {node.name: node.input[1] for node in graph.node if node.op_type == "Conv"}
    return {name: stored.get(w) or stored[made[w].input[0]] for name, w in weights.items()}


def test_int8_restores_and_keeps_its_ends_in_float(folder, pipeline, pairs, capsys):
    quantise(pipeline, folder, pairs, 0.5)
    for name in ("predictor", "denoiser"):
        types = kinds(onnx.load(folder / name / "model.onnx").graph)
        weights = list(types.values())
        # Two in each of three blocks, one down, one up; the rest are the first, the last and the details' Gaussian.
        assert weights[0] == TensorProto.FLOAT and weights.count(TensorProto.INT8) == 8
        assert json.loads((folder / name / "graph.json").read_text())["precision"] == "int8"
        assert "differs from PyTorch" in parity(getattr(pipeline, name), name, folder / name)
    ours = load_pipeline(str(folder))
    blurry = torch.nn.functional.interpolate(torch.rand(1, 3, 14, 14), (140, 100))
    restored = [one(blurry, output_type="pt").images for one in (ours, pipeline)]
    assert ours.precision == "int8" and 25 < psnr(*restored) < 80
    assert capsys.readouterr().out.count("dB lost on") == 2


def test_the_calibration_follows_the_sampler(folder, pipeline, pairs):
    found = calibrate(pipeline, folder, pairs)
    levels = [call[2].item() for call in found.inputs["denoiser"]]
    betas = torch.tensor(pipeline.scheduler.config.trained_betas, dtype=torch.float64)
    scheduler = make_scheduler(pipeline.default_settings, betas)
    assert levels == pytest.approx(3 * scheduler.alphas_cumprod[scheduler.timesteps].tolist())
    assert len(found.inputs["predictor"]) == 3 and found.blurry[0].shape == (1, 3, 96, 96)
    _, blurry, _, x_init, _ = found.inputs["denoiser"][0]
    assert torch.equal(blurry, found.blurry[0] * 2 - 1)
    assert torch.allclose(x_init, pipeline.predictor(blurry)[:, :3], atol=1e-6)


def test_a_loss_that_cannot_be_kept_is_refused_after_every_layer_was_tried(folder, pipeline, pairs):
    before = (folder / "predictor" / "model.onnx").read_bytes()
    with pytest.raises(CheckpointError, match=r"the predictor in INT8 loses .* dB with every convolution in float"):
        quantise(pipeline, folder, pairs, -1.0)
    assert (folder / "predictor" / "model.onnx").read_bytes() == before


def test_what_lies_between_the_ends():
    def conv(source, target):
        weight = helper.make_tensor(f"w_{target}", TensorProto.FLOAT, [1, 1, 1, 1], np.ones(1, np.float32))
        return helper.make_node("Conv", [source, weight.name], [target], name=target), weight

    steps = [conv("y", "stem"), conv("stem", "a"), conv("gated", "b"), conv("sum", "head"), conv("y", "aside")]
    others = [
        helper.make_node("Sigmoid", ["a"], ["sigmoid"], name="sigmoid"),
        helper.make_node("Mul", ["a", "sigmoid"], ["gated"], name="gated"),
        helper.make_node("Add", ["b", "stem"], ["sum"], name="sum"),
        helper.make_node("Add", ["head", "aside"], ["output"], name="output"),
    ]
    nodes = [steps[0][0], steps[1][0], *others[:2], steps[2][0], others[2], steps[3][0], steps[4][0], others[3]]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("y", 1, [1, 1, 4, 4])], [value("output", 1, [1, 1, 4, 4])], [w for _, w in steps]
    )
    assert between_the_ends(helper.make_model(graph)) == {"a", "sigmoid", "gated", "b"}
