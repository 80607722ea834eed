"""Export a checkpoint as ONNX files, which run without PyTorch's networks.

python -m tools.export_onnx pretrained/lite --output deployed/lite
python -m tools.export_onnx pretrained/lite --output deployed/lite_int8 --precision int8 --calibration PAIRS
python -m tools.export_onnx pretrained/lite --output deployed/lite_trt --precision fp16 --target_device tensorrt

The folder is a checkpoint for sample.py, evaluate.py, app.py, tools.batch and `load_pipeline`: each network as
model.onnx, with the same configs, schedule, residual scale, presets and card. INT8 is for processors with VNNI
(avx512_vnni, avx_vnni or amx_int8 in /proc/cpuinfo) and for TensorRT; on other processors use fp32.
"""

import sys
from functools import partial

from torch import Tensor

from deblur.cli import call, run_command
from deblur.data.layouts import find_pairs
from deblur.data.pairs import centre_crop, read_pair
from deblur.hub import CheckpointError
from deblur.onnx.export import TargetDevice, export
from deblur.onnx.files import GraphPrecision

LARGEST_CALIBRATION = 24  # crops


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
    crops = None if calibration is None else partial(calibration_crops, calibration)
    export(source, output, precision, target_device, tile, crops, max_drop, stages, classes)


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
