"""Export a checkpoint as ONNX files, which run without PyTorch's networks.

python -m tools.export_onnx pretrained/lite --output deployed/lite
python -m tools.export_onnx pretrained/lite --output deployed/lite_int8 --precision int8 --calibration PAIRS
python -m tools.export_onnx pretrained/lite --output deployed/lite_trt --precision fp16 --target_device tensorrt

The folder is a checkpoint for sample.py, evaluate.py, app.py, tools.batch and `load_pipeline`: each network as
model.onnx, with the same configs, schedule, residual scale, presets and card. INT8 is for processors with VNNI
(avx512_vnni, avx_vnni or amx_int8 in /proc/cpuinfo) and for TensorRT; on other processors use fp32.
"""

import functools
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from deblur.cli import call, run_command
from deblur.data.layouts import find_pairs
from deblur.data.pairs import centre_crop, read_pair
from deblur.hub import ONNX_CLASS, CheckpointError, find_folder
from deblur.models.networks.maxim import Maxim
from deblur.onnx.files import GraphPrecision, require_package
from deblur.onnx.graphs import parity, write_network
from deblur.onnx.network import OnnxNetwork, Provider
from deblur.pipeline import DeblurPipeline, load_pipeline
from deblur.storage import replacing, require_free
from deblur.working_size import WorkingSize

TargetDevice = Literal["cpu", "tensorrt"]

LARGEST_CALIBRATION = 24  # crops
TENSORRT_TILE = 512


def export_onnx(
    source: str,
    output: str,
    precision: GraphPrecision = "fp32",
    target_device: TargetDevice = "cpu",
    tile: int | None = None,
    calibration: str | None = None,
    max_drop: float = 0.05,
    stages: int | None = None,
    classes: str | None = None,
) -> None:
    """Export a checkpoint as a folder of ONNX files. They are read back and compared before the folder appears.

    Args:
        source: exported folder, hub id, or .ckpt file of train.py.
        output: folder to write to; must be new or empty.
        precision: fp32, which OpenVINO can also run in bf16; fp16, half the size and for GPUs; or int8, which needs
            --calibration.
        target_device: cpu: graphs for images of any size; tensorrt: graphs for tiles of one size, since it compiles
            for each, and with int8 symmetric activations.
        tile: side in pixels of the graphs' input, a multiple of the networks' strides; larger images are tiled.
            Default: any size; for tensorrt 512; for MAXIM the 384 in which it restores best.
        calibration: for int8, pairs of training images in any layout of docs/data.md, for example from
            tools.make_pairs.
        max_drop: for int8, the largest loss of PSNR in dB per network on these pairs; layers go back to float until it
            is met.
        stages: of a predictor that has several, as MAXIM has three: the graph has only the first ones, whatever a
            preset says. Default: all.
        classes: your own networks that the checkpoint names, such as mypred.MyPredictor, separated by commas.

    Raises:
        CheckpointError: the checkpoint cannot be exported, or the graphs' outputs differ from PyTorch's; no folder is
            left behind.
        ValueError: the predictor has no stages, or fewer.
    """
    if (precision == "int8") != (calibration is not None):
        raise CheckpointError("--precision int8 and --calibration PAIRS, of training images, go together")
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
    own = {name: getattr(network, "own_tile", None) for name, network in pipeline.networks.items()}
    sides = {name: side or (tile_and_halo and tile_and_halo[0]) for name, tile_and_halo in own.items()}
    axes = len(pipeline.config.residual_scale) if isinstance(pipeline.config.residual_scale, list) else 1
    with replacing(folder) as part:
        _write_rest(pipeline, source, part)
        for name, network in pipeline.networks.items():
            print(f"{name}: making the graph", flush=True)
            write_network(network, name, part / name, "fp32" if precision == "int8" else precision, sides[name], axes)
        if calibration is not None:
            from deblur.onnx.quantise import quantise  # nncf is optional

            crops = functools.partial(calibration_crops, calibration)
            quantise(pipeline, part, crops, max_drop, target_device)
        for name, network in pipeline.networks.items():
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
    for name, network in pipeline.networks.items():
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


def calibration_crops(pairs: str, side: int) -> list[tuple[Tensor, Tensor]]:
    """(blurry, sharp), (1, 3, side, side) in [0, 1]: the centres of training pairs, of many an even choice."""
    listed = find_pairs(pairs, "train")
    if len(listed) > LARGEST_CALIBRATION:
        listed = [listed[k * len(listed) // LARGEST_CALIBRATION] for k in range(LARGEST_CALIBRATION)]
    return [tuple(centre_crop(image, side)[None] for image in read_pair(pair)) for pair in listed]


def cli(args: list[str] | None = None) -> None:
    """The command line."""
    call(export_onnx, args, "-m tools.export_onnx")


if __name__ == "__main__":
    sys.exit(run_command("tools.export_onnx", cli, "stopped; nothing is written"))
