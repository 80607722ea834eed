"""What sample.py is asked for beside how to sample; no library is needed to check it."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from base.messages import one_of
from models.index import flow_of, pretrained, stored_index
from models.settings import Preset, preset_settings

SMALLEST_TILE = 64  # side in pixels
DEVICES = ["auto", "cpu", "cuda", "mps"]
SUFFIXES = {"jpeg": ".jpg", "tiff": ".tif"}  # of formats that are not named like it


def require_known(device: str) -> None:
    """ValueError where a device's name, which may end in a number (cuda:1), is none of DEVICES."""
    if device.partition(":")[0] not in DEVICES:
        raise ValueError(one_of("--device", device, DEVICES))


@dataclass
class Options:
    """What is written, and how it is computed.

    Args:
        output: folder to write NAME.SUFFIX into (NAME_0.SUFFIX, NAME_1.SUFFIX, ... for several samples), or of one
            image the file. manifest.json beside them says how each was made.
        checkpoint: exported folder, hub id (user/name or user/name@revision), or .ckpt file of train.py; default:
            pretrained/lite, which comes with the repository.
        preset: settings stored with the checkpoint; numbers given by flag go before them. Default: balanced, where the
            checkpoint has it. faithful and vivid are the old names of fidelity and perceptual.
        seed: the same seed gives the same noise for an image of the same name.
        device: cpu, cuda, cuda:1, mps, or auto for the first of cuda, mps, cpu that is there.
        precision: of the networks; auto is bf16 where the device computes in it.
        provider: of an ONNX folder, what onnxruntime runs it on (docs/deployment.md); default: cpu.
        compile: compile the networks; worth its warm-up for many images of one size (docs/sampling.md).
        batch_size: images of one size that are restored at once; default: as many as make up two megapixels, 16 at
            most. The results do not depend on it.
        memory: GB (1e9 bytes) that the process should stay within, or on a GPU its tensors; tiles are chosen by it.
            Default: 3.5 on a CPU (more above 24 megapixels), half of what is free on a GPU.
        tile: side of the denoiser's tiles for large images; default: whole, or what fits into memory.
        predictor_tile: the same for the predictor.
        format: of what is written; default: the input's.
        depth: bits a channel of what is written; default: the input's.
        guard: a sample that is less sharp than its input, or whose mean colour drifts from the prediction's by more
            than 2 of 255 levels, is warned of; with fallback the prediction is written in its place.
        uncertainty: also write the standard deviation of the samples, as NAME_std.png (heat map) and NAME_std.tif
            (float, in units of the [0, 1] range); where the checkpoint's predictor has a size head, also the error
            that it expects of its estimate, as NAME_error.png and .tif, for which no sample is needed.
        compare: also write NAME_compare.png: blurry, prediction, restored.
        overwrite: restore again what the manifest says is done with the same checkpoint, settings and seed.
    """

    output: str
    checkpoint: str | None = None
    preset: Preset | None = None
    seed: int = 0
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    provider: Literal["cpu", "cuda", "tensorrt"] | None = None
    compile: bool = False
    batch_size: int | None = None
    memory: float | None = None
    tile: int | None = None
    predictor_tile: int | None = None
    format: Literal["png", "jpg", "jpeg", "webp", "tif", "tiff", "bmp"] | None = None
    depth: Literal[8, 16] | None = None
    guard: Literal["warn", "fallback"] = "warn"
    uncertainty: bool = False
    compare: bool = False
    overwrite: bool = False

    def __post_init__(self):
        require_known(self.device)
        for name in ("batch_size", "memory"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"--{name} must be above 0, got {value}")
        for name in ("tile", "predictor_tile"):
            value = getattr(self, name)
            if value is not None and value < SMALLEST_TILE:
                raise ValueError(f"--{name} must be {SMALLEST_TILE} pixels or more, got {value}")

    @property
    def suffix(self) -> str | None:
        """Of what is written, where a format is given."""
        return self.format and SUFFIXES.get(self.format, f".{self.format}")


def check_settings(options: Options, numbers: dict[str, Any]) -> None:
    """ValueError where no such checkpoint lies here, or it cannot be sampled so, as far as its index alone tells.

    Args:
        options: the checkpoint and the preset.
        numbers: sampling numbers that go before the preset's, by name of the field of `SamplingSettings`.
    """
    source = options.checkpoint or pretrained()
    index = stored_index(source)
    if index is not None:
        flow = flow_of(index, source)
        replace(preset_settings(index.get("presets", {}), options.preset, flow), **numbers).check(flow)
    elif options.preset and source.endswith(".ckpt"):
        preset_settings({}, options.preset)
