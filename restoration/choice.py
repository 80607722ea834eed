"""Which checkpoint restores photographs if the user names none: the best one that takes no more than about a minute."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from deblur.data.images import ImageError, header_size
from deblur.models.hub import PRETRAINED, SHIPPED
from deblur.models.working_size import WorkingSize
from deblur.restoration.options import largest_scale

BEST = "maxim"
PATIENCE = 60.0  # seconds
CORE_SECONDS = 64.0  # that BEST takes for a megapixel on one core, measured with bf16 on a Xeon with AMX


def default_checkpoint(
    files: Sequence[Path], device: str, scale: float | Literal["auto"] = "auto", max_side: int | None = None
) -> tuple[str, str | None]:
    """The checkpoint for these files on this kind of device, and a remark if it is not the best one.

    It depends on the sizes at which the images are restored, by `scale` and `max_side`, and on the number of cores
    alone, so that a job that is run again gets the same one.
    """
    if not (SHIPPED / BEST).is_dir():
        return PRETRAINED, None
    sized = list(sizes(files))
    pixels = restored_pixels(sized, scale, max_side)
    seconds = CORE_SECONDS * pixels / 1e6 / len(os.sched_getaffinity(0))
    if device != "cpu" or seconds <= PATIENCE:
        return str(SHIPPED / BEST), None
    minutes = round(seconds / 60)
    # Which scale auto finds is known only to the checkpoint itself.
    is_most = scale == "auto" and any(max(size) > WorkingSize.largest_kept for _, *size in sized)
    length = f"{'up to' if is_most else 'about'} {max(1, minutes)} min"
    remark = f"restoring by lite; maxim is better, and would take {length}: --checkpoint maxim"
    return PRETRAINED, remark


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
