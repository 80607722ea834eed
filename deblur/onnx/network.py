"""Networks in ONNX files, run by an engine, ONNX Runtime or OpenVINO, in place of PyTorch networks."""

import functools
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from deblur.hub import CheckpointError, read_json
from deblur.models.diffusion import PREDICTION_TYPES
from deblur.models.networks.layers import extended
from deblur.onnx.files import (
    DESCRIPTION,
    GRAPH,
    GRAPH_INPUTS,
    GRAPH_OUTPUT,
    NOISY_INPUT,
    GraphFacts,
    read_facts,
    read_graph,
    require_package,
)

Provider = Literal["openvino", "cpu", "cuda", "tensorrt"]  # the last three are providers of ONNX Runtime
Precision = Literal["auto", "fp32", "bf16"]

BUILT_ENGINES = "engines"  # folder beside a graph for what TensorRT builds from it


class OnnxNetwork(nn.Module):
    """A predictor or denoiser from a folder of `tools.export_onnx`, called like the network it was exported from.

    Images are processed one at a time, padded to the graph's size as by the network, and the result is cropped.
    Tensors are on the CPU, wherever the graph runs.

    Args:
        folder: with model.onnx, graph.json and config.json.
        name: which of the two networks it is.
        provider, precision: as for `open_engine`.

    Raises:
        CheckpointError: a file is missing, damaged, foreign, or refers to other files; or a package or the provider
            is missing.
    """

    def __init__(
        self,
        folder: Path,
        name: Literal["predictor", "denoiser"],
        provider: Provider | None = None,
        precision: Precision = "auto",
    ):
        super().__init__()
        self.config = read_json(folder / "config.json")
        self.facts = read_facts(folder)
        self.prediction_type = self.facts.prediction_type
        if self.prediction_type not in (None, *PREDICTION_TYPES):
            file = folder / DESCRIPTION
            raise CheckpointError(f"{file} was not written by tools.export_onnx: {self.prediction_type}")
        self.stride, self.receptive_field, self.side = self.facts.stride, self.facts.receptive_field, self.facts.side
        self.bytes_per_pixel = self.facts.bytes_per_pixel
        self.fixed_tile = (self.side, self.facts.halo) if self.side else None
        graph = read_graph(folder / GRAPH, name, self.facts)
        self.engine = open_engine(graph, self.facts, folder, provider, precision, torch.get_num_threads())
        self.inputs = GRAPH_INPUTS[name]

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Call as the exported network: images (N, C, H, W), any H and W, and noise levels (N,).

        A predictor's graph has what a size head says as its fourth channel.
        """
        output = self.around(lambda *padded: torch.from_numpy(self.engine.run(self.arrays(*padded))), *inputs)
        return output if output.shape[1] == 3 else (output[:, :3], output[:, 3:])

    def around(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Call function(*inputs) with one image at a time, padded to the graph's size; the results are cropped."""
        height, width = inputs[0].shape[-2:]
        bottom, right = (self.facts.padded(length) - length for length in (height, width))
        results = []
        for image_inputs in zip(*(x.float().split(1) for x in inputs), strict=True):
            named = zip(self.inputs, image_inputs, strict=True)
            padded = (
                x if x.ndim < 4 else extended(x, bottom, right, is_noise=name == NOISY_INPUT) for name, x in named
            )
            results.append(function(*padded)[..., :height, :width])
        return results[0] if len(results) == 1 else torch.cat(results)

    def arrays(self, *inputs: Tensor) -> dict:
        """The inputs that the graph uses, as arrays by name."""
        named_inputs = zip(self.inputs, inputs, strict=True)
        return {name: x.contiguous().numpy() for name, x in named_inputs if name in self.engine.inputs}


@dataclass(frozen=True)
class Engine:
    """A graph that is ready to run.

    Args:
        run: inputs by name, arrays in float32 -> the graph's output in float32.
        inputs: names of the inputs that the graph uses.
        precision: what it computes in: fp32, bf16, fp16, or int8 (with the rest in bf16 or fp32).
        place: the engine and its device, for display.
    """

    run: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    inputs: frozenset[str]
    precision: str
    place: str


