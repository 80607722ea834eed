"""Make an ONNX graph of a network, write it beside what it says about itself, and compare it with the network."""

import functools
import json
import math
import warnings
from copy import deepcopy
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deblur.hub import CheckpointError
from deblur.onnx.files import DESCRIPTION, GRAPH, GRAPH_INPUTS, GRAPH_OUTPUT, GraphFacts, GraphPrecision, read_facts
from deblur.onnx.network import OnnxNetwork, Provider
from deblur.tiling import bytes_per_pixel

OPSET = 20
RUNTIME_MEMORY = 1.25  # times PyTorch's: onnxruntime was seen to take a fifth more, and OpenVINO takes less
SMALLEST_SIDE = 3  # in strides, of the image on which a graph without fixed size is made and compared
MAX_ERROR = 1e-4  # of fp32, in the network's own units; images are in [-1, 1]
MIN_PSNR = 60.0  # of fp16, in dB, with the range of PyTorch's output as the peak


def write_network(
    network: nn.Module, name: str, folder: Path, precision: GraphPrecision, side: int | None, axes: int = 1
) -> None:
    """Write a network as model.onnx and graph.json into a folder. `axes` is the number of the residual's scales.

    Raises:
        CheckpointError: torch cannot export it, or the tile size does not suit it.
    """
    try:
        facts = GraphFacts(
            precision,
            OPSET,
            side,
            network.stride,
            getattr(network, "multiple", network.stride),
            network.receptive_field,
            round(RUNTIME_MEMORY * bytes_per_pixel(network), 1),
            getattr(network, "prediction_type", None),
        )
    except ValueError as error:
        least = 2 * (network.receptive_field or 0) + network.stride
        raise CheckpointError(
            f"tiles of {side} pixels do not suit the {name}: give --tile, a multiple of {network.stride} of at least"
            f" {least}, or no --tile"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    example = examples(GRAPH_INPUTS[name], side or SMALLEST_SIDE * network.stride, axes=axes)
    model = _traced(network, GRAPH_INPUTS[name], example, facts)
    (folder / GRAPH).write_bytes(model.SerializeToString())
    write_facts(folder, facts)


class OneOutput(nn.Module):
    """A network whose size head's output is the fourth channel of its image, as a graph has it."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Tensor:
        output = self.network(*inputs)
        return output if isinstance(output, Tensor) else torch.cat(output, dim=1)


def write_facts(folder: Path, facts: GraphFacts) -> None:
    """Write graph.json into a network's folder."""
    (folder / DESCRIPTION).write_text(json.dumps(asdict(facts), indent=2) + "\n")


def _traced(network: nn.Module, names: tuple[str, ...], example: tuple[Tensor, ...], facts: GraphFacts) -> Any:
    """A network as an ONNX model."""
    nn.Module.to(network, memory_format=torch.contiguous_format)
    core = OneOutput(_in_half(network) if facts.precision == "fp16" else network)
    shapes = None
    if facts.side is None:
        height, width = torch.export.Dim("height", min=2, max=1 << 12), torch.export.Dim("width", min=2, max=1 << 12)
        axes = {2: facts.multiple * height, 3: facts.multiple * width}
        shapes = (tuple(axes if x.ndim == 4 else None for x in example),)  # `OneOutput` has one argument, *inputs
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                core,
                example,
                input_names=list(names),
                output_names=[GRAPH_OUTPUT],
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                dynamic_shapes=shapes,
                custom_translation_table={torch.ops.aten.pixel_unshuffle.default: _pixel_unshuffle},
                optimize=False,  # by `_simplify`
                verbose=False,
            )
    except Exception as error:  # of torch.export, of the conversion, or of the network
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        kind = type(network).__name__
        raise CheckpointError(f"torch cannot export {kind} to ONNX: {reason.strip()}") from error
    _simplify(program.model)
    model = program.model_proto
    for noted in (model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        noted.ClearField("metadata_props")  # source lines with this computer's paths; a tenth of an INT8 file
    _pad_for_pooling(model)
    return model


def _simplify(model: Any) -> None:
    """Compute what does not depend on the inputs, and leave out what changes nothing, in place.

    It is a part of the exporter's own optimisation. Of its patterns the one that makes a Split of slices is left out:
    its search takes the square of the number of operators, minutes for MAXIM.
    """
    from onnxscript import ir, optimizer, rewriter

    rules, passes = rewriter.rules.common, ir.passes.common
    shorter = [rules.cast_cast_rule, rules.no_op_cast_rule, rules.no_op_expand_rule, rules.no_op_transpose_rule]
    shorter += [rules.transpose_transpose_rule, rules.reshape_reshape_rule, rules.materialize_reshape_shape_rule]
    shorter += [rules.collapse_slice_rule, rules.collapse_slice2_rule]
    weights = 1 << 24  # values that may enter, such as weights whose halves are taken
    features = 1 << 20  # more than may result: images of features are no constants
    passes.InlinePass()(model)
    for _ in range(2):  # one makes work for the other
        optimizer.fold_constants(model, input_size_limit=weights, output_size_limit=features)
        rewriter.rewrite(model, shorter)
    passes.RemoveUnusedNodesPass()(model)
    passes.RemoveUnusedFunctionsPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.DeduplicateInitializersPass()(model)
    passes.CommonSubexpressionEliminationPass()(model)


def _pad_for_pooling(model: Any) -> None:
    """Let poolings pad the end of a side instead of rounding up, in place: OpenVINO leaves nothing of a side of 1."""
    for node in model.graph.node:
        given = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "MaxPool" and given["ceil_mode"].i:
            given["ceil_mode"].i = 0
            given["pads"].ints[2:] = [stride - 1 for stride in given["strides"].ints]


def _pixel_unshuffle(image: Any, downscale_factor: int) -> Any:
    """ONNX operators for torch's pixel_unshuffle; the exporter's own compute sizes, which onnx cannot infer.

    Channel by channel, since SpaceToDepth puts the channels of one pixel side by side, and torch the pixels of one
    channel. A Gather that reorders them is shorter, but OpenVINO 2026.4 fuses it into the next convolution wrongly.
    """
    from onnxscript import opset20 as ops

    channels = ops.Split(image, axis=1, num_outputs=image.shape[1])
    return ops.Concat(*(ops.SpaceToDepth(channel, blocksize=downscale_factor) for channel in channels), axis=1)


def _in_half(core: nn.Module) -> nn.Module:
    """A copy with weights in float16; buffers that are not stored with the weights stay as they are."""
    core = deepcopy(core)
    stored = core.state_dict().keys()
    for name, tensor in chain(core.named_parameters(), core.named_buffers()):
        if name in stored and tensor.is_floating_point():
            tensor.data = tensor.data.half()
    return core


def examples(
    names: tuple[str, ...], side: int, other: int | None = None, seed: int = 0, axes: int = 1
) -> tuple[Tensor, ...]:
    """Example inputs of a network by name, (1, C, side, other): smooth random images, a noisy residual and its level.

    `other` defaults to `side`; the residual's scale has `axes` channels.
    """
    generator = torch.Generator().manual_seed(seed)

    def image() -> Tensor:
        coarse = torch.rand(1, 3, 12, 12, generator=generator) * 2 - 1
        return nn.functional.interpolate(coarse, (side, other or side), mode="bicubic").clamp(-1, 1)

    blurry = image()
    x_init = (blurry + 0.05 * image()).clamp(-1, 1)
    r_t = torch.randn(blurry.shape, generator=generator)
    alpha_bar, s = torch.full((1,), 0.3), 0.02 + 0.05 * (image()[:, :axes] + 1)
    inputs = {"blurry": blurry, "r_t": r_t, "alpha_bar": alpha_bar, "x_init": x_init, "s": s}
    return tuple(inputs[name] for name in names)


def parity(network: nn.Module, name: str, folder: Path, provider: Provider, axes: int = 1) -> str:
    """Compare an exported network, run by an engine, with PyTorch's; returns the result in words.

    A graph for any size is compared on images as they are, one for tiles on the padded images.

    Raises:
        CheckpointError: the difference is too large for its precision.
    """
    facts = read_facts(folder)
    written = OnnxNetwork(folder, name, provider, "fp32" if facts.precision == "fp32" else "auto")
    sizes = [(facts.side, facts.side)] if facts.side else [(SMALLEST_SIDE * facts.stride, 4 * facts.stride)]
    sizes.append((sizes[0][0] - 3, sizes[0][1] - facts.stride // 2 - 1))
    reference = OneOutput(network)
    if facts.side is not None:
        reference = functools.partial(written.around, reference)
    differences, ratios = [], []
    for seed, (height, width) in enumerate(sizes):
        inputs = examples(written.inputs, height, width, seed, axes)
        with torch.no_grad():
            output, expected = OneOutput(written)(*inputs), reference(*inputs)
        differences.append((output - expected).abs().max().item())
        ratios.append(psnr(output, expected))
    worst, least = np.max(differences).item(), np.min(ratios).item()  # nan if one is: Python's max and min hide it
    result = f"{written.engine.place} differs from PyTorch by {worst:.1e} at most, {least:.1f} dB"
    is_near = {"fp32": worst <= MAX_ERROR, "fp16": least >= MIN_PSNR, "int8": True}  # whose limit is `quantise`'s
    if not (math.isfinite(worst) and is_near[facts.precision]):
        raise CheckpointError(f"the {name} in {result}, which is too much: it is not written")
    return result


def psnr(output: Tensor, reference: Tensor) -> float:
    """PSNR in dB, with the range of the reference as the peak."""
    error = (output.double() - reference.double()).square().mean()
    span = (reference.max() - reference.min()).double()
    return math.inf if error == 0 else (10 * (span**2 / error).log10()).item()
