"""Find image files by their names, without the libraries that read them."""

import glob
import importlib.util
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

READ = {  # the formats that are read, by Pillow's names, with their suffixes
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "AVIF": (".avif",),
    "HEIF": (".heic", ".heif"),  # if pillow_heif is installed
}
HEIF = set(READ["HEIF"])
SUFFIXES = {suffix for suffixes in READ.values() for suffix in suffixes}  # files treated as images
WRITABLE = SUFFIXES - set(READ["PPM"]) - (set() if importlib.util.find_spec("pillow_heif") else HEIF)
DEEP = {".png", ".tif", ".tiff"}  # those that hold 16 bits
RAW = {".3fr", ".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".raw", ".rw2"}
# Not supported, and named as such.
PASSED_OVER = RAW | {".eps", ".exr", ".gif", ".hdr", ".ico", ".jp2", ".jxl", ".mpo", ".pcx", ".psd", ".svg", ".tga"}
ADVICE = dict.fromkeys(RAW, "RAW is not read: export it as TIFF or 16-bit PNG") | {
    ".gif": "GIF is not read: save its first frame as PNG",
    ".jxl": "JPEG XL is not read: convert it to PNG",
    ".mpo": "in folders MPO is not read: give its name, and its first image is restored",
}
MANIFEST = "manifest.json"  # names the restored images of its folder


class DataError(ValueError):
    """Data that cannot be used; the message is one sentence."""

    def __init__(self, sentence: str):
        # A DataLoader puts a worker's whole traceback into the message: keep only the sentence.
        super().__init__(sentence.rpartition(f"{type(self).__name__}: ")[2].strip())


class ImageError(DataError):
    """An image that cannot be read or written; the message names the file."""


def find(path: str | Path, results: bool = True) -> list[Path]:
    """List images: a file returns itself, a folder all its images in sorted order, including subfolders.

    A pattern such as photos/**/*.png returns the images that match it. Hidden files and folders are ignored, and so are
    files without an image suffix in folders and patterns, and without `results` folders of restored images, which have
    a manifest. Raises ImageError if no image is found.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    if not results and path.is_dir() and is_output(path):
        raise ImageError(
            f"{path} holds restored images (it has a {MANIFEST}): to restore them again, give a pattern, '{path}/*.png'"
        )
    files = sorted(file for file in _visible(path, results) if file.suffix.lower() in SUFFIXES)
    if not files:
        raise ImageError(f"{path} holds no image ({' '.join(sorted(SUFFIXES))}).")
    return files


def named_files(names: Path, root: Path) -> list[Path]:
    """The files below `root` that a text file lists, one per line, sorted; DataError if one is missing."""
    if not names.is_file():
        raise DataError(f"{names} is no file: give a list of names, one a line.")
    files = sorted(root / line.strip() for line in names.read_text().splitlines() if line.strip())
    if not files:
        raise DataError(f"{names} lists no file.")
    for file in files:
        if not file.is_file():
            raise DataError(f"{names} lists {file.name}, but {file} is no file.")
    return files


def passed_over(path: str | Path) -> Counter[str]:
    """The number of images that `find` ignores because of their format, by suffix."""
    path = Path(path)
    suffixes = () if path.is_file() else (file.suffix.lower() for file in _visible(path, False))
    return Counter(suffix for suffix in suffixes if suffix in PASSED_OVER)


def tree(path: str | Path) -> Path:
    """The folder that `find` searches: a folder itself, a file's parent, or the fixed part of a pattern."""
    path = Path(path)
    if path.is_dir():
        return path
    magic = [] if path.is_file() else [part for part in (*reversed(path.parents), path) if glob.has_magic(part.name)]
    return magic[0].parent if magic else path.parent


def walk(root: Path, results: bool = True, depth: float = float("inf")) -> Iterator[Path]:
    """The files below a folder, `depth` levels deep, without hidden ones; `results` as in `find`.

    A folder is entered once, however many links lead to it.
    """
    seen, links = set(), [(root, depth)]
    while links:  # links last, so that a folder's files have its own name
        folders = [links.pop(0)]
        while folders:
            folder, left = folders.pop()
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen or (not results and folder != root and is_output(folder)):
                continue
            seen.add((status.st_dev, status.st_ino))
            for entry in os.scandir(folder):
                if entry.name.startswith("."):
                    continue
                if entry.is_file():
                    yield folder / entry.name
                elif left > 1 and entry.is_dir():
                    (links if entry.is_symlink() else folders).append((folder / entry.name, left - 1))


def is_output(folder: Path) -> bool:
    """Whether a folder holds restored images: the manifest of sample.py, or that of batches."""
    file = folder / MANIFEST
    return (folder / "manifest.parquet").is_file() or (file.is_file() and is_manifest(file.read_bytes()))


def is_manifest(content: bytes) -> bool:
    """Whether the content of a manifest.json is sample.py's; other programs have files of that name, too."""
    try:
        return all("written" in entry for entry in json.loads(content).values())
    except (ValueError, AttributeError, TypeError):
        return False


def _visible(path: Path, results: bool) -> Iterator[Path]:
    """The files below a folder or matching a pattern, without hidden ones."""
    root = tree(path)
    if path.is_dir():
        return walk(root, results)
    if not glob.has_magic(str(path)):
        raise ImageError(f"{path} is neither an image nor a folder: no such file.")
    pattern = path.relative_to(root).parts
    files = walk(root, results, float("inf") if "**" in pattern else len(pattern)) if root.is_dir() else ()
    return (file for file in files if _matches(file.relative_to(root).parts, pattern))


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path matches a pattern, part by part; ** stands for any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
