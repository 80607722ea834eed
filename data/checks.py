"""The checks at the start of a run: the beginning and end of every file. tools/doctor.py also looks at the pixels."""

import os
from collections.abc import Sequence
from pathlib import Path

from base.progress import ProgressBar
from data import images
from data.formats import opened
from data.layouts import DatasetError, Pair


def check_files(items: Sequence[Pair | Path]) -> None:
    """Read every file's header, of pairs or of sharp photographs: a pair's sizes must agree, all files be complete.

    All faults are reported in one DatasetError.
    """
    faults, unit = [], "file" if isinstance(items[0], Path) else "pair"
    for item in ProgressBar(items, desc="checking files", unit=unit, leave=False, delay=2):
        files = [item] if isinstance(item, Path) else [item.blurry, item.sharp]
        try:
            sizes = [_head(file) for file in files]
        except images.ImageError as error:
            faults.append(error)
            continue
        if sizes[0] != sizes[-1]:
            (a, b), (c, d) = sizes
            faults.append(DatasetError(f"A pair differs in size: {item.blurry} has {a}x{b}, {item.sharp} has {c}x{d}."))
    if len(faults) == 1:
        raise faults[0]
    if faults:
        shown = " ".join(map(str, faults[:8])) + (" And others." if len(faults) > 8 else "")
        raise DatasetError(f"{len(faults)} files or pairs are damaged: {shown}")


def _head(file: Path) -> tuple[int, int]:
    """(width, height) from a file's header, with its orientation applied; ImageError if header or end is damaged."""
    try:
        with opened(file) as image:
            size, kind = image.size, image.format
            # For other formats Pillow would have to decode the image to find the orientation; cameras write JPEG.
            turned = kind == "JPEG" and image.getexif().get(0x0112, 1) >= 5
        with open(file, "rb") as whole:
            whole.seek(-min(64, os.path.getsize(file)), os.SEEK_END)
            tail = whole.read()
    except images.ImageError:
        raise
    except Exception as error:  # as in images.read_file
        raise images.ImageError(f"{file} cannot be decoded, it may be damaged: {str(error).rstrip('.')}.") from None
    if (kind == "PNG" and b"IEND" not in tail) or (kind == "JPEG" and b"\xff\xd9" not in tail):
        raise images.ImageError(f"{file} cannot be decoded, it may be damaged: its end is missing.")
    return size[::-1] if turned else size
