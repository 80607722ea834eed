"""INT8 for the graphs of an export: onnxruntime's static quantisation, calibrated along the sampler.

Sensitive parts of a network stay in float: its first and last convolutions, the embedding of the noise level and
everything else that does not lie between these convolutions, sums that join two branches, and normalisations. Of the
other convolutions the most sensitive ones go back to float until the loss of PSNR is within the limit.
"""

import json
import logging
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from base.progress import ProgressBar
from data.layouts import find_pairs
from data.pairs import centre_crop, read_pair
from models.checkpoints import networks
from models.index import CheckpointError
from models.onnx_network import FACTS, GRAPH, INPUTS, OnnxNetwork, read_facts
from models.pipeline import DeblurPipeline

if TYPE_CHECKING:
    from onnx import ModelProto

CROPS = 24  # pairs used for calibration, spread evenly over the dataset
FLOAT_GRAPH = "float.onnx"
SIDE = 512  # of the crops if the graphs have no fixed size
JUDGED = 8  # crops on which the loss of PSNR is measured
FLOAT = {"LayerNormalization", "Sqrt", "Div", "Clip", "Log", "Sin", "Cos", "Gemm"}  # operators that stay in float


@dataclass(frozen=True)
class Calibration:
    """Crops of training pairs, and the networks' inputs while they are restored.

    Args:
        blurry, sharp: (1, 3, H, W) in [0, 1].
        inputs: network name -> its calls; every sampling step of the checkpoint's default settings is a call.
    """

    blurry: Sequence[Tensor]
    sharp: Sequence[Tensor]
    inputs: dict[str, list[tuple[Tensor, ...]]]


def quantise(pipeline: DeblurPipeline, folder: Path, pairs: str, max_drop: float) -> None:
    """Replace the float32 graphs in an export's folder by INT8 ones.

    Args:
        pipeline: the PyTorch pipeline, in float32.
        folder: the export with the graphs.
        pairs: a dataset of training pairs.
        max_drop: largest loss of PSNR in dB per network, on crops of these pairs.

    Raises:
        CheckpointError: the loss is larger even with every convolution in float.
        DatasetError, ImageError: the pairs cannot be read.
    """
    calibration = calibrate(pipeline, folder, pairs)
    for name in networks(pipeline):
        quantiser = Quantiser(pipeline, folder / name, name, calibration)
        kept, order, model = [], None, quantiser.quantised()
        while (drop := quantiser.drop(quantiser.network(model))) > max_drop:
            if len(kept) == len(quantiser.layers):
                raise CheckpointError(
                    f"the {name} in INT8 loses {drop:.3f} dB with every convolution in float: give a larger --max_drop"
                )
            order = order or quantiser.ranking()
            kept = order[: max(1, 2 * len(kept))]
            model = quantiser.quantised(kept)
        print(f"{name}: {len(quantiser.layers) - len(kept)} convolutions in INT8, {len(kept)} and the ends in float,")
        print(f"  {drop:.3f} dB lost on {JUDGED} crops of the calibration")
        quantiser.write(folder / name, model)


