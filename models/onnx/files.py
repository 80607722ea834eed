"""The files of `tools.export_onnx`, which are checked before an engine reads them; this module needs no torch.

A file is treated as untrusted: it must be valid, self-contained, of limited size, use only a fixed list of operators,
and have no tensor that is disproportionately large for the image. Engines get only bytes that were checked, no path.
"""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from deblur.models.hub import CheckpointError, read_json

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto

GraphPrecision = Literal["fp32", "fp16", "int8"]

GRAPH, FACTS = "model.onnx", "graph.json"  # files beside a network's config.json
INPUTS = {"predictor": ("blurry",), "denoiser": ("r_t", "blurry", "alpha_bar", "x_init", "s")}
OUTPUT = "output"
# Operators without loops, whose outputs depend on their inputs. Exported networks consist of these.
STANDARD = """
Abs Add AveragePool Cast CastLike Clip Concat Constant Conv ConvTranspose Cos DepthToSpace DequantizeLinear Div Einsum
Elu Equal Erf Exp Expand Flatten Floor Gather Gelu Gemm GlobalAveragePool HardSigmoid HardSwish Identity
InstanceNormalization LayerNormalization LeakyRelu Log MatMul Max MaxPool Mean Min Mul Neg PRelu Pad Pow QuantizeLinear
Reciprocal ReduceMax ReduceMean ReduceSum Relu Reshape Resize Shape Sigmoid Sin Slice Softmax Softplus SpaceToDepth
Split Sqrt Squeeze Sub Tanh Transpose Unsqueeze Where
"""
OPERATORS = frozenset(STANDARD.split())
MOST_BYTES = 2**31 - 1  # of a file: protobuf's own limit
LARGEST = 4096  # values per image pixel that one tensor of the graph may hold
PROBE = 8  # side, in strides, of the image on which a graph without a fixed size is checked


@dataclass(frozen=True)
class GraphFacts:
    """What graph.json says about the graph beside it.

    Args:
        precision: fp32, fp16 (internally; images enter and leave in float32) or int8.
        opset: version of the operators.
        side: side in pixels of the square that the graph takes; None: any height and width that `multiple` divides.
        stride: tiles start at multiples of it.
        multiple: PyTorch's network pads images to multiples of it: the stride, or a divisor.
        receptive_field: pixels that an output sees in each direction; None: most of an image.
        bytes_per_pixel: memory that the network needs per image pixel.
        prediction_type: of a denoiser, as in `models.diffusion`.
    """

    precision: GraphPrecision
    opset: int
    side: int | None
    stride: int
    multiple: int
    receptive_field: int | None
    bytes_per_pixel: float
    prediction_type: str | None = None

    def __post_init__(self):
        optional = (n for n in (self.side, self.receptive_field) if n is not None)
        counts = [self.opset, self.stride, self.multiple, *optional]
        known = self.precision in get_args(GraphPrecision) and isinstance(self.prediction_type, str | None)
        if not known or not all(type(n) is int and 0 <= n < 1 << 16 for n in counts) or not self.stride * self.multiple:
            raise ValueError("a value is out of its range")
        if self.stride % self.multiple:
            raise ValueError(f"a multiple of {self.multiple} does not divide a stride of {self.stride}")
        if not isinstance(self.bytes_per_pixel, int | float) or not self.bytes_per_pixel > 0:
            raise ValueError("bytes_per_pixel must be above 0")
        if self.side is not None and (self.side % self.stride or self.side <= 2 * self.halo):
            raise ValueError(f"a side of {self.side} does not suit a stride of {self.stride} and a halo of {self.halo}")

    @property
    def halo(self) -> int:
        """Pixels around a tile's core: the receptive field, or an eighth of the side if that is most of an image."""
        pixels = (self.side or 0) // 8 if self.receptive_field is None else self.receptive_field
        return -(-pixels // self.stride) * self.stride

    def padded(self, length: int) -> int:
        """The length of an axis after padding, so that it suits the graph. ValueError if it exceeds a fixed side."""
        if self.side is None:
            return -(-length // self.multiple) * self.multiple
        if length > self.side:
            raise ValueError(f"the graph takes tiles of {self.side} pixels, and one of {length} was given")
        return self.side


def read_facts(folder: Path) -> GraphFacts:
    """Read graph.json in a network's folder. Raises CheckpointError if it is invalid."""
    values = read_json(folder / FACTS)
    try:
        return GraphFacts(**values)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / FACTS} was not written by tools.export_onnx: {error}") from error


def require_package(name: str) -> None:
    """Raise CheckpointError if a package that ONNX files need is missing."""
    if importlib.util.find_spec(name) is None:
        raise CheckpointError(
            f"this ONNX folder needs the package {name}: pip install -r requirements-extra.txt -c constraints.txt"
        )


def read_graph(path: Path, name: str, facts: GraphFacts) -> bytes:
    """The bytes of an ONNX file after checks: valid, self-contained, known operators, no disproportionate tensor.

    Raises:
        CheckpointError: the file fails a check; the message says which.
    """
    require_package("onnx")
    import onnx

    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: the checkpoint is incomplete, copy it again")
    if path.stat().st_size > MOST_BYTES:
        raise CheckpointError(f"{path} is larger than an ONNX file can be, and was not loaded")
    content = path.read_bytes()
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # of protobuf, which is not a direct requirement
        raise CheckpointError(f"{path} is damaged or no ONNX file: copy it again") from error
    try:
        fault = _fault(model, name) or _growth(model, facts)
    except Exception as error:  # onnx's C++ code raises many types
        fault = f"is not valid ({str(error).strip().splitlines()[0]})"
    if fault is not None:
        raise CheckpointError(f"{path} {fault}, and was not loaded")
    return content


def _fault(model: "ModelProto", name: str) -> str | None:
    """What is wrong with a model, as the end of a sentence; None if nothing is. Raises what onnx's checker raises."""
    import onnx
    from onnx.external_data_helper import uses_external_data

    graph = model.graph
    names = {value.name for value in graph.input}
    if not names or not names <= set(INPUTS[name]) or [value.name for value in graph.output] != [OUTPUT]:
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


def _tensors(graph: "GraphProto") -> Iterator["TensorProto"]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _growth(model: "ModelProto", facts: GraphFacts) -> str | None:
    """Name a value of the graph that is too large for its image, by onnx's shape inference; None if there is none."""
    import onnx

    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    side = facts.side or PROBE * facts.stride
    del probe.graph.value_info[:]
    for value in probe.graph.input:
        for dim in value.type.tensor_type.shape.dim[2:]:
            if facts.side is None:
                dim.Clear()
                dim.dim_value = side
            elif dim.dim_value != side:
                return f"takes no tiles of {side} pixels, as {FACTS} says"
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
        if sizes[result] > LARGEST * side**2:
            return f"has a value, {result}, out of all proportion to the image"
    return None
