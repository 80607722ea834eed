"""Export a checkpoint as ONNX files, which run without PyTorch's networks.

python -m tools.export_onnx pretrained/lite --output deployed/lite
python -m tools.export_onnx pretrained/lite --output deployed/lite_int8 --precision int8 --calibration PAIRS
python -m tools.export_onnx pretrained/lite --output deployed/lite_trt --precision fp16 --target_device tensorrt

The folder is a checkpoint for sample.py, evaluate.py, app.py, tools.batch and `load_pipeline`: each network as
model.onnx, with the same configs, schedule, residual scale, presets and card. INT8 is for processors with VNNI
(avx512_vnni, avx_vnni or amx_int8 in /proc/cpuinfo) and for TensorRT; on other processors use fp32.
"""

import functools
import importlib.util
import json
import math
import shutil
import sys
import warnings
from copy import deepcopy
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from deblur.checkpoints import load_pipeline, networks
from deblur.cli import call, run_command
from deblur.hub import ONNX, CheckpointError, find_folder
from deblur.memory import bytes_per_pixel
from deblur.models.networks.maxim import Maxim
from deblur.onnx.engines import Provider
from deblur.onnx.files import (
    FACTS,
    GRAPH,
    INPUTS,
    OUTPUT,
    GraphFacts,
    GraphPrecision,
    read_facts,
    require_package,
)
from deblur.onnx.network import OnnxNetwork
from deblur.pipeline import DeblurPipeline
from deblur.storage import replacing, require_free
from deblur.working_size import WorkingSize

TargetDevice = Literal["cpu", "tensorrt"]

OPSET = 20
TENSORRT_TILE = 512
MAX_ERROR = 1e-4  # of fp32, in the network's own units; images are in [-1, 1]
MIN_PSNR = 60.0  # of fp16, in dB, with the range of PyTorch's output as the peak
MORE_MEMORY = 1.25  # onnxruntime was seen to take a fifth more than PyTorch; OpenVINO takes less
LEAST = 3  # side, in strides, of the smallest image on which a graph without fixed size is made and tested


def export_onnx(
    source: str,
    output: str,
    precision: GraphPrecision = "fp32",
    target_device: TargetDevice = "cpu",
    tile: int | None = None,
    calibration: str | None = None,
    max_drop: float = 0.05,
    stages: int | None = None,
    classes: str | None = None,
) -> None:
    """Export a checkpoint as a folder of ONNX files. They are read back and compared before the folder appears.

    Args:
        source: exported folder, hub id, or .ckpt file of train.py.
        output: folder to write to; must be new or empty.
        precision: fp32, which OpenVINO can also run in bf16; fp16, half the size and for GPUs; or int8, which needs
            --calibration.
        target_device: cpu: graphs for images of any size; tensorrt: graphs for tiles of one size, since it compiles
            for each, and with int8 symmetric activations.
        tile: side in pixels of the graphs' input, a multiple of the networks' strides; larger images are tiled.
            Default: any size; for tensorrt 512; for MAXIM the 384 in which it restores best.
        calibration: for int8, pairs of training images in any layout of docs/data.md, for example from
            tools.make_pairs.
        max_drop: for int8, the largest loss of PSNR in dB per network on these pairs; layers go back to float until it
            is met.
        stages: of a predictor that has several, as MAXIM has three: the graph has only the first ones, whatever a
            preset says. Default: all.
        classes: your own networks that the checkpoint names, such as mypred.MyPredictor, separated by commas.

    Raises:
        CheckpointError: the checkpoint cannot be exported, or the graphs' outputs differ from PyTorch's; no folder is
            left behind.
        ValueError: the predictor has no stages, or fewer.
    """
    require_exporter(precision)
    if (precision == "int8") != (calibration is not None):
        raise CheckpointError("--precision int8 and --calibration PAIRS, of training images, go together")
    folder = Path(output)
    require_free(folder)
    pipeline = load_pipeline(source, "cpu", "fp32", classes=classes or ())
    if isinstance(pipeline.predictor, OnnxNetwork):
        raise CheckpointError(f"{source} is an ONNX folder already: give the checkpoint that it was made of")
    if precision == "int8" and any(isinstance(part, Maxim) for part in pipeline.predictor.modules()):
        raise CheckpointError(f"{source} holds MAXIM, which INT8 makes slower and worse: omit --precision int8")
    keep_stages(pipeline, stages)
    side = tile or (TENSORRT_TILE if target_device == "tensorrt" else None)
    sides = {name: side or own_side(network) for name, network in networks(pipeline).items()}
    axes = len(pipeline.config.residual_scale) if isinstance(pipeline.config.residual_scale, list) else 1
    with replacing(folder) as part:
        _write_rest(pipeline, source, part)
        for name, network in networks(pipeline).items():
            print(f"{name}: making the graph", flush=True)
            write_network(network, name, part / name, "fp32" if precision == "int8" else precision, sides[name], axes)
        if precision == "int8":
            from deblur.tools.quantise import quantise

            quantise(pipeline, part, calibration, max_drop, target_device)
            for name in networks(pipeline):
                write_facts(part / name, replace(read_facts(part / name), precision=precision))
        for name, network in networks(pipeline).items():
            for provider in engines(target_device):
                print(f"{name}: {parity(network, name, part / name, provider, axes)}", flush=True)
        load_pipeline(str(part), provider="cpu")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
    takes = ", ".join(f"{name} tiles of {side}" if side else f"{name} any size" for name, side in sides.items())
    print(f"wrote {folder}: {precision}, {takes}, {size:.1f} MiB")


