"""The files of `tools.export_onnx`, which are checked before an engine reads them.

A file is treated as untrusted: it must be valid, self-contained, of limited size, use only a fixed list of operators,
and have no tensor that is disproportionately large for the image. Engines get only bytes that were checked, no path.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from deblur.hub import CheckpointError, read_json

GraphPrecision = Literal["fp32", "fp16", "int8"]

GRAPH, DESCRIPTION = "model.onnx", "graph.json"  # files beside a network's config.json
NOISY_INPUT = "r_t"
GRAPH_INPUTS = {"predictor": ("blurry",), "denoiser": (NOISY_INPUT, "blurry", "alpha_bar", "x_init", "s")}
GRAPH_OUTPUT = "output"
LARGEST_FILE = 2**31 - 1  # of a file: protobuf's own limit


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
        words_fit = self.precision in get_args(GraphPrecision) and isinstance(self.prediction_type, str | None)
        counts_fit = all(type(n) is int and 0 <= n < 1 << 16 for n in counts) and self.stride * self.multiple > 0
        if not words_fit or not counts_fit:
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
    values = read_json(folder / DESCRIPTION)
    try:
        return GraphFacts(**values)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / DESCRIPTION} was not written by tools.export_onnx: {error}") from error


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
    from deblur.onnx.checks import fault_of  # onnx is optional

    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: the checkpoint is incomplete, copy it again")
    if path.stat().st_size > LARGEST_FILE:
        raise CheckpointError(f"{path} is larger than an ONNX file can be, and was not loaded")
    content = path.read_bytes()
    fault = fault_of(content, name, GRAPH_INPUTS[name], GRAPH_OUTPUT, facts.side, facts.stride)
    if fault is not None:
        raise CheckpointError(f"{path} {fault}")
    return content
