"""Read and write pictures: one place where files become [0, 1] tensors and tensors become files."""

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

FORMATS = {
    ".png": {"format": "PNG"},
    ".jpg": {"format": "JPEG", "quality": 95, "subsampling": 0},
    ".jpeg": {"format": "JPEG", "quality": 95, "subsampling": 0},
    ".webp": {"format": "WEBP", "lossless": True},
    ".tif": {"format": "TIFF"},
    ".tiff": {"format": "TIFF"},
    ".bmp": {"format": "BMP"},
}
SUFFIXES = set(FORMATS)


class ImageError(ValueError):
    """A picture that cannot be read or written; the message is one sentence naming the file."""

    def __init__(self, sentence: str):
        # A DataLoader repeats a worker's error with the whole traceback as its message: keep the sentence.
        super().__init__(sentence.rpartition("ImageError: ")[2].strip())


def read(path: str | Path) -> Tensor:
    """Read a picture as (3, H, W) float32 in [0, 1].

    The EXIF orientation is applied, grey becomes three equal channels, alpha is dropped, palette, CMYK and
    1-bit become RGB. 16-bit grey keeps its depth (divided by 65535); Pillow reads 16-bit RGB as 8-bit. Of
    several frames the first.

    Raises ImageError, naming the file, for whatever cannot be read, truncated files included.
    """
    return to_float(read_raw(path)).contiguous()


def read_raw(path: str | Path) -> Tensor:
    """As read, but in the file's own numbers, not yet contiguous: uint8 to 255, or int32 to 65535 for 16 bits."""
    path = Path(path)
    if not path.is_file():
        raise ImageError(f"{path} is not a picture file: {'it is a folder' if path.is_dir() else 'no such file'}.")
    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            deep = image.mode[0] in "IF"  # I;16 is 16-bit grey, I and F are 32-bit integers and floats
            array = np.array(image if deep else image.convert("RGB"))
    except UnidentifiedImageError:
        raise ImageError(f"{path} is not a picture of a known format.") from None
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error and many more
        raise ImageError(f"{path} cannot be decoded, it may be damaged: {str(error).rstrip('.')}.") from None
    if not deep:
        return torch.from_numpy(array).permute(2, 0, 1)
    if array.dtype.kind == "f" or array.min() < 0 or array.max() > 65535:
        raise ImageError(f"{path} has pixels of 32 bits, whose range is unknown: save it with 8 or 16 bits.")
    return torch.from_numpy(array.astype(np.int32)).expand(3, -1, -1)


def to_float(raw: Tensor) -> Tensor:
    """Bring what read_raw gives, whole or in part, to float32 in [0, 1]."""
    return raw.float().div_(255 if raw.dtype == torch.uint8 else 65535)


def write(path: str | Path, image: Tensor) -> None:
    """Write a (3, H, W) picture in [0, 1] as 8 bits, clipped and rounded; the suffix chooses the format.

    WebP is lossless, JPEG has quality 95 without chroma subsampling. Missing folders are made. The file
    appears under its name only when complete. Raises ImageError for a suffix not in SUFFIXES, OSError where
    the disk refuses.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ImageError(f"{path} cannot be written: its suffix must be one of {' '.join(sorted(SUFFIXES))}.")
    array = image.detach().cpu().float().clamp(0, 1).mul(255).round().byte().movedim(0, -1).numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        Image.fromarray(array).save(temporary, **FORMATS[path.suffix.lower()])
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def find(path: str | Path) -> list[Path]:
    """List pictures: a file gives itself, a folder all its pictures, sorted, with those of its subfolders.

    Hidden files and folders are passed over. Raises ImageError where there is nothing, or no picture.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ImageError(f"{path} is neither a picture nor a folder: no such file.")
    files = [
        file
        for file in path.rglob("*")
        if file.suffix.lower() in SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not files:
        raise ImageError(f"{path} holds no picture ({' '.join(sorted(SUFFIXES))}).")
    return sorted(files)
