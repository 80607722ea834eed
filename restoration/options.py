"""The options of sample.py other than the sampling settings; checking them needs no library."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from deblur.hub import PRETRAINED, SHIPPED, WAYS, stored_index
from deblur.settings import SMALLEST_TILE, Preset, SamplingSettings, preset_settings, require_device


def largest_scale(scale: float | Literal["auto"], max_side: int | None, longer: int) -> float:
    """The largest scale at which --scale and --max_side let an image be restored, by its longer side in pixels."""
    return min(1.0 if scale == "auto" else scale, (max_side or math.inf) / longer)


@dataclass
class Options:
    """What sample.py writes and how it computes it.

    Args:
        output: folder to write NAME.SUFFIX into (NAME_0.SUFFIX, NAME_1.SUFFIX, ... for several samples), or a file
            name for a single image; a folder whose name ends in a suffix gets a slash. manifest.json
            beside the images says how each was made.
        checkpoint: of those that come with the repository maxim (use it when one photograph matters and may take
            minutes), swift (use it when a photograph is large, or there are several), lite (use it when there are many
            photographs and no GPU), u2net (use it when photographs must be restored faster still) or text (use it when
            there is a page of text: a document, a screen, a receipt); or an exported folder, a hub id (user/name or
            user/name@revision), a .ckpt file of train.py. Default: maxim on a GPU; on a CPU, as measured, maxim where
            all images take less than a minute, its preset fast where they take less than two, swift where they take
            less than ten, otherwise lite.
        preset: settings stored with the checkpoint; values given by flag override them. Default: balanced, if the
            checkpoint has it.
        seed: the same seed gives the same noise for an image of the same name.
        device: cpu, cuda, cuda:1, mps, or auto for the first available of cuda, mps, cpu.
        precision: of the networks; auto is bf16 where the device supports it in hardware.
        classes: your own networks that the checkpoint names, such as mypred.MyPredictor, separated by commas
            (docs/extend.md).
        provider: what runs an ONNX folder (docs/deployment.md): openvino, the default if it is installed; or cpu, cuda
            or tensorrt of ONNX Runtime.
        compile: compile the networks; worth the warm-up for many images of one size (docs/sampling.md).
        batch_size: images of one size that are restored at once; default: one on a CPU, elsewhere up to two megapixels
            in total, and at most 16 images. The results depend on it by no more than rounding.
        memory: GB (1e9 bytes) that the process (on a GPU: its tensors) should stay within; the tile size follows from
            it. Default: 3.5 on a CPU (more above 24 megapixels), half of the free memory on a GPU.
        scale: at which images are restored, from 1 (their own size) down; the change is enlarged and added to the
            image. auto finds it by itself where the blur is larger than the checkpoint knows (docs/sampling.md).
        max_side: images are restored with at most so many pixels on the longer side; the output keeps its size.
        restore: blurred leaves sharp and even parts as they are (keep_sharp); all restores every pixel.
        mask: image of the size of the one photograph that is given; white is restored and black is kept, whatever
            keep_sharp says.
        tile: side of the denoiser's tiles for large images; default: no tiles, or the largest that fit into memory.
        predictor_tile: the same for the predictor.
        format: file format of the output; default: the input's.
        depth: bits per channel of the output; default: the input's.
        quality: of a JPEG, AVIF or HEIF, from 1 to 100; default: a JPEG's own, but at least about 86; of other inputs
            95, or 75 of HEIF.
        metadata: keep all EXIF and XMP of the input, or none. The colour profile stays. Unless none, the output says
            that it was enhanced by this program (EXIF Software, IPTC digital source type).
        on_fault: warn if a sample is less sharp than its input, or if its mean colour drifts from the prediction's by
            more than 2 of 255 levels; with fallback the prediction is written in its place.
        uncertainty: also write the standard deviation of the samples, as NAME_std.png (heat map) and NAME_std.tif
            (float, in units of the [0, 1] range). If the predictor has a size head, also write the error that it
            expects of its estimate, as NAME_error.png and .tif; this needs no sample.
        error_bound: also write the error that nine of ten pixels stay below, as NAME_bound.png and .tif, if the
            checkpoint's expected error is calibrated (docs/sampling.md).
        compare: also write NAME_compare.png: blurry, restored, and the prediction of a sample.
        overwrite: restore images again that the manifest lists as done with the same checkpoint, settings and seed.
    """

    output: str
    checkpoint: str | None = None
    preset: Preset | None = None
    seed: int = 0
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    classes: str | None = None
    provider: Literal["openvino", "cpu", "cuda", "tensorrt"] | None = None
    compile: bool = False
    batch_size: int | None = None
    memory: float | None = None
    scale: float | Literal["auto"] = "auto"
    max_side: int | None = None
    restore: Literal["blurred", "all"] = "blurred"
    mask: str | None = None
    tile: int | None = None
    predictor_tile: int | None = None
    format: Literal["png", "jpg", "jpeg", "webp", "tif", "tiff", "bmp", "avif"] | None = None
    depth: Literal[8, 16] | None = None
    quality: int | None = None
    metadata: Literal["keep", "none"] = "keep"
    on_fault: Literal["warn", "fallback"] = "warn"
    uncertainty: bool = False
    error_bound: bool = False
    compare: bool = False
    overwrite: bool = False

    def __post_init__(self):
        require_device(self.device)
        for name in ("batch_size", "memory"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"--{name} must be above 0, got {value}")
        if self.scale != "auto" and not 0 < self.scale <= 1:
            raise ValueError(f"--scale must be auto, or above 0 and at most 1, got {self.scale:g}")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ValueError(f"--quality must be from 1 to 100, got {self.quality}")
        for name in ("tile", "predictor_tile", "max_side"):
            value = getattr(self, name)
            if value is not None and value < SMALLEST_TILE:
                raise ValueError(f"--{name} must be {SMALLEST_TILE} pixels or more, got {value}")

    @property
    def suffix(self) -> str | None:
        """The output's file suffix if a format is given."""
        return self.format and f".{self.format}"


