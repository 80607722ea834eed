"""Find image files by their names, without the libraries that read them."""

import glob
import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HEIF = {".heic", ".heif"}  # read and written if pillow_heif is installed
WRITABLE = {".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp"}
WRITABLE |= HEIF if importlib.util.find_spec("pillow_heif") else set()
SUFFIXES = WRITABLE | HEIF  # files treated as images
DEEP = {".png", ".tif", ".tiff"}  # those that hold 16 bits
RAW = {".3fr", ".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".raw", ".rw2"}
PASSED_OVER = RAW | {".avif", ".exr", ".gif", ".hdr", ".ico", ".jp2", ".jxl", ".pbm", ".pcx", ".pgm", ".pnm", ".ppm"}
PASSED_OVER |= {".psd", ".svg", ".tga"}  # images in formats that are not supported


class DataError(ValueError):
    """Data that cannot be used; the message is one sentence."""

    def __init__(self, sentence: str):
        # A DataLoader puts a worker's whole traceback into the message: keep only the sentence.
        super().__init__(sentence.rpartition(f"{type(self).__name__}: ")[2].strip())


class ImageError(DataError):
    """An image that cannot be read or written; the message names the file."""


def find(path: str | Path) -> list[Path]:
    """List images: a file returns itself, a folder all its images in sorted order, including subfolders.

    A pattern such as photos/**/*.png returns the images that match it. Hidden files and folders are ignored, and so are
    files without an image suffix in folders and patterns. Raises ImageError if nothing or no image is found.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    files = sorted(file for file in _visible(path) if file.suffix.lower() in SUFFIXES)
    if not files:
        raise ImageError(f"{path} holds no image ({' '.join(sorted(SUFFIXES))}).")
    return files


def passed_over(path: str | Path) -> Counter[str]:
    """The number of images that `find` ignores because of their format, by suffix."""
    path = Path(path)
    suffixes = () if path.is_file() else (file.suffix.lower() for file in _visible(path))
    return Counter(suffix for suffix in suffixes if suffix in PASSED_OVER)


def tree(path: str | Path) -> Path:
    """The folder that `find` searches: a folder itself, a file's parent, or the fixed part of a pattern."""
    path = Path(path)
    if path.is_dir():
        return path
    magic = [] if path.is_file() else [part for part in (*reversed(path.parents), path) if glob.has_magic(part.name)]
    return magic[0].parent if magic else path.parent


def _visible(path: Path) -> Iterator[Path]:
    """The files below a folder or matching a pattern, without hidden ones."""
    root = tree(path)
    if path.is_dir():
        files = path.rglob("*")
    elif glob.has_magic(str(path)):
        files = map(Path, glob.iglob(str(path), recursive=True))
    else:
        raise ImageError(f"{path} is neither an image nor a folder: no such file.")
    for file in files:
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(root).parts):
            yield file
