import math
import re
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from deblur.data.files import images
from deblur.hub import CheckpointError
from deblur.onnx.files import read_facts
from deblur.onnx.graphs import OneOutput, examples, parity, psnr
from deblur.onnx.network import OnnxNetwork
from deblur.pipeline import load_pipeline
from deblur.tools.export_onnx import calibration_crops, export_onnx
from tests import processes
from tests.deblur.onnx.conftest import TILE

onnx = pytest.importorskip("onnx")
pytest.importorskip("nncf")
pytestmark = [pytest.mark.commands, pytest.mark.xdist_group("onnx")]
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from deblur.onnx.quantise import (  # noqa: E402
    calibration_inputs,
    layers,
    make_signed,
    nodes_in_float,
    quantise,
    require_small_loss,
    restored,
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Three pairs, soft and sharp."""
    folder, generator = tmp_path_factory.mktemp("pairs"), torch.Generator().manual_seed(0)
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


def test_int8_restores_and_names_what_stays_in_float(folder, pipeline, pairs, capsys):
    quantise(pipeline, folder, partial(calibration_crops, pairs), 0.5, "cpu")
    said, told = capsys.readouterr().out, {}
    for name, kept in (("predictor", 0), ("denoiser", 4)):
        found = layers(onnx.load(folder / name / "model.onnx"))
        # Two convolutions in each of three blocks, one down, one up, the first and the last; the details' Gaussian.
        assert int(found.split()[0]) >= 10
        assert f"layers in INT8, {kept} in float" in found
        assert f"dB lost on 3 crops; {found}\n" in said
        told[name] = float(re.search(rf"{name}: (\S+) dB lost", said)[1])
        assert read_facts(folder / name).precision == "int8"
        assert "differs from PyTorch" in parity(getattr(pipeline, name), name, folder / name, "cpu")
        crops = calibration_crops(pairs, TILE)
        losses = []
        for network in (getattr(pipeline, name), OnnxNetwork(folder / name, name, "cpu")):
            errors = [(restored(pipeline, name, blurry, network) - sharp).square().mean() for blurry, sharp in crops]
            losses.append(10 * torch.stack(errors).log10().mean().item())
        assert told[name] == pytest.approx(losses[1] - losses[0], abs=2e-3)
    assert "4 in float: embedding.dense1.weight, " in said
    blurry = torch.nn.functional.interpolate(torch.rand(1, 3, 14, 14), (140, 100))
    theirs = pipeline(blurry, output_type="pt").images
    for provider, precision in (("cpu", "auto"), ("openvino", "auto"), ("openvino", "fp32")):
        ours = load_pipeline(str(folder), provider=provider, precision=precision)
        assert 25 < psnr(ours(blurry, output_type="pt").images, theirs) < 80


def test_nncf_sends_no_usage_statistics():
    code = "import os; os.environ.pop('NNCF_CI', None); import deblur.onnx.quantise;"
    code += "from nncf.telemetry.wrapper import NNCFTelemetry, telemetry; print(isinstance(telemetry, NNCFTelemetry))"
    done = processes.run("-c", [code])
    assert done.stdout.splitlines()[-1:] == ["False"], done.stderr


def test_int8_clips_nothing_that_one_of_the_crops_held(folder, pipeline, tmp_path):
    generator = torch.Generator().manual_seed(1)
    for number, light in enumerate((0.02, 0.02, 0.02, 0.02, 1.0)):
        image = light * torch.rand(3, 112, 112, generator=generator)
        for side in ("blur", "sharp"):
            images.write(tmp_path / "dark" / side / f"{number}.png", image)
    pipeline.denoiser = None
    quantise(pipeline, folder, partial(calibration_crops, str(tmp_path / "dark")), 50.0, "cpu")
    bright = image[None, :, :96, :96]
    ours = OnnxNetwork(folder / "predictor", "predictor", "cpu")(bright)[0]
    assert (ours - pipeline.predictor(bright)[0]).abs().max() < 0.1


def test_int8_for_tensorrt_is_symmetric_and_signed(folder, pipeline, pairs):
    quantise(pipeline, folder, partial(calibration_crops, pairs), 0.5, "tensorrt")
    for name in ("predictor", "denoiser"):
        graph = onnx.load(folder / name / "model.onnx").graph
        stored = {tensor.name: tensor for tensor in graph.initializer}
        zeros = [stored[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear"]
        assert zeros
        assert {zero.data_type for zero in zeros} == {TensorProto.INT8}
        assert not any(numpy_helper.to_array(zero).any() for zero in zeros)
        assert psnr(*outputs(folder / name, name, pipeline)) > 25


def outputs(folder, name, pipeline):
    """A graph's output and the network's, for an example."""
    written = OnnxNetwork(folder, name, "cpu")
    inputs = examples(written.inputs, written.side)
    with torch.no_grad():
        return OneOutput(written)(*inputs), OneOutput(getattr(pipeline, name))(*inputs)


def test_an_activation_made_signed_has_half_the_levels():
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"])]
    nodes.append(helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["output"]))
    stored = [numpy_helper.from_array(np.float32(0.1), "scale"), numpy_helper.from_array(np.uint8(0), "zero")]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, [4])], [value("output", 1, [4])], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    make_signed(model)
    found = onnx.reference.ReferenceEvaluator(model).run(None, {"x": np.float32([0, 0.29, 12, 25.5])})[0]
    step = 25.5 / 127
    assert found == pytest.approx([0, step, round(12 / step) * step, 25.5], abs=1e-5)


def test_the_calibration_follows_the_sampler(folder, pipeline, pairs):
    crops = calibration_crops(pairs, TILE)
    calls = calibration_inputs(pipeline, "denoiser", OnnxNetwork(folder / "denoiser", "denoiser", "cpu"), crops)
    expected = 3 * pipeline.preset().levels(pipeline.levels, 0.05, 12.0).tolist()
    assert [call["alpha_bar"].item() for call in calls] == pytest.approx(expected)
    assert crops[0][0].shape == calls[0]["blurry"].shape == (1, 3, 96, 96)
    assert np.array_equal(calls[0]["blurry"], crops[0][0] * 2 - 1)
    assert np.allclose(calls[0]["x_init"], pipeline.predictor(crops[0][0] * 2 - 1)[0], atol=1e-6)
    calls = calibration_inputs(pipeline, "predictor", OnnxNetwork(folder / "predictor", "predictor", "cpu"), crops)
    assert len(calls) == len(crops) == 3
    assert set(calls[0]) == {"blurry"}


@pytest.mark.parametrize(
    ("before", "after", "most", "words"),
    [
        (30.0, 29.6, 0.5, None),
        (30.0, 29.4, 0.5, "loses 0.600 dB even so"),
        (29.0, 30.0, 0.5, None),  # better than before
        (30.0, math.nan, 0.5, "no numbers"),
        (math.inf, math.inf, 0.0, None),  # every image is exactly the sharp one
        (30.0, -math.inf, 0.5, "loses inf dB even so"),
        (30.0, 29.9, math.nan, "loses 0.100 dB even so"),
    ],
)
def test_a_loss_is_compared_with_the_largest_allowed(before, after, most, words):
    if words is None:
        drop = require_small_loss("predictor", before, after, most)
        assert drop == (0 if before == after else pytest.approx(before - after))
    else:
        with pytest.raises(CheckpointError, match=words):
            require_small_loss("predictor", before, after, most)


def test_a_loss_that_cannot_be_kept_is_refused_and_nothing_is_left(place, tmp_path, pairs):
    with pytest.raises(CheckpointError, match=r"the predictor in INT8 loses .* dB even so: give a larger --max_drop"):
        export_onnx(str(place / "alone"), str(tmp_path / "out"), "int8", tile=96, calibration=pairs, max_drop=-1.0)
    assert list(tmp_path.iterdir()) == []


def test_the_noise_level_and_normalisations_stay_in_float(folder):
    kinds = {}
    for name in ("denoiser", "predictor"):
        model = onnx.load(folder / name / "model.onnx")
        names = nodes_in_float(model)
        kinds[name] = {node.op_type for node in model.graph.node if node.name in names}
    assert {"Gemm", "Log", "ReduceMean", "Sqrt", "Div"} <= kinds["denoiser"]
    assert {"ReduceMean", "Sqrt", "Div", "Sub"} <= kinds["predictor"]
    assert "Gemm" not in kinds["predictor"]
    assert not {"Conv", "DepthToSpace"} & (kinds["denoiser"] | kinds["predictor"])
