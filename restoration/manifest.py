"""manifest.json: how each image of a folder was restored."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from base.files import locked, replacing


class Manifest:
    """manifest.json in the output folder: how each image was restored. It is updated atomically after every image.

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

    def replaced_by(self, image: Path, written: Sequence[Path]) -> str | None:
        """Why existing files are replaced by those about to be written; None if no file is replaced."""
        names, stamp = set(self._names(written)), _stamp(image)
        others = [other for other in self.files.values() if names & set(other["written"])]
        same = [other for other in others if stamp.items() <= other.items()]  # perhaps under another path
        entry = self.files.get(str(image)) or next(iter(same), None)
        if entry and any((self.folder / name).is_file() for name in entry["written"]):
            if not self.facts.items() <= entry.items():
                return "other settings"
            return "done before" if stamp.items() <= entry.items() else "changed images"
        if others:
            return "other images"
        return "not in manifest.json" if any(file.is_file() for file in written) else None

    def add(self, image: Path, written: Sequence[Path], found: dict[str, Any]) -> None:
        """Record a restored image. Files of an earlier restoration that it replaces are removed.

        Args:
            image: the file that was restored.
            written: the files written for it.
            found: results to record, such as warnings and the tile size.
        """
        names = self._names(written)
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

    def _names(self, written: Sequence[Path]) -> list[str]:
        return [path.relative_to(self.folder).as_posix() for path in written]


def _stamp(image: Path) -> dict[str, int]:
    status = image.stat()
    return {"bytes": status.st_size, "modified": status.st_mtime_ns}
