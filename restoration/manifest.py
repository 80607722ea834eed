"""manifest.json: how each image of a folder was restored."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deblur.files import locked, replacing


class Manifest:
    """manifest.json in the output folder, updated atomically after every image.

    Several processes may write it: each adds to the current content, one at a time.

    Args:
        folder: the output folder.
        facts: what a restoration depends on besides the image.

    Raises:
        ValueError: the file is not JSON.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]):
        self.path, self.facts, self.folder = folder / "manifest.json", facts, folder
        self.files = self._read()

    def _read(self) -> dict[str, dict]:
        try:
            return json.loads(self.path.read_text(encoding="utf-8")) if self.path.is_file() else {}
        except ValueError as error:
            raise ValueError(f"{self.path} is not JSON ({error}): remove it") from error

    def has(self, image: Path) -> bool:
        """Whether this image, unchanged, was restored with the same facts and the written files still exist."""
        entry = self.files.get(str(image), {})
        same = (self.facts | _stamp(image)).items() <= entry.items()
        return same and all((self.folder / name).is_file() for name in entry["written"])

    def replaces(self, image: Path, written: Sequence[Path]) -> bool:
        """Whether files are there that give way to those about to be written."""
        earlier = [self.folder / name for name in self.files.get(str(image), {"written": []})["written"]]
        return any(file.is_file() for file in [*earlier, *written])

    def add(self, image: Path, written: Sequence[Path], found: dict[str, Any]) -> None:
        """Record a restored image, the files written for it and what else was `found`, such as faults and tiles.

        Files of an earlier restoration that it replaces are removed.
        """
        names = [path.relative_to(self.folder).as_posix() for path in written]
        entry = {"written": names} | found | _stamp(image) | self.facts
        with locked(self.path.with_name(f".{self.path.name}.lock")), replacing(self.path) as part:
            before = self._read()
            gone = {key for key, other in before.items() if key == str(image) or set(names) & set(other["written"])}
            self.files = {key: other for key, other in before.items() if key not in gone} | {str(image): entry}
            kept = {name for other in self.files.values() for name in other["written"]}
            for name in {name for key in gone for name in before[key]["written"]} - kept:
                file = self.folder / name
                if file.resolve().is_relative_to(self.folder.resolve()):  # never delete elsewhere, whatever it says
                    file.unlink(missing_ok=True)
            part.write_text(json.dumps(self.files, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _stamp(image: Path) -> dict[str, int]:
    status = image.stat()
    return {"bytes": status.st_size, "modified": status.st_mtime_ns}
