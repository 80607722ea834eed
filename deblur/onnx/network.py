"""Networks in ONNX files, run by an engine in place of PyTorch networks."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from deblur.hub import CheckpointError, read_json
from deblur.models.diffusion import PREDICTION_TYPES
from deblur.models.networks.layers import extended
from deblur.onnx.engines import Precision, Provider, open_engine
from deblur.onnx.files import DESCRIPTION, GRAPH, INPUTS, NOISY, read_facts, read_graph


class OnnxNetwork(nn.Module):
    """A predictor or denoiser from a folder of `tools.export_onnx`, called like the network it was exported from.

    Images are processed one at a time, padded to the graph's size as by the network, and the result is cropped.
    Tensors are on the CPU, wherever the graph runs.

    Args:
        folder: with model.onnx, graph.json and config.json.
        name: which of the two networks it is.
        provider, precision: as for `deblur.onnx.engines.open_engine`.

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
        self.inputs = INPUTS[name]

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Call as the exported network: images (N, C, H, W), any H and W, and noise levels (N,).

        A predictor's graph has what a size head says as its fourth channel.
        """
        output = self.output(*inputs)
        return output if output.shape[1] == 3 else (output[:, :3], output[:, 3:])

    def output(self, *inputs: Tensor) -> Tensor:
        """The graph's output for inputs as in `forward`, what a size head says with it."""
        return self.around(self._run, *inputs)

    def around(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Call function(*inputs) with one image at a time, padded to the graph's size; the results are cropped."""
        height, width = inputs[0].shape[-2:]
        bottom, right = (self.facts.padded(length) - length for length in (height, width))
        results = []
        for image_inputs in zip(*(x.float().split(1) for x in inputs), strict=True):
            named = zip(self.inputs, image_inputs, strict=True)
            padded = (x if x.ndim < 4 else extended(x, bottom, right, is_noise=name == NOISY) for name, x in named)
            results.append(function(*padded)[..., :height, :width])
        return results[0] if len(results) == 1 else torch.cat(results)

    def arrays(self, *inputs: Tensor) -> dict:
        """The inputs that the graph uses, as arrays by name."""
        named_inputs = zip(self.inputs, inputs, strict=True)
        return {name: x.contiguous().numpy() for name, x in named_inputs if name in self.engine.inputs}

    def _run(self, *inputs: Tensor) -> Tensor:
        return torch.from_numpy(self.engine.run(self.arrays(*inputs)))
