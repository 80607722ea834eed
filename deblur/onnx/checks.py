"""Checks of an ONNX graph's content before an engine reads it; onnx is optional, and so is this module."""

from collections.abc import Iterator, Sequence
from math import prod

import onnx
from onnx import GraphProto, ModelProto, TensorProto
from onnx.external_data_helper import uses_external_data

# Operators without loops, whose outputs depend on their inputs. Exported networks consist of these.
STANDARD = """
Abs Add AveragePool Cast CastLike Clip Concat Constant Conv ConvTranspose Cos DepthToSpace DequantizeLinear Div Einsum
Elu Equal Erf Exp Expand Flatten Floor Gather Gelu Gemm GlobalAveragePool HardSigmoid HardSwish Identity
InstanceNormalization LayerNormalization LeakyRelu Log MatMul Max MaxPool Mean Min Mul Neg PRelu Pad Pow QuantizeLinear
Reciprocal ReduceMax ReduceMean ReduceSum Relu Reshape Resize Shape Sigmoid Sin Slice Softmax Softplus SpaceToDepth
Split Sqrt Squeeze Sub Tanh Transpose Unsqueeze Where
"""
OPERATORS = frozenset(STANDARD.split())
LARGEST_TENSOR = 4096  # values per image pixel that one tensor of the graph may hold
CHECKED_SIDE = 8  # side, in strides, of the image on which a graph without a fixed size is checked


def fault_of(
    content: bytes, name: str, inputs: Sequence[str], output: str, side: int | None, stride: int
) -> str | None:
    """What is wrong with the content of a network's file, as the end of a sentence; None if nothing is.

    `name` is predictor or denoiser, with these inputs and output; the other arguments are those of `files.GraphFacts`.
    """
    try:
        model = onnx.load_model_from_string(content)
    except Exception:  # of protobuf, which is not a direct requirement
        return "is damaged or no ONNX file: copy it again"
    try:
        fault = _fault(model, name, inputs, output) or _growth(model, side, stride)
    except Exception as error:  # onnx's C++ code raises many types
        fault = f"is not valid ({str(error).strip().splitlines()[0]})"
    return f"{fault}, and was not loaded" if fault else None


def _fault(model: ModelProto, name: str, inputs: Sequence[str], output: str) -> str | None:
    """What is wrong with a model, as the end of a sentence; None if nothing is. Raises what onnx's checker raises."""
    graph = model.graph
    names = {value.name for value in graph.input}
    if not names or not names <= set(inputs) or [value.name for value in graph.output] != [output]:
        return f"is damaged or no {name} of tools.export_onnx"
    if model.functions or graph.sparse_initializer or model.training_info:
        return "has functions, sparse tensors or training graphs, which no export has"
    for node in graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
            return f"has the operator {node.domain and node.domain + '.'}{node.op_type}, which no export has"
        if any(attribute.HasField("g") or attribute.graphs or attribute.sparse_tensors for attribute in node.attribute):
            return f"has a graph or sparse tensors inside of the operator {node.op_type}, which no export has"
    for tensor in _tensors(graph):
        if uses_external_data(tensor) or tensor.external_data:
            return f"keeps the tensor {tensor.name} in another file, which no export does"
        try:  # the checker does not compare the length of the data with the shape
            onnx.numpy_helper.to_array(tensor)
        except Exception:  # of numpy and onnx
            return f"holds fewer or more values of the tensor {tensor.name} than it says"
    onnx.checker.check_model(model)
    return None


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _growth(model: ModelProto, side: int | None, stride: int) -> str | None:
    """Name a value of the graph that is too large for its image, by onnx's shape inference; None if there is none."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probed = side or CHECKED_SIDE * stride
    del probe.graph.value_info[:]
    for value in probe.graph.input:
        for dim in value.type.tensor_type.shape.dim[2:]:
            if side is None:
                dim.Clear()
                dim.dim_value = probed
            elif dim.dim_value != side:
                return f"takes no tiles of {side} pixels, as graph.json says"
    probe.graph.output[0].type.tensor_type.ClearField("shape")
    graph = onnx.shape_inference.infer_shapes(probe, check_type=True, strict_mode=True, data_prop=True).graph
    sizes = {}
    for value in (*graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            sizes[value.name] = prod(dim.dim_value for dim in kind.shape.dim)
    for result in (name for node in graph.node for name in node.output if name):
        if result not in sizes:
            return f"has a value, {result}, whose size cannot be told: if it is your own, export it again"
        if sizes[result] > LARGEST_TENSOR * probed**2:
            return f"has a value, {result}, out of all proportion to the image"
    return None
