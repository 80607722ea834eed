"""Folders of many files that a stopped command goes on with."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data.layouts import DatasetError


@contextmanager
def resumable(folder: Path, description: str, facts: dict[str, Any]) -> Iterator[Path]:
    """A hidden folder beside `folder` to fill, which takes its place when the block ends.

    If the block raises, it stays, and the same command finds there what it had made.

    Args:
        folder: must not be there, or be empty.
        description: name of the JSON file in it that holds `facts`.
        facts: what its files depend on.

    Raises:
        DatasetError: what lies there was begun with other facts.
    """
    part = folder.with_name(f".{folder.name}.part")
    described, text = part / description, json.dumps(facts, indent=1) + "\n"
    if described.is_file() and described.read_text() != text:
        raise DatasetError(f"{part} was begun with other settings: give those again, or remove it.")
    part.mkdir(parents=True, exist_ok=True)
    described.write_text(text)
    yield part
    os.replace(part, folder)
