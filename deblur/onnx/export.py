"""Write a checkpoint as a folder of ONNX files."""

import functools
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from deblur.checkpoints import networks
from deblur.hub import ONNX_CLASS, CheckpointError, find_folder
from deblur.models.networks.maxim import Maxim
from deblur.onnx.files import GraphPrecision, require_package
from deblur.onnx.graphs import parity, write_network
from deblur.onnx.network import OnnxNetwork, Provider
from deblur.pipeline import DeblurPipeline, load_pipeline
from deblur.storage import replacing, require_free
from deblur.working_size import WorkingSize

TargetDevice = Literal["cpu", "tensorrt"]
Crops = Callable[[int], list[tuple[Tensor, Tensor]]]  # side -> (blurry, sharp) of training pairs, (1, 3, side, side)

TENSORRT_TILE = 512


def export(
    source: str,
    output: str,
    precision: GraphPrecision,
    target_device: TargetDevice,
    tile: int | None,
    crops: Crops | None,
    max_drop: float,
    stages: int | None,
    classes: str | None,
) -> None:
    """Write a checkpoint's ONNX folder; the arguments are the flags of `tools.export_onnx`, `crops` those of
    --calibration, for int8. The graphs are read back and compared before the folder appears.

    Raises:
        CheckpointError: the checkpoint cannot be exported, or the graphs' outputs differ from PyTorch's; no folder is
            left behind.
        ValueError: the predictor has no stages, or fewer.
    """
    for package in ("onnx", "onnxruntime", "onnxscript", *(("nncf",) if precision == "int8" else ())):
        require_package(package)
    folder = Path(output)
    require_free(folder)
    pipeline = load_pipeline(source, "cpu", "fp32", classes=classes or ())
    if isinstance(pipeline.predictor, OnnxNetwork):
        raise CheckpointError(f"{source} is an ONNX folder already: give the checkpoint that it was made of")
    if precision == "int8" and any(isinstance(part, Maxim) for part in pipeline.predictor.modules()):
        raise CheckpointError(f"{source} holds MAXIM, which INT8 makes slower and worse: omit --precision int8")
    keep_stages(pipeline, stages)
    side = tile or (TENSORRT_TILE if target_device == "tensorrt" else None)
    own = {name: getattr(network, "own_tile", None) for name, network in networks(pipeline).items()}
    sides = {name: side or (tile_and_halo and tile_and_halo[0]) for name, tile_and_halo in own.items()}
    axes = len(pipeline.config.residual_scale) if isinstance(pipeline.config.residual_scale, list) else 1
    with replacing(folder) as part:
        _write_rest(pipeline, source, part)
        for name, network in networks(pipeline).items():
            print(f"{name}: making the graph", flush=True)
            write_network(network, name, part / name, "fp32" if precision == "int8" else precision, sides[name], axes)
        if crops is not None:
            from deblur.onnx.quantise import quantise  # nncf is optional

            quantise(pipeline, part, crops, max_drop, target_device)
        for name, network in networks(pipeline).items():
            for provider in engines(target_device):
                print(f"{name}: {parity(network, name, part / name, provider, axes)}", flush=True)
        load_pipeline(str(part), provider="cpu")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
    takes = ", ".join(f"{name} tiles of {side}" if side else f"{name} any size" for name, side in sides.items())
    print(f"wrote {folder}: {precision}, {takes}, {size:.1f} MiB")


def keep_stages(pipeline: DeblurPipeline, stages: int | None) -> None:
    """Let the predictor compute `stages` stages, None: all, and presets and the working size ask for no others.

    Raises ValueError if it has no stages, or fewer.
    """
    pipeline.require_stages(stages)
    if stages is not None:
        pipeline.predictor.forward = functools.partial(pipeline.predictor.forward, stages=stages)

    def without(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name != "stages"}

    presets = {name: without(fields) for name, fields in pipeline.config.presets.items()}
    pipeline.register_to_config(presets=presets)
    if pipeline.working_size is not None:
        rule = without(pipeline.config.working_size)
        pipeline.working_size = WorkingSize(**rule)
        pipeline.register_to_config(working_size=rule)


def engines(target_device: TargetDevice) -> tuple[Provider, ...]:
    """The engines on which an export for a target is compared with PyTorch here."""
    has_openvino = target_device == "cpu" and importlib.util.find_spec("openvino")
    return ("cpu", "openvino") if has_openvino else ("cpu",)


def _write_rest(pipeline: DeblurPipeline, source: str, folder: Path) -> None:
    """Write everything in a checkpoint's folder except its networks."""
    folder.mkdir(parents=True)
    for name, network in networks(pipeline).items():
        network.save_config(folder / name)
        pipeline.register_to_config(**{name: ["deblur.onnx.network", ONNX_CLASS]})
    if pipeline.denoiser is None:
        pipeline.register_to_config(denoiser=[None, None])
    pipeline.scheduler.save_pretrained(folder / "scheduler")
    pipeline.register_to_config(scheduler=["diffusers", type(pipeline.scheduler).__name__])
    pipeline.save_config(folder)
    card = None if source.endswith(".ckpt") else find_folder(source) / "README.md"
    if card is not None and card.is_file():
        shutil.copyfile(card, folder / card.name)
