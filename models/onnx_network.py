"""Networks in ONNX files, run by onnxruntime in place of PyTorch networks.

A file is treated as untrusted: it must be self-contained, use only a fixed list of operators, and have no tensor that
is disproportionately large for the image. onnxruntime gets only bytes that were checked, never a path.
"""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.diffusion import PREDICTION_TYPES
from models.index import CheckpointError, read_json

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto
    from onnxruntime import InferenceSession

Provider = Literal["cpu", "cuda", "tensorrt"]
GraphPrecision = Literal["fp32", "fp16", "int8"]

GRAPH, FACTS, ENGINES = "model.onnx", "graph.json", "engines"  # files beside a network's config.json
INPUTS = {"predictor": ("blurry",), "denoiser": ("r_t", "blurry", "alpha_bar", "x_init", "s")}
OUTPUT = "output"
MISSING = "ONNX files need the packages onnx and onnxruntime: pip install -r requirements-extra.txt"
# Operators without loops, whose outputs depend on their inputs. Exported networks consist of these.
STANDARD = """
Abs Add AveragePool Cast CastLike Clip Concat Constant Conv ConvTranspose Cos DepthToSpace DequantizeLinear Div Elu
Equal Erf Exp Expand Flatten Floor Gather Gelu Gemm GlobalAveragePool HardSigmoid HardSwish Identity
InstanceNormalization LayerNormalization LeakyRelu Log MatMul Max MaxPool Mean Min Mul Neg PRelu Pad Pow QuantizeLinear
Reciprocal ReduceMax ReduceMean ReduceSum Relu Reshape Resize Shape Sigmoid Sin Slice Softmax Softplus SpaceToDepth
Split Sqrt Squeeze Sub Tanh Transpose Unsqueeze Where
"""
OPERATORS = frozenset(STANDARD.split())
LARGEST = 4096  # values per image pixel that one tensor of the graph may hold
# Operators that compute lists of sizes, and the most values that such a list may have.
ARITHMETIC = {"Add", "Cast", "Concat", "Constant", "Div", "Gather", "Mul", "Reshape", "Squeeze", "Sub", "Unsqueeze"}
LONGEST = 64
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
        bytes_per_pixel: memory that the PyTorch network needs per image pixel.
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
        known = self.precision in get_args(GraphPrecision) and self.prediction_type in (None, *PREDICTION_TYPES)
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


class OnnxNetwork(nn.Module):
    """A predictor or denoiser from a folder of `deployment.export`, called like the network it was exported from.

    Images are processed one at a time, padded to the graph's size by repeating their border, and the result is cropped.
    Tensors are on the CPU, wherever the graph runs.

    Args:
        folder: with model.onnx, graph.json and config.json.
        name: which of the two networks it is.
        provider: runs the graph: cpu, cuda, or tensorrt, which caches the engines it builds in the folder's `engines`.

    Raises:
        CheckpointError: a file is missing, damaged, foreign, or refers to other files; or the packages or the
            provider are missing.
    """

    def __init__(self, folder: Path, name: Literal["predictor", "denoiser"], provider: Provider = "cpu"):
        super().__init__()
        hint = "the checkpoint is incomplete, copy it again"
        self.config = read_json(folder / "config.json", hint)
        self.facts = read_facts(folder)
        self.prediction_type = self.facts.prediction_type
        self.stride, self.receptive_field, self.side = self.facts.stride, self.facts.receptive_field, self.facts.side
        self.provider = provider
        graph = read_graph(folder / GRAPH, name, self.facts)
        self.session = open_session(graph, provider, self.facts, folder)
        self.inputs = INPUTS[name]
        self._used = {given.name for given in self.session.get_inputs()}

    def forward(self, *inputs: Tensor) -> Tensor:
        """Call as the exported network: images (N, C, H, W), any H and W, and noise levels (N,)."""
        return self.around(self._run, *inputs)

    def around(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Call function(*inputs) with one image at a time, padded to the graph's size; the results are cropped."""
        height, width = inputs[0].shape[-2:]
        bottom, right = (self._missing(length) for length in (height, width))
        results = []
        for one in zip(*(x.float().split(1) for x in inputs), strict=True):
            padded = (x if x.ndim < 4 else F.pad(x, (0, right, 0, bottom), mode="replicate") for x in one)
            results.append(function(*padded)[..., :height, :width])
        return results[0] if len(results) == 1 else torch.cat(results)

    def _run(self, *inputs: Tensor) -> Tensor:
        given = {name: x.contiguous().numpy() for name, x in zip(self.inputs, inputs, strict=True)}
        [result] = self.session.run([OUTPUT], {name: x for name, x in given.items() if name in self._used})
        return torch.from_numpy(result)

    def _missing(self, length: int) -> int:
        """Pixels by which a length must be padded to suit the graph."""
        if self.side is None:
            return -length % self.facts.multiple
        if length > self.side:
            raise ValueError(f"the graph takes tiles of {self.side} pixels, and one of {length} was given")
        return self.side - length


def read_facts(folder: Path) -> GraphFacts:
    """Read graph.json in a network's folder. Raises CheckpointError if it is invalid."""
    values = read_json(folder / FACTS, "the checkpoint is incomplete, copy it again")
    values.pop("sees_scale", None)  # which older exports say
    try:
        return GraphFacts(**values)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / FACTS} was not written by deployment.export: {error}") from error


