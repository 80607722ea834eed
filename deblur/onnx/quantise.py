"""INT8 for the graphs of an export: NNCF's quantisation with accuracy control, calibrated along the sampler."""

import logging
import math
import os
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto, numpy_helper
from torch import Tensor

from deblur.hub import CheckpointError
from deblur.onnx.files import GRAPH
from deblur.onnx.graphs import write_facts
from deblur.onnx.network import OnnxNetwork, open_engine
from deblur.pipeline import DeblurPipeline

os.environ.setdefault("NNCF_CI", "1")  # otherwise NNCF sends usage statistics
import nncf
from nncf.quantization.range_estimator import RangeEstimatorParametersSet as Ranges

# Of `models.networks.unet.PixelNorm`.
OPERATORS_OF_PIXEL_NORM = frozenset(("ReduceMean", "Sub", "Pow", "Mul", "Add", "Sqrt", "Div", "Cast"))
JUDGED_CROPS = 8  # of those of the calibration: on them PSNR is measured
CROP_SIDE = 512  # of the crops, for a graph of any size


def quantise(
    pipeline: DeblurPipeline,
    folder: Path,
    crops_of: Callable[[int], list[tuple[Tensor, Tensor]]],
    max_drop: float,
    target_device: str,
) -> None:
    """Replace the float32 graphs in a float32 pipeline's export by INT8 ones, calibrated on crops of training pairs.

    Args:
        crops_of: side -> (blurry, sharp), (1, 3, side, side) in [0, 1].

    Raises:
        CheckpointError: a network loses more than `max_drop` dB of PSNR even with layers in float.
    """
    logging.getLogger("nncf").setLevel(logging.ERROR)  # nncf.set_log_level also changes handlers that others added
    preset = nncf.QuantizationPreset.MIXED if target_device == "cpu" else nncf.QuantizationPreset.PERFORMANCE
    # NNCF's default, the mean of the crops' extremes, clips highlights: single pixels are off by half the range.
    whole_range = nncf.AdvancedQuantizationParameters(activations_range_estimator_params=Ranges.MINMAX)
    for name in pipeline.networks:
        graph, path = OnnxNetwork(folder / name, name, "cpu"), folder / name / GRAPH
        crops = crops_of(graph.side or CROP_SIDE)
        calls = calibration_inputs(pipeline, name, graph, crops)

        def psnr(model: onnx.ModelProto, judged, name: str = name, graph: OnnxNetwork = graph) -> tuple[float, list]:
            graph.engine = open_engine(model.SerializeToString(), graph.facts, folder / name, "cpu")
            errors = [(restored(pipeline, name, blurry, graph) - sharp).square().mean() for blurry, sharp in judged]
            scores = (-10 * torch.stack(errors).log10()).tolist()
            return sum(scores) / len(scores), scores

        model, data = onnx.load(path), (nncf.Dataset(calls), nncf.Dataset(crops[:JUDGED_CROPS]))
        options = {"max_drop": max_drop, "preset": preset, "subset_size": len(calls)}
        options["advanced_quantization_parameters"] = whole_range
        options["ignored_scope"] = nncf.IgnoredScope(names=nodes_in_float(model))
        quantised = nncf.quantize_with_accuracy_control(model, *data, psnr, **options)
        if target_device == "tensorrt":
            make_signed(quantised)
        before, after = (psnr(graph_of, crops[:JUDGED_CROPS])[0] for graph_of in (model, quantised))
        drop = require_small_loss(name, before, after, max_drop)
        print(f"{name}: {drop:.3f} dB lost on {len(crops[:JUDGED_CROPS])} crops; {layers(quantised)}")
        path.write_bytes(quantised.SerializeToString())
        write_facts(folder / name, replace(graph.facts, precision="int8"))


def require_small_loss(name: str, before: float, after: float, max_drop: float) -> float:
    """What a network loses, in dB, from its PSNR in float to that in INT8.

    Raises CheckpointError if it is more than `max_drop`, or no number because an output is none.
    """
    drop = 0.0 if before == after else before - after  # of equal images both are infinite
    if math.isnan(drop):
        raise CheckpointError(f"the {name} restores images whose pixels are no numbers: its weights are damaged")
    if not drop <= max_drop:
        raise CheckpointError(f"the {name} in INT8 loses {drop:.3f} dB even so: give a larger --max_drop")
    return drop


def calibration_inputs(
    pipeline: DeblurPipeline, name: str, graph: OnnxNetwork, crops: list[tuple[Tensor, Tensor]]
) -> list:
    """The inputs of a network's graph, arrays by name, in every call while crops (blurry, sharp) are restored."""
    calls: list[dict] = []

    def record(_, inputs: tuple[Tensor, ...]) -> None:
        graph.around(lambda *padded: calls.append(graph.arrays(*padded)) or padded[0], *inputs)

    with getattr(pipeline, name).register_forward_pre_hook(record):
        for blurry, _ in crops:
            restored(pipeline, name, blurry, getattr(pipeline, name))
    return calls


def restored(pipeline: DeblurPipeline, name: str, blurry: Tensor, network: torch.nn.Module) -> Tensor:
    """A prediction or, for a denoiser, a restoration, with a network in place of the pipeline's own."""
    settings = replace(pipeline.preset(), num_samples=1, **({"blend": 0.0} if name == "predictor" else {}))
    pipeline = copy(pipeline)
    setattr(pipeline, name, network)
    return pipeline(blurry, settings, names=["crop"], output_type="pt").images


def nodes_in_float(model: ModelProto) -> list[str]:
    """Names of the nodes that stay in float in any case.

    These compute with alpha_bar or what follows from it alone, such as its embedding: a calibration sees few of its
    values, and others would be rounded to the nearest of them. The others are those of normalisations.
    """
    level, normal, names = {"alpha_bar"}, set(), []
    constant = {"", *(tensor.name for tensor in model.graph.initializer)}
    for node in model.graph.node:  # in the order of computation
        inputs = set(node.input)
        if node.op_type == "Constant":
            constant |= set(node.output)
        elif level & inputs:
            names.append(node.name)
            if inputs <= level | constant:
                level |= set(node.output)
        elif node.op_type == "ReduceMean" or (node.op_type in OPERATORS_OF_PIXEL_NORM and normal & inputs):
            names.append(node.name)
            normal |= set(node.output)
    return names


def layers(model: ModelProto) -> str:
    """How many layers are in INT8, and which stayed in float, in words."""
    weights = [node.input[1] for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    kept = [name for name in weights if name in {tensor.name for tensor in model.graph.initializer}]
    # As in the checkpoint: the graph is of a `OneOutput`, whose `network` that is.
    named = f": {', '.join(name.removeprefix('network.') for name in kept)}" if kept else ""
    return f"{len(weights) - len(kept)} layers in INT8, {len(kept)} in float{named}"


def make_signed(model: ModelProto) -> None:
    """Make activations signed, in place, as TensorRT requires: NNCF rounds those without values below zero to unsigned.

    Such an activation then has 127 levels instead of 255. The zero points of a symmetric graph are 0.
    """
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    pairs = {tuple(node.input[1:3]) for node in model.graph.node if node.op_type == "QuantizeLinear"}
    for scale, zero in pairs:
        if stored[zero].data_type == TensorProto.UINT8:
            wider = np.asarray(numpy_helper.to_array(stored[scale]) * np.float32(255 / 127))
            stored[scale].CopyFrom(numpy_helper.from_array(wider, scale))
            stored[zero].CopyFrom(numpy_helper.from_array(np.zeros_like(wider, np.int8), zero))
    del model.graph.value_info[:]  # of the former types
