"""Output folders of many files that a stopped command can resume."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data.layouts import DatasetError


@contextmanager
def resumable(folder: Path, description: str, facts: dict[str, Any]) -> Iterator[Path]:
    """A hidden folder beside `folder` to fill; it takes the place of `folder` when the block ends.

    If the block raises, the hidden folder stays, and the same command finds the finished files there.

    Args:
        folder: must not exist or must be empty.
        description: name of the JSON file in it that holds `facts`.
        facts: what the files depend on.

    Raises:
        DatasetError: the hidden folder was begun with other facts.
    """
    part = folder.with_name(f".{folder.name}.part")
    described, text = part / description, json.dumps(facts, indent=1) + "\n"
    if described.is_file() and described.read_text() != text:
        raise DatasetError(f"{part} was begun with other settings: give those again, or remove it.")
    part.mkdir(parents=True, exist_ok=True)
    described.write_text(text)
    yield part
    os.replace(part, folder)