def ways(options: Options, numbers: dict[str, Any]) -> list[tuple[Options, float]]:
    """The options with each checkpoint that may be taken, the best first, and the longest time in seconds for each.

    A preset or a number of stages that is given goes before that of the way.

    Args:
        options: of the command line.
        numbers: sampling settings that override the preset's, by field of `SamplingSettings`.

    Raises:
        ValueError: there is no such local checkpoint, or its index shows that it does not suit the settings.
    """
    SamplingSettings(**numbers)
    if options.checkpoint is not None:
        check_settings(options.checkpoint, options.preset, numbers)
        return [(options, math.inf)]
    # What is given is that of one way for each checkpoint, with the longest of its times.
    is_free = options.preset is None and "stages" not in numbers
    found: dict[tuple[str, str | None], float] = {}
    for way in WAYS:
        if way.longest and (SHIPPED / way.checkpoint).is_dir():
            key = str(SHIPPED / way.checkpoint), way.preset if is_free else options.preset
            found[key] = max(way.longest, found.get(key, 0))
    usable, errors = [], []
    for (checkpoint, preset), longest in found.items():
        presets = (stored_index(checkpoint) or {}).get("presets", {})
        has_stages = any(values.get("stages") for values in presets.values())
        try:
            check_settings(checkpoint, preset, numbers)
            if has_stages or not numbers.get("stages"):
                usable.append((replace(options, checkpoint=checkpoint, preset=preset), longest))
        except ValueError as error:
            errors.append(error)
    if errors and not usable:
        raise errors[0]
    # Where none is usable, the default says why as it is loaded: it is not there, or has no stages.
    return usable or [(replace(options, checkpoint=PRETRAINED), math.inf)]


def check_settings(checkpoint: str, preset: str | None, numbers: dict[str, Any]) -> None:
    """ValueError if there is no such local checkpoint, or its index shows that it does not suit the settings."""
    index = stored_index(checkpoint)
    if index is not None:
        preset_settings(index.get("presets", {}), preset).changed(numbers)
    elif preset and checkpoint.endswith(".ckpt"):
        preset_settings({}, preset)
