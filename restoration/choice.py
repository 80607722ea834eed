"""Which checkpoint restores photographs if the user names none: the best one that takes no more than about a minute."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from deblur.data.files.images import ImageError, header_size
from deblur.devices import core_count, resolve_precision
from deblur.hub import PRETRAINED, SHIPPED
from deblur.restoration.options import Options, largest_scale
from deblur.working_size import WorkingSize

BEST = "maxim"
PATIENCE = 60.0  # seconds
# Seconds that BEST takes for a megapixel on one core: with AMX of a Xeon, and with AVX2 of a Zen 3.
CORE_SECONDS = {"bf16": 64.0, "fp32": 290.0}
FAST = 0.4  # of that time, by its preset fast: one stage of three


def with_checkpoint(
    options: Options, files: Sequence[Path], device: torch.device, numbers: dict[str, Any]
) -> tuple[Options, str | None]:
    """The options with the checkpoint for these files on this device, and a remark if there is a better way.

    It depends on the sizes at which the images are restored, by `scale` and `max_side`, on the precision and on the
    number of cores alone, so that a job that is run again gets the same one. BEST comes with its preset fast if only
    that is quick enough, and neither a preset nor the number of stages is given.
    """
    if not (SHIPPED / BEST).is_dir():
        return replace(options, checkpoint=PRETRAINED), None
    best = replace(options, checkpoint=str(SHIPPED / BEST))
    if device.type != "cpu":
        return best, None
    sized = list(sizes(files))
    pixels = restored_pixels(sized, options.scale, options.max_side)
    core_seconds = CORE_SECONDS[resolve_precision(options.precision, device)]
    seconds = core_seconds * pixels / 1e6 / core_count()
    if seconds <= PATIENCE:
        return best, None
    # Which scale auto finds is known only to the checkpoint itself.
    is_most = options.scale == "auto" and any(max(size) > WorkingSize.largest_kept for _, *size in sized)
    length = f"{'up to' if is_most else 'about'} {max(1, round(seconds / 60))} min"
    way = f"would take {length}: --checkpoint maxim"
    if seconds * FAST <= PATIENCE and options.preset is None and "stages" not in numbers:
        return replace(best, preset="fast"), f"restoring by maxim's preset fast; all its stages are better, and {way}"
    return replace(options, checkpoint=PRETRAINED), f"restoring by lite; maxim is better, and {way}"


def sizes(files: Iterable[Path]) -> Iterator[tuple[Path, int, int]]:
    """(file, height, width) of the images; a file that is no image is reported when it is restored."""
    for path in files:
        try:
            yield path, *header_size(path)
        except (ImageError, OSError):
            continue


def restored_pixels(
    sized: Iterable[tuple[Path, int, int]], scale: float | Literal["auto"], max_side: int | None
) -> float:
    """How many pixels images of these `sizes` have where they are restored; auto counts as their own size."""
    return sum(height * width * largest_scale(scale, max_side, max(height, width)) ** 2 for _, height, width in sized)
