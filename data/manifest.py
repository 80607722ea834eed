"""manifest.json: how each image of a folder was restored."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from base.files import locked, replacing


class Manifest:
    """manifest.json in the output folder: how each image was restored. Whole after every image, or not changed.

    Several processes may write it: each adds to what it finds there, one at a time.

    Args:
        folder: the output folder.
        facts: what a restoration depends on, beside the image.

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
        """Whether the unchanged image was restored with the same facts, and what was written is still there."""
        entry = self.files.get(str(image), {})
        same = (self.facts | _stamp(image)).items() <= entry.items()
        return same and all((self.folder / name).is_file() for name in entry["written"])

    def replaced_by(self, image: Path, written: Sequence[Path]) -> str | None:
        """Why what lies in the folder is replaced by files that are about to be written; None where nothing is."""
        names, stamp = set(self._names(written)), _stamp(image)
        others = [other for other in self.files.values() if names & set(other["written"])]
        same = [other for other in others if stamp.items() <= other.items()]  # named from elsewhere, perhaps
        entry = self.files.get(str(image)) or next(iter(same), None)
        if entry and any((self.folder / name).is_file() for name in entry["written"]):
            if not self.facts.items() <= entry.items():
                return "other settings"
            return "done before" if stamp.items() <= entry.items() else "changed images"
        if others:
            return "other images"
        return "not in manifest.json" if any(file.is_file() for file in written) else None

    def add(self, image: Path, written: Sequence[Path], found: dict[str, Any]) -> None:
        """Write down a restored image; what it replaces is removed, with all that was written beside it.

        Args:
            image: the file that was restored.
            written: the files that it was written to.
            found: what was found out on the way.
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
                if file.resolve().is_relative_to(self.folder.resolve()):  # whatever somebody wrote into the manifest
                    file.unlink(missing_ok=True)
            part.write_text(json.dumps(self.files, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def _names(self, written: Sequence[Path]) -> list[str]:
        return [path.relative_to(self.folder).as_posix() for path in written]


def _stamp(image: Path) -> dict[str, int]:
    status = image.stat()
    return {"bytes": status.st_size, "modified": status.st_mtime_ns}