def require_packages() -> None:
    """Raise CheckpointError if a package that ONNX files need is missing."""
    if not all(importlib.util.find_spec(package) for package in ("onnx", "onnxruntime")):
        raise CheckpointError(MISSING)


def read_graph(path: Path, name: str, facts: GraphFacts) -> bytes:
    """The bytes of an ONNX file after checks: self-contained, known operators, no disproportionate tensor.

    Raises:
        CheckpointError: the file fails a check; the message says which.
    """
    require_packages()
    import onnx

    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: the checkpoint is incomplete, copy it again")
    content = path.read_bytes()
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # of protobuf, which is not a direct requirement
        raise CheckpointError(f"{path} is damaged or no ONNX file: copy it again") from error
    fault = _fault(model, name, facts)
    if fault is not None:
        raise CheckpointError(f"{path} {fault}, and was not loaded")
    return content


def _fault(model: "ModelProto", name: str, facts: GraphFacts) -> str | None:
    """What is wrong with a model, as the end of a sentence; None if nothing is."""
    graph = model.graph
    names = {value.name for value in graph.input}
    if not names or not names <= set(INPUTS[name]) or [value.name for value in graph.output] != [OUTPUT]:
        return f"is damaged or no {name} of deployment.export"
    if model.functions or graph.sparse_initializer or model.training_info:
        return "has functions, sparse tensors or training graphs, which no export has"
    for node in graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
            return f"has the operator {node.domain and node.domain + '.'}{node.op_type}, which no export has"
        if any(attribute.HasField("g") or attribute.graphs or attribute.sparse_tensors for attribute in node.attribute):
            return f"has a graph or sparse tensors inside of the operator {node.op_type}, which no export has"
    for tensor in _tensors(graph):
        if tensor.data_location or tensor.external_data:
            return f"keeps the tensor {tensor.name} in another file, which no export does"
        if not _is_whole(tensor):
            return f"holds fewer or more values of the tensor {tensor.name} than it says"
    return _growth(model, facts)


def _tensors(graph: "GraphProto") -> Iterator["TensorProto"]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _is_whole(tensor: "TensorProto") -> bool:
    """Whether a tensor has the number of values that its shape implies."""
    from onnx import helper

    try:
        count, size = prod(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, TypeError):
        return False
    typed = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
    found = [len(tensor.raw_data) / size] * tensor.HasField("raw_data") + [len(data) for data in typed if data]
    return all(dim >= 0 for dim in tensor.dims) and (found == [count] or (not found and count == 0))


