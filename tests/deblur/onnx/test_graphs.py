"""Graphs against PyTorch's networks: what is compared, and what is too much."""

import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from deblur.hub import CheckpointError
from deblur.models.networks.maxim import enlarged, reduced
from deblur.models.networks.u2net import RSU
from deblur.onnx import files as onnx_files
from deblur.onnx.files import read_facts
from deblur.onnx.graphs import MAX_ERROR, MIN_PSNR, OneOutput, examples, parity, write_facts, write_network
from deblur.onnx.network import OnnxNetwork
from deblur.pipeline import load_pipeline
from tests.deblur.onnx.conftest import TILE, image

onnx = pytest.importorskip("onnx")
pytestmark = [pytest.mark.commands, pytest.mark.xdist_group("onnx")]  # exports take long, so they are made once


@pytest.mark.parametrize("name", ["blurry", "x_init", "r_t", "s"])
def test_a_graph_is_compared_on_images_that_vary(name):
    (values,) = examples((name,), 96, 128)
    assert values.shape[-2:] == (96, 128)
    assert all(values.std(dim).mean() > 0.01 for dim in (2, 3))


def test_a_graph_of_pooling_that_rounds_up_takes_any_size_as_it_is(tmp_path):
    pytest.importorskip("openvino")
    torch.manual_seed(0)
    block = RSU(4, 3, 4, 3, "pixel", "nearest").eval()
    block.stride, block.multiple, block.receptive_field = 8, 1, None
    (tmp_path / "config.json").write_text("{}")
    write_network(block, "predictor", tmp_path, "fp32", None)
    for provider in ("cpu", "openvino"):
        assert "differs from PyTorch" in parity(block, "predictor", tmp_path, provider)
        network = OnnxNetwork(tmp_path, "predictor", provider, "fp32")
        for height, width in ((37, 54), (9, 16), (64, 33), (1, 1), (2, 3), (4, 4), (5, 1)):
            blurry = image(height, width)
            with torch.no_grad():
                assert (network(blurry) - block(blurry)).abs().max() < 1e-5


class Halves(torch.nn.Module):
    """Sees the image at half its size, as pretrained/swift does."""

    stride = multiple = 4
    receptive_field = None

    def forward(self, blurry):
        small = reduced(blurry, 2)
        return blurry + enlarged(small.abs() - small, 2)


def test_a_network_that_sees_the_image_at_half_its_size(tmp_path, provider):
    # OpenVINO leaves out what a Resize does against aliasing.
    (tmp_path / "config.json").write_text("{}")
    write_network(Halves(), "predictor", tmp_path, "fp32", None)
    network = OnnxNetwork(tmp_path, "predictor", provider, "fp32")
    blurry = image(52, 76)
    assert (network(blurry) - Halves()(blurry)).abs().max() < 1e-5


def shifted(folder, copy, amount):
    """A copy of a network's folder whose output is larger by an amount."""
    shutil.copytree(folder, copy)
    model = onnx.load(copy / onnx_files.GRAPH)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["before" if name == onnx_files.GRAPH_OUTPUT else name for name in names]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(amount), "amount"))
    model.graph.node.append(onnx.helper.make_node("Add", ["before", "amount"], [onnx_files.GRAPH_OUTPUT]))
    onnx.save(model, copy / onnx_files.GRAPH)
    return copy


NO_NUMBERS = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("amount", [0.7e-4, -0.7e-4, 1.3e-4, -1.3e-4, *NO_NUMBERS])
def test_a_graph_in_float32_may_differ_by_a_ten_thousandth(place, tmp_path, provider, amount):
    network = load_pipeline(str(place / "slim"), precision="fp32").predictor
    folder = shifted(place / "tiles" / "predictor", tmp_path / "predictor", amount)
    if abs(amount) < MAX_ERROR:
        assert "differs from PyTorch by " in parity(network, "predictor", folder, provider)
    else:
        with pytest.raises(CheckpointError, match="which is too much: it is not written"):
            parity(network, "predictor", folder, provider)


@pytest.mark.parametrize("share", [0.6, 1.4, *NO_NUMBERS])
def test_a_graph_in_half_precision_keeps_60_db(place, tmp_path, share):
    """An error of a thousandth of the output's range is 60 dB."""
    network = load_pipeline(str(place / "alone"), precision="fp32").predictor
    with torch.no_grad():
        output = OneOutput(network)(*examples(("blurry",), TILE))
    span = (output.max() - output.min()).item()
    folder = shifted(place / "half" / "predictor", tmp_path / "predictor", share * span / 1000)
    if abs(share) < 1:
        assert float(re.search(r"([\d.]+) dB$", parity(network, "predictor", folder, "cpu"))[1]) >= MIN_PSNR
    else:
        with pytest.raises(CheckpointError, match="which is too much: it is not written"):
            parity(network, "predictor", folder, "cpu")


@pytest.mark.parametrize("amount", NO_NUMBERS)
def test_no_number_is_near_enough_in_int8(place, tmp_path, amount):
    network = load_pipeline(str(place / "slim"), precision="fp32").predictor
    folder = shifted(place / "tiles" / "predictor", tmp_path / "predictor", amount)
    write_facts(folder, replace(read_facts(folder), precision="int8"))
    with pytest.raises(CheckpointError, match="which is too much: it is not written"):
        parity(network, "predictor", folder, "cpu")


class NoNumber(torch.nn.Module):
    """A network whose output is no number at one of the compared sizes."""

    def __init__(self, network, call):
        super().__init__()
        self.network, self.left = OneOutput(network), call

    def forward(self, *inputs):
        self.left -= 1
        output = self.network(*inputs)
        return output if self.left else output * math.nan


@pytest.mark.parametrize("call", [1, 2])
def test_a_difference_at_any_compared_size_counts(place, call):
    network = load_pipeline(str(place / "slim"), precision="fp32").predictor
    with pytest.raises(CheckpointError, match="differs from PyTorch by nan at most, nan dB"):
        parity(NoNumber(network, call), "predictor", place / "tiles" / "predictor", "cpu")