def open_engine(
    graph: bytes,
    facts: GraphFacts,
    folder: Path,
    provider: Provider | None = None,
    precision: Precision = "auto",
    threads: int = 0,
) -> Engine:
    """Prepare a graph from `read_graph`.

    Args:
        graph: its bytes.
        facts: its graph.json.
        folder: where it lies, for messages and TensorRT's files.
        provider: what runs it; None: OpenVINO where it is installed, otherwise ONNX Runtime on the CPU.
        precision: in OpenVINO, of a float32 graph, and of what an int8 graph leaves in float; auto is bf16 where the
            processor has it. Other graphs, and ONNX Runtime, compute in the graph's own.
        threads: on a CPU; 0: the engine's default.

    Raises:
        CheckpointError: a package or a provider is missing, or the graph cannot run here as asked.
    """
    provider = provider or ("openvino" if importlib.util.find_spec("openvino") else "cpu")
    has_choice = provider == "openvino" and facts.precision in ("fp32", "int8")
    if precision not in ("auto", facts.precision) and not has_choice:
        other = "" if facts.precision != "fp32" else " or give --provider openvino"
        raise CheckpointError(
            f"{folder.parent} is an ONNX folder in {facts.precision}: omit the precision {precision}{other}"
        )
    require_package("openvino" if provider == "openvino" else "onnxruntime")
    try:
        if provider == "openvino":
            return _openvino(graph, facts, precision, threads)
        return _onnxruntime(graph, facts, folder, provider, threads)
    except CheckpointError:
        raise
    except Exception as error:  # the exceptions of both engines have no common base class
        engine = "openvino" if provider == "openvino" else "onnxruntime"
        reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        raise CheckpointError(f"{engine} cannot run {folder / GRAPH}: {reason.strip()}") from error


def _openvino(graph: bytes, facts: GraphFacts, precision: Precision, threads: int) -> Engine:
    openvino, core = _core()
    properties = openvino.properties
    has_bf16 = "BF16" in core.get_property("CPU", properties.device.capabilities)
    within = precision if precision != "auto" else "bf16" if has_bf16 and facts.precision != "fp16" else "fp32"
    model = core.read_model(graph)

    def compiled(kind: Any) -> Any:
        hints = {
            properties.hint.inference_precision: kind,
            properties.hint.performance_mode: properties.hint.PerformanceMode.LATENCY,
            properties.hint.enable_cpu_pinning: False,  # several processes would be bound to the same cores
            properties.inference_num_threads: threads,
        }
        return core.compile_model(model, "CPU", hints)

    try:
        network = compiled(openvino.Type.bf16 if within == "bf16" else openvino.Type.f32)
    except RuntimeError:
        if facts.precision != "int8" or precision == "bf16":
            raise
        network = compiled(openvino.Type.f32)  # on processors with AMX it has no INT8 convolution between bf16 layers
    request = network.create_infer_request()
    names = frozenset(name for port in request.model_inputs for name in port.names)
    shown = within if facts.precision == "fp32" else facts.precision
    return Engine(
        lambda inputs: request.infer(dict(inputs), share_inputs=True)[GRAPH_OUTPUT], names, shown, "openvino cpu"
    )


@functools.cache
def _core():
    """openvino and its core, the only one of a process, kept to its end: a second one that is freed later than the
    first leaves the thread's stack for signals in freed memory, and the next signal ends the process."""
    import openvino  # optional

    return openvino, openvino.Core()


def _onnxruntime(graph: bytes, facts: GraphFacts, folder: Path, provider: Provider, threads: int) -> Engine:
    import onnxruntime  # optional

    cpu, cuda = ("CPUExecutionProvider", {}), ("CUDAExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
    built = {
        "trt_engine_cache_enable": True,
        "trt_engine_cache_path": str(folder / BUILT_ENGINES),
        "trt_timing_cache_enable": True,
        "trt_timing_cache_path": str(folder / BUILT_ENGINES),
        "trt_fp16_enable": facts.precision != "fp32",
        "trt_int8_enable": facts.precision == "int8",
    }
    # Behind the requested provider stand those for operators that it lacks.
    chosen = {"cpu": [], "cuda": [cuda], "tensorrt": [("TensorrtExecutionProvider", built), cuda]}[provider] + [cpu]
    libraries = " and the libraries of TensorRT (pip install tensorrt)" if provider == "tensorrt" else ""
    lacking = CheckpointError(
        f"the onnxruntime installed here cannot run on {provider}: pip install onnxruntime-gpu in place of"
        f" onnxruntime{libraries}, or omit --provider"
    )
    if chosen[0][0] not in onnxruntime.get_available_providers():
        raise lacking
    if provider == "tensorrt":
        (folder / BUILT_ENGINES).mkdir(exist_ok=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # its warnings only say which operator runs where
    options.enable_cpu_mem_arena = facts.side is not None  # with varying sizes the arena keeps the largest allocation
    session = onnxruntime.InferenceSession(graph, options, providers=chosen)
    session.disable_fallback()
    if session.get_providers()[0] != chosen[0][0]:
        raise lacking
    names = frozenset(port.name for port in session.get_inputs())
    return Engine(lambda port: session.run([GRAPH_OUTPUT], port)[0], names, facts.precision, f"onnxruntime {provider}")