def _growth(model: "ModelProto", facts: GraphFacts) -> str | None:
    """Name a value of the graph that is too large for its image, by onnx's shape inference; None if there is none."""
    import onnx

    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    side = facts.side or PROBE * facts.stride
    del probe.graph.value_info[:]
    for value in probe.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim in dims[2:]:
            if facts.side is None:
                dim.Clear()
                dim.dim_value = side
            elif dim.dim_value != side:
                return f"takes no tiles of {side} pixels, as {FACTS} says"
    probe.graph.output[0].type.tensor_type.ClearField("shape")
    try:
        while True:
            known = _shapes(probe)
            if not _fold(probe.graph, known):
                break
    except Exception as error:  # onnx's C++ code raises many types
        return f"is not valid ({str(error).strip().splitlines()[0]})"
    for result in (name for node in probe.graph.node for name in node.output if name):
        if known.get(result) is None:
            return f"has a value, {result}, whose size cannot be told"
        if prod(known[result]) > LARGEST * side**2:
            return f"has a value, {result}, out of all proportion to the image"
    return None


def _shapes(model: "ModelProto") -> dict[str, tuple[int, ...] | None]:
    """The shapes of a model's values, as far as onnx can infer them."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    found = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            found[value.name] = tuple(dim.dim_value for dim in kind.shape.dim)
    return found


def _fold(graph: "GraphProto", shapes: dict[str, tuple[int, ...] | None]) -> bool:
    """Compute the nodes that do arithmetic on sizes, which onnx's inference skips; returns whether there were any."""
    from onnx import numpy_helper, reference

    constants = {tensor.name: tensor for tensor in graph.initializer}
    folded = []
    for node in graph.node:
        if node.op_type == "Shape" and shapes.get(node.input[0]) is not None:
            given = {node.input[0]: np.broadcast_to(np.float32(0), shapes[node.input[0]])}
        elif node.op_type in ARITHMETIC and all(
            name in constants and prod(constants[name].dims) <= LONGEST for name in node.input
        ):
            given = {name: numpy_helper.to_array(constants[name]) for name in node.input}
        else:
            continue
        [value] = reference.ReferenceEvaluator(node).run(None, given)
        constants[node.output[0]] = numpy_helper.from_array(np.asarray(value), node.output[0])
        graph.initializer.append(constants[node.output[0]])
        folded.append(node)
    for node in folded:
        graph.node.remove(node)
    return bool(folded)


def open_session(graph: bytes, provider: Provider, facts: GraphFacts, folder: Path) -> "InferenceSession":
    """An onnxruntime session for a graph from `read_graph`. Raises CheckpointError if it cannot run here."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # its warnings only say which operator runs where
    options.enable_cpu_mem_arena = facts.side is not None  # with varying sizes the arena keeps the largest allocation
    chosen = _providers(provider, facts, folder)
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=chosen)
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise CheckpointError(f"onnxruntime cannot run {folder / GRAPH}: {str(error).splitlines()[0]}") from error
    session.disable_fallback()
    if session.get_providers()[0] != chosen[0][0]:
        raise CheckpointError(_no_provider(provider))
    return session


def _providers(provider: Provider, facts: GraphFacts, folder: Path) -> list[tuple[str, dict]]:
    """onnxruntime's names and options: first the requested provider, then fallbacks for operators it lacks."""
    import onnxruntime

    cpu, cuda = ("CPUExecutionProvider", {}), ("CUDAExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
    engines = {
        "trt_engine_cache_enable": True,
        "trt_engine_cache_path": str(folder / ENGINES),
        "trt_timing_cache_enable": True,
        "trt_timing_cache_path": str(folder / ENGINES),
        "trt_fp16_enable": facts.precision != "fp32",
        "trt_int8_enable": facts.precision == "int8",
    }
    chosen = {"cpu": [cpu], "cuda": [cuda, cpu], "tensorrt": [("TensorrtExecutionProvider", engines), cuda, cpu]}
    if chosen[provider][0][0] not in onnxruntime.get_available_providers():
        raise CheckpointError(_no_provider(provider))
    if provider == "tensorrt":
        (folder / ENGINES).mkdir(exist_ok=True)
    return chosen[provider]


def _no_provider(provider: Provider) -> str:
    libraries = " and the libraries of TensorRT (pip install tensorrt)" if provider == "tensorrt" else ""
    return (
        f"the onnxruntime installed here cannot run on {provider}: pip install onnxruntime-gpu in place of"
        f" onnxruntime{libraries}, or omit --provider"
    )