def keep_stages(pipeline: DeblurPipeline, stages: int | None) -> None:
    """Let the predictor compute `stages` stages, None: all, and presets and the working size ask for no others.

    Raises ValueError if it has no stages, or fewer.
    """
    pipeline.require_stages(stages)
    if stages is not None:
        pipeline.predictor.forward = functools.partial(pipeline.predictor.forward, stages=stages)

    def without(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name != "stages"}

    presets = {name: without(fields) for name, fields in pipeline.config.presets.items()}
    pipeline.register_to_config(presets=presets)
    if pipeline.working_size is not None:
        rule = without(pipeline.config.working_size)
        pipeline.working_size = WorkingSize(**rule)
        pipeline.register_to_config(working_size=rule)


def own_side(network: nn.Module) -> int | None:
    """Side of the tiles that a network restores best; None: any size."""
    own_tile = getattr(network, "own_tile", None)
    return None if own_tile is None else own_tile[0]


def require_exporter(precision: GraphPrecision) -> None:
    """Raise CheckpointError if a package that an export needs is missing."""
    for name in ("onnx", "onnxruntime", "onnxscript", *(("nncf",) if precision == "int8" else ())):
        require_package(name)


def engines(target_device: TargetDevice) -> tuple[Provider, ...]:
    """The engines on which an export for a target is compared with PyTorch here."""
    has_openvino = target_device == "cpu" and importlib.util.find_spec("openvino")
    return ("cpu", "openvino") if has_openvino else ("cpu",)


def _write_rest(pipeline: DeblurPipeline, source: str, folder: Path) -> None:
    """Write everything in a checkpoint's folder except its networks."""
    folder.mkdir(parents=True)
    for name, network in networks(pipeline).items():
        network.save_config(folder / name)
        pipeline.register_to_config(**{name: ["deblur.onnx.network", ONNX]})
    if pipeline.denoiser is None:
        pipeline.register_to_config(denoiser=[None, None])
    pipeline.scheduler.save_pretrained(folder / "scheduler")
    pipeline.register_to_config(scheduler=["diffusers", type(pipeline.scheduler).__name__])
    pipeline.save_config(folder)
    card = None if source.endswith(".ckpt") else find_folder(source) / "README.md"
    if card is not None and card.is_file():
        shutil.copyfile(card, folder / card.name)


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
            round(MORE_MEMORY * bytes_per_pixel(network), 1),
            getattr(network, "prediction_type", None),
        )
    except ValueError as error:
        least = 2 * (network.receptive_field or 0) + network.stride
        raise CheckpointError(
            f"tiles of {side} pixels do not suit the {name}: give --tile, a multiple of {network.stride} of at least"
            f" {least}, or no --tile"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    example = examples(INPUTS[name], side or LEAST * network.stride, axes=axes)
    model = _traced(network, INPUTS[name], example, facts)
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
    (folder / FACTS).write_text(json.dumps(asdict(facts), indent=2) + "\n")


def _traced(network: nn.Module, names: tuple[str, ...], example: tuple[Tensor, ...], facts: GraphFacts) -> Any:
    """A network as an ONNX model."""
    nn.Module.to(network, memory_format=torch.contiguous_format)
    core = OneOutput(_in_half(network) if facts.precision == "fp16" else network)
    shapes = None
    if facts.side is None:
        height, width = torch.export.Dim("height", min=2, max=1 << 12), torch.export.Dim("width", min=2, max=1 << 12)
        axes = {2: facts.multiple * height, 3: facts.multiple * width}
        shapes = tuple(axes if x.ndim == 4 else None for x in example)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                core,
                example,
                input_names=list(names),
                output_names=[OUTPUT],
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
    sizes = [(facts.side, facts.side)] if facts.side else [(LEAST * facts.stride, 4 * facts.stride)]
    sizes.append((sizes[0][0] - 3, sizes[0][1] - facts.stride // 2 - 1))
    reference = network if facts.side is None else functools.partial(written.around, network)
    differences, ratios = [], []
    for seed, (height, width) in enumerate(sizes):
        inputs = examples(written.inputs, height, width, seed, axes)
        with torch.no_grad():
            output, expected = written(*inputs), reference(*inputs)
        differences.append((output - expected).abs().max().item())
        ratios.append(psnr(output, expected))
    worst, least = np.max(differences).item(), np.min(ratios).item()  # nan if one is: Python's max and min hide it
    result = f"{written.engine.place} differs from PyTorch by {worst:.1e} at most, {least:.1f} dB"
    if not is_alike(facts.precision, worst, least):
        raise CheckpointError(f"the {name} in {result}, which is too much: it is not written")
    return result


def is_alike(precision: GraphPrecision, worst: float, least: float) -> bool:
    """Whether a graph's largest difference and its lowest PSNR in dB are within the limits of its precision.

    A difference that is no finite number never is; int8 has its own limit, of `quantise`.
    """
    if not math.isfinite(worst):
        return False
    return {"fp32": worst <= MAX_ERROR, "fp16": least >= MIN_PSNR, "int8": True}[precision]


def psnr(output: Tensor, reference: Tensor) -> float:
    """PSNR in dB, with the range of the reference as the peak."""
    error = (output.double() - reference.double()).square().mean()
    span = (reference.max() - reference.min()).double()
    return math.inf if error == 0 else (10 * (span**2 / error).log10()).item()


def cli(args: list[str] | None = None) -> None:
    """The command line."""
    call(export_onnx, args, "-m tools.export_onnx")


if __name__ == "__main__":
    sys.exit(run_command("tools.export_onnx", cli, "stopped; nothing is written"))
