"""manifest.json: how each image of a folder was restored."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from deblur.data.files.search import MANIFEST, entries_of
from deblur.storage import locked, write_json


class Manifest:
    """manifest.json in the output folder, updated atomically after every image.

    Several processes may write it: each adds to the current content, one at a time. An entry's key is the image's path
    from this folder, so that it is the same image from wherever it is named.

    Args:
        folder: the output folder.
        named: the file in it that the user named for an image; None: files are named after their images. Each such
            name has an entry of its own, so that no other restoration of the image replaces it.

    Raises:
        ValueError: the file is not one of sample.py.
    """

    def __init__(self, folder: Path, named: Path | None = None):
        self.folder, self.named = folder, named
        self.path = folder / MANIFEST
        self.files = self._read()

    def _read(self) -> dict[str, dict]:
        if not self.path.is_file():
            return {}
        entries = entries_of(self.path.read_bytes())
        if entries is None:
            raise ValueError(f"{self.path} is no manifest of sample.py: give another --output, or remove it")
        return entries

    def has(self, image: Path, files: Sequence[Path], facts: dict[str, Any]) -> bool:
        """Whether this image, unchanged, was restored into these files, which still exist.

        `facts` are what the restoration depends on besides the image.
        """
        entry = self.files.get(self._key(image), {})
        is_same = (facts | _stamp(image)).items() <= entry.items()
        return is_same and set(entry["written"]) == set(self._names(files)) and all(file.is_file() for file in files)

    def owned(self, images: Iterable[Path], replaced: Iterable[Path]) -> dict[Path, str]:
        """The files of other images than these, and whose they are, without those of restorations that are replaced."""
        current, gone, owners = set(map(self._key, images)), set(self._names(replaced)), {}
        for image, entry in self.files.items():
            first = entry["written"][:1]
            if image not in current and not gone.issuperset(first):
                owners |= {self.folder / name: image for name in entry["written"]}
        return {file: image for file, image in owners.items() if file.is_file()}

    def _key(self, image: Path) -> str:
        try:
            key = Path(os.path.relpath(image, self.folder)).as_posix()
        except ValueError:  # on another drive of Windows
            key = Path(os.path.abspath(image)).as_posix()
        return f"{key} as {self.named.name}" if self.named else key

    def _names(self, files: Iterable[Path]) -> list[str]:
        return [file.relative_to(self.folder).as_posix() for file in files]

    def replaces(self, image: Path, written: Sequence[Path]) -> bool:
        """Whether files are there that give way to those about to be written."""
        earlier = [self.folder / name for name in self.files.get(self._key(image), {"written": []})["written"]]
        return any(file.is_file() for file in [*earlier, *written])

    def add(self, image: Path, written: Sequence[Path], facts: dict[str, Any]) -> None:
        """Record a restored image, the files written for it, and what made it or was found, such as faults.

        Files of an earlier restoration that it replaces are removed.
        """
        names, key = self._names(written), self._key(image)
        entry = {"written": names} | facts | _stamp(image)
        with locked(self.path.with_name(f".{self.path.name}.lock")):
            before = self._read()
            # A file that is another's by its name alone, such as a_compare.png, takes nothing else of that one with it.
            gone = {other for other, left in before.items() if other == key or names[:1] == left["written"][:1]}
            self.files = {other: left for other, left in before.items() if other not in gone} | {key: entry}
            kept = {name for left in self.files.values() for name in left["written"]}
            for name in {name for other in gone for name in before[other]["written"]} - kept:
                file = self.folder / name
                is_inside = file.parent.resolve().is_relative_to(self.folder.resolve())
                if is_inside and file.is_file():  # never delete elsewhere, whatever the manifest says
                    file.unlink()
            write_json(self.path, self.files)


def _stamp(image: Path) -> dict[str, int]:
    status = image.stat()
    return {"bytes": status.st_size, "modified": status.st_mtime_ns}
