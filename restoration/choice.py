"""Which checkpoint restores photographs if the user names none: the best one that takes no more than about a minute."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from deblur.data.images import ImageError, header_size
from deblur.models.hub import PRETRAINED, SHIPPED

BEST = "maxim"
PATIENCE = 60.0  # seconds
CORE_SECONDS = 55.0  # that BEST takes for a megapixel on one core, measured with bf16 on a Xeon with AMX


def default_checkpoint(
    files: Sequence[Path], device: str, scale: float = 1.0, max_side: int | None = None
) -> tuple[str, str | None]:
    """The checkpoint for these files on this kind of device, and a remark if it is not the best one.

    It depends on the sizes at which the images are restored, by `scale` and `max_side`, and on the number of cores
    alone, so that a job that is run again gets the same one.
    """
    if not (SHIPPED / BEST).is_dir():
        return PRETRAINED, None
    seconds = CORE_SECONDS * sum(_pixels(file, scale, max_side) for file in files) / 1e6 / len(os.sched_getaffinity(0))
    if device != "cpu" or seconds <= PATIENCE:
        return str(SHIPPED / BEST), None
    minutes = round(seconds / 60)
    remark = f"restoring by lite; maxim is better, and would take about {max(1, minutes)} min: --checkpoint maxim"
    return PRETRAINED, remark


def _pixels(path: Path, scale: float, max_side: int | None) -> float:
    """An image's number of restored pixels; 0 for a file that is no image, which is reported when it is restored."""
    try:
        height, width = header_size(path)
    except (ImageError, OSError):
        return 0
    scale = min(scale, (max_side or math.inf) / max(height, width))
    return height * width * scale**2
