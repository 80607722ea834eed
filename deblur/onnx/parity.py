"""Compare an exported network with PyTorch's."""

import functools
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from deblur.hub import CheckpointError
from deblur.onnx.engines import Provider
from deblur.onnx.files import GraphPrecision, read_facts
from deblur.onnx.graphs import SMALLEST_SIDE, OneOutput, examples
from deblur.onnx.network import OnnxNetwork

MAX_ERROR = 1e-4  # of fp32, in the network's own units; images are in [-1, 1]
MIN_PSNR = 60.0  # of fp16, in dB, with the range of PyTorch's output as the peak


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
            output, expected = written.output(*inputs), reference(*inputs)
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
