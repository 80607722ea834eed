"""Find image files by their names, without the libraries that read them."""

import glob
import json
import os
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePath

from deblur.data.files.kinds import NO_SUFFIX, READ_SUFFIXES, REFUSED_SUFFIXES

IMAGES_BEGIN_WITH = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*")  # PNG, JPEG, TIFF
MANIFEST = "manifest.json"  # names the restored images of its folder


class DataError(ValueError):
    """Data that cannot be used; the message is one sentence."""

    def __init__(self, sentence: str):
        # A DataLoader puts a worker's whole traceback into the message: keep only the sentence.
        super().__init__(sentence.rpartition(f"{type(self).__name__}: ")[2].strip())


class ImageError(DataError):
    """An image that cannot be read or written; the message names the file."""


def normalised(name: str) -> str:
    """A name in the form in which names are compared, Unicode's NFC: macOS writes an accent as a character."""
    return unicodedata.normalize("NFC", name)


def name_below(file: PurePath, root: PurePath) -> str:
    """The name by which an image is paired with others: its path below a folder without the suffix, `normalised`."""
    return normalised(file.relative_to(root).with_suffix("").as_posix())


def on_disk(path: str | Path) -> Path:
    """A path in that form of Unicode in which it exists; the path itself if it does not."""
    if os.path.lexists(path):
        return Path(path)
    found, missing = Path(Path(path).anchor), Path(path)
    for part in missing.relative_to(found).parts:
        names = os.listdir(found) if not os.path.lexists(found / part) and os.path.isdir(found) else ()
        same = [name for name in names if normalised(name) == normalised(part)]
        found /= same[0] if same else part
    return found if os.path.lexists(found) else missing


def located(path: str | Path) -> tuple[Path, tuple[str, ...]]:
    """The beginning of a path that exists, and the rest if it is a pattern, otherwise ().

    What exists is taken as it is, be it named `[old]`.
    """
    path = Path(path)
    found = Path(path.anchor)
    parts = path.relative_to(path.anchor).parts
    for at, part in enumerate(parts):
        below = on_disk(found / part)
        if glob.has_magic(part) and not os.path.lexists(below):
            return found, parts[at:]
        found = below
    return found, ()


def find(path: str | Path, results: bool = True) -> list[Path]:
    """List images: a file returns itself, a folder all its images in sorted order, including subfolders.

    A pattern such as photos/**/*.png returns the images that match it. Hidden files and folders are ignored, and so are
    files without an image suffix in folders and patterns, and without `results` restored images, which a manifest
    lists; but not those of the folder in which a pattern begins. Raises ImageError if no image is found.
    """
    found, pattern = located(path)
    if found.is_file():
        return [found]
    if not found.is_dir():
        raise ImageError(f"{path} is neither an image nor a folder: no such file.")
    files = sorted(file for file in _visible(found, pattern) if file.suffix.lower() in READ_SUFFIXES)
    if not files:
        raise ImageError(f"{path} holds no image ({' '.join(sorted(READ_SUFFIXES))}).")
    if results:
        return files
    folders = {folder for file in files for folder in file.parents if folder.is_relative_to(found)}
    restored = _results(files, folders - {found} if pattern else folders)
    originals = [file for file in files if file not in restored]
    if not originals:
        raise ImageError(
            f"{path} holds restored images alone (as its {MANIFEST} says): to restore them again, give a pattern that"
            f" begins in their folder, such as '{files[0].parent}/*{files[0].suffix}'"
        )
    return originals


def passed_over(path: str | Path) -> Counter[str]:
    """The number of images that `find` ignores, by their suffix or as NO_SUFFIX: those of another one or without."""
    found, pattern = located(path)
    files = _visible(found, pattern) if found.is_dir() else ()
    kinds = (_kind_passed_over(file) for file in files if file.suffix.lower() not in READ_SUFFIXES)
    return Counter(kind for kind in kinds if kind)


def _kind_passed_over(file: Path) -> str | None:
    if file.suffix.lower() in REFUSED_SUFFIXES:
        return file.suffix.lower()
    try:
        with open(file, "rb") as content:
            head = content.read(12)
    except OSError:
        return None
    is_image = head.startswith(IMAGES_BEGIN_WITH) or head[8:] in (b"WEBP", b"heic", b"avif", b"mif1")
    return NO_SUFFIX if is_image else None


def tree(path: str | Path) -> Path:
    """The folder that `find` searches: a folder itself, a file's parent, or the fixed part of a pattern."""
    found, _ = located(path)
    return found if found.is_dir() else found.parent


@cache
def _say_left_out(path: str, reason: str) -> None:
    """Say that a folder or a link cannot be read, once, however often it is met."""
    print(f"{path} cannot be read, and is left out: {reason}", file=sys.stderr)


def walk(root: Path, depth: float = float("inf")) -> Iterator[Path]:
    """The files below a folder, `depth` levels deep, without hidden ones.

    A folder is entered once, however many links lead to it. One that may not be read, as lost+found, is named on
    stderr; OSError if it is `root`.
    """
    seen, links = set(), [(root, depth)]
    while links:  # links last, so that a folder's files have its own name
        folders = [links.pop(0)]
        while folders:
            folder, left = folders.pop()
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            try:
                entries = list(os.scandir(folder))
            except OSError as error:
                if folder == root:
                    raise
                _say_left_out(error.filename, error.strerror)
                continue
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                try:
                    is_file, is_folder = entry.is_file(), entry.is_dir()
                except OSError as error:  # of a link into such a folder
                    _say_left_out(error.filename, error.strerror)
                    continue
                if is_file:
                    yield folder / entry.name
                elif left > 1 and is_folder:
                    (links if entry.is_symlink() else folders).append((folder / entry.name, left - 1))


def _results(files: Iterable[Path], folders: Iterable[Path]) -> set[Path]:
    """Those of the files that are restored images: listed by the manifest of a folder, or below a target of batches."""
    listed = {folder / name for folder in folders for name in written_by(_content(folder / MANIFEST))}
    targets = {folder for folder in folders if (folder / "manifest.parquet").is_file()}
    return {file for file in files if file in listed or not targets.isdisjoint(file.parents)}


def _content(manifest: Path) -> bytes:
    try:
        return manifest.read_bytes()
    except OSError:  # there is none, or it may not be read
        return b""


def written_by(manifest: bytes) -> list[str]:
    """The files that a manifest.json of sample.py lists, from its folder; none if it is another program's."""
    entries = entries_of(manifest) or {}
    return [name for entry in entries.values() for name in entry["written"] if isinstance(name, str)]


def entries_of(manifest: bytes) -> dict[str, dict] | None:
    """The entries of a manifest.json of sample.py; None if it is another program's, which may have that name, too."""
    try:
        entries = json.loads(manifest)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entries, dict) or not entries:
        return None
    are_ours = all(isinstance(entry, dict) and isinstance(entry.get("written"), list) for entry in entries.values())
    return entries if are_ours else None


def _visible(root: Path, pattern: Sequence[str]) -> Iterator[Path]:
    """The files below a folder that match a pattern, or all, without hidden ones."""
    depth = float("inf") if not pattern or "**" in pattern else len(pattern)
    files = walk(root, depth)
    return (file for file in files if not pattern or _matches(file.relative_to(root).parts, pattern))


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path matches a pattern, part by part; ** stands for any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    if not parts:
        return False
    name, wanted = normalised(parts[0]), normalised(pattern[0])
    return (name == wanted or fnmatchcase(name, wanted)) and _matches(parts[1:], pattern[1:])