def calibrate(pipeline: DeblurPipeline, folder: Path, pairs: str) -> Calibration:
    """Restore crops of training pairs with PyTorch's networks, and record the networks' inputs."""
    side = read_facts(folder / "predictor").side or SIDE
    found = find_pairs(pairs, "train")
    count = min(CROPS, len(found))
    crops = [
        [centre_crop(image, side)[None] for image in read_pair(found[k * len(found) // count])] for k in range(count)
    ]
    inputs: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in networks(pipeline)}
    hooks = [
        network.register_forward_pre_hook(lambda _, given, name=name: inputs[name].append(given))
        for name, network in networks(pipeline).items()
    ]
    settings = replace(pipeline.default_settings, num_samples=1)
    if pipeline.denoiser is None:
        settings = replace(settings, blend=0.0)
    for k, (blurry, _) in enumerate(ProgressBar(crops, "calibration", unit="crop")):
        pipeline(blurry, settings, names=[str(k)], output_type="pt", tile=side, predictor_tile=side)
    for hook in hooks:
        hook.remove()
    return Calibration([blurry for blurry, _ in crops], [sharp for _, sharp in crops], inputs)


class Quantiser:
    """Quantises one network's float32 graph to INT8.

    Args:
        pipeline: the PyTorch pipeline, in float32.
        folder: of the network, with its graph.
        name: predictor or denoiser.
        calibration: from `calibrate`.

    Attributes:
        layers: names of the convolutions that can be quantised.
    """

    def __init__(self, pipeline: DeblurPipeline, folder: Path, name: str, calibration: Calibration):
        import onnx

        self.pipeline, self.folder, self.name, self.calibration = pipeline, folder, name, calibration
        self.facts = read_facts(folder)
        self.model = onnx.load(folder / GRAPH)
        self.inside = between_the_ends(self.model)
        self.layers = [
            node.name for node in self.model.graph.node if node.name in self.inside if node.op_type == "Conv"
        ]
        self._workplace = TemporaryDirectory()
        shutil.copyfile(folder / GRAPH, Path(self._workplace.name) / FLOAT_GRAPH)
        self.settings = replace(pipeline.default_settings, num_samples=1)
        if name == "predictor":
            self.settings = replace(self.settings, blend=0.0)
        self._float = self._psnr(getattr(pipeline, name))

    def quantised(self, kept: Sequence[str] = (), only: Sequence[str] | None = None) -> "ModelProto":
        """The INT8 graph with the layers `kept` in float; with `only`, only these layers are in INT8."""
        import onnx
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
        from onnxruntime.quantization.registry import QDQRegistry

        place = Path(self._workplace.name)
        used = {given.name for given in self.model.graph.input}
        wanted = set(self.inside) - set(kept) if only is None else set(only)
        logging.getLogger().setLevel(logging.ERROR)
        quantize_static(
            place / FLOAT_GRAPH,
            place / GRAPH,
            _Reader(INPUTS[self.name], used, self.calibration.inputs[self.name]),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=sorted(set(QDQRegistry) - FLOAT),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=[node.name for node in self.model.graph.node if node.name not in wanted],
            calibration_cache_path=place / "ranges.json",
        )
        return onnx.load(place / GRAPH)

    def write(self, folder: Path, model: "ModelProto") -> None:
        """Write an INT8 graph and its graph.json into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / GRAPH).write_bytes(model.SerializeToString())
        facts = json.loads((self.folder / FACTS).read_text()) | {"precision": "int8"}
        (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n")

    def network(self, model: "ModelProto") -> OnnxNetwork:
        """An INT8 graph as a network, ready to run."""
        place = Path(self._workplace.name) / "network"
        place.mkdir(exist_ok=True)
        (place / GRAPH).write_bytes(model.SerializeToString())
        (place / FACTS).write_bytes((self.folder / FACTS).read_bytes())
        (place / "config.json").write_bytes((self.folder / "config.json").read_bytes())
        return OnnxNetwork(place, self.name)

    def drop(self, network: OnnxNetwork) -> float:
        """Loss of PSNR in dB against the ground truth, of the prediction or of the restoration, by an INT8 network."""
        return self._float - self._psnr(network)

    def ranking(self) -> list[str]:
        """The layers, most sensitive first: the one whose quantisation alone changes the output most."""
        damage = {
            layer: self._error(self.network(self.quantised(only=[layer])))
            for layer in ProgressBar(self.layers, "sensitivity")
        }
        return sorted(damage, key=damage.get, reverse=True)

    def _error(self, network: OnnxNetwork) -> float:
        """Mean squared difference from the float network's output, over the first calls of the calibration."""
        calls = self.calibration.inputs[self.name][: max(2, JUDGED // 4)]
        with torch.no_grad():
            return sum(
                (network(*given) - getattr(self.pipeline, self.name)(*given)).square().mean().item() for given in calls
            )

    def _psnr(self, network: nn.Module) -> float:
        """Mean PSNR of the pipeline with this network in place of its own."""
        own = getattr(self.pipeline, self.name)
        setattr(self.pipeline, self.name, network)
        try:
            found = []
            for k in range(min(JUDGED, len(self.calibration.blurry))):
                blurry, sharp = self.calibration.blurry[k], self.calibration.sharp[k]
                side = max(blurry.shape[-2:])
                tiles = {} if isinstance(network, OnnxNetwork) else {"tile": side, "predictor_tile": side}
                restored = self.pipeline(blurry, self.settings, names=[str(k)], output_type="pt", **tiles).images
                found.append(-10 * math.log10((restored - sharp).square().mean().item()))
            return sum(found) / len(found)
        finally:
            setattr(self.pipeline, self.name, own)


class _Reader:
    """A network's calibration calls, in the form that onnxruntime expects."""

    def __init__(self, names: Sequence[str], used: set[str], calls: Sequence[tuple[Tensor, ...]]):
        self._calls: Iterator[dict[str, np.ndarray]] = (
            {name: x.contiguous().numpy() for name, x in zip(names, given, strict=True) if name in used}
            for given in calls
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next call; None after the last one."""
        return next(self._calls, None)


def between_the_ends(model: "ModelProto") -> set[str]:
    """Names of the nodes between a network's first convolution and its last ones, without sums of two branches.

    The first is the one with the most convolutions after it; the last are those with none after them.
    """
    nodes = list(model.graph.node)
    made = {result: k for k, node in enumerate(nodes) for result in node.output}
    before = [{made[name] for name in node.input if name in made} for node in nodes]
    ancestors: list[set[int]] = []
    for parents in before:  # nodes are stored in the order of computation
        ancestors.append(parents.union(*(ancestors[parent] for parent in parents)))
    convolutions = [k for k, node in enumerate(nodes) if node.op_type == "Conv"]
    followers = {k: [other for other in convolutions if k in ancestors[other]] for k in convolutions}
    first = max(convolutions, key=lambda k: len(followers[k]))
    last = [k for k in convolutions if not followers[k] and first in ancestors[k]]
    inside = {k for end in last for k in ancestors[end] if first in ancestors[k]}

    def joins(k: int) -> bool:
        return nodes[k].op_type in ("Add", "Mul") and len(before[k]) > 1 and not _is_gate(nodes, before[k])

    return {nodes[k].name for k in inside if not joins(k)}


def _is_gate(nodes: Sequence, parents: set[int]) -> bool:
    """Whether a product is x sigmoid(x), a function of a single input."""
    return any(nodes[parent].op_type == "Sigmoid" for parent in parents)
