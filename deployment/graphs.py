"""What INT8 graphs need beside NNCF: which nodes to leave alone, which layers stayed in float, TensorRT's integers."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto


NORM = {"ReduceMean", "Sub", "Pow", "Mul", "Add", "Sqrt", "Div", "Cast"}  # the operators of `models.unet.PixelNorm`


def nodes_in_float(model: "ModelProto") -> list[str]:
    """Names of the nodes that stay in float in any case.

    These compute with alpha_bar or what follows from it alone, such as its embedding: a calibration sees few of its
    values, and others would be rounded to the nearest of them. The others are those of normalisations.
    """
    level, normal, found = {"alpha_bar"}, set(), []
    constant = {"", *(tensor.name for tensor in model.graph.initializer)}
    for node in model.graph.node:  # in the order of computation
        inputs = set(node.input)
        if node.op_type == "Constant":
            constant |= set(node.output)
        elif level & inputs:
            found.append(node.name)
            if inputs <= level | constant:
                level |= set(node.output)
        elif node.op_type == "ReduceMean" or (node.op_type in NORM and normal & inputs):
            found.append(node.name)
            normal |= set(node.output)
    return found


def layers(model: "ModelProto") -> str:
    """How many layers are in INT8, and which stayed in float, in words."""
    weights = [node.input[1] for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    kept = [name for name in weights if name in {tensor.name for tensor in model.graph.initializer}]
    named = f": {', '.join(kept)}" if kept else ""
    return f"{len(weights) - len(kept)} layers in INT8, {len(kept)} in float{named}"


def make_signed(model: "ModelProto") -> None:
    """Make activations signed, in place, as TensorRT requires: NNCF rounds those without values below zero to unsigned.

    Such an activation then has 127 levels instead of 255. The zero points of a symmetric graph are 0.
    """
    from onnx import TensorProto, numpy_helper

    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    pairs = {tuple(node.input[1:3]) for node in model.graph.node if node.op_type == "QuantizeLinear"}
    for scale, zero in pairs:
        if stored[zero].data_type == TensorProto.UINT8:
            wider = np.asarray(numpy_helper.to_array(stored[scale]) * np.float32(255 / 127))
            stored[scale].CopyFrom(numpy_helper.from_array(wider, scale))
            stored[zero].CopyFrom(numpy_helper.from_array(np.zeros_like(wider, np.int8), zero))
    del model.graph.value_info[:]  # of the former types
