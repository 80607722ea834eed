"""What a checkpoint says of itself in model_index.json, read without the libraries that its networks need."""

import json
import os
import re
from pathlib import Path

INDEX = "model_index.json"
PRETRAINED = Path(__file__).parents[1] / "pretrained" / "lite"


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message is one sentence that says which, why and what to do."""


def pretrained() -> str:
    """The checkpoint that comes with the repository; CheckpointError where it is not there."""
    if not PRETRAINED.is_dir():
        raise CheckpointError(f"no checkpoint is named, and there is no {PRETRAINED}: give one with --checkpoint")
    return str(PRETRAINED)


def is_hub_id(source: str) -> bool:
    """Whether a checkpoint is named user/name or user/name@revision, and nothing here has that name."""
    return not os.path.exists(source) and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(@.+)?", source) is not None


def stored_presets(source: str) -> dict[str, dict] | None:
    """The presets of a checkpoint that lies here: name -> fields of `SamplingSettings`; of a .ckpt there are none.

    None: it is a hub's, and not known yet.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    if source.endswith(".ckpt"):
        if not Path(source).is_file():
            raise CheckpointError(f"checkpoint {source} does not exist")
        return {}
    if os.path.isdir(source):
        return read_json(Path(source) / INDEX, "an exported checkpoint has one; train.py writes it after fit").get(
            "presets", {}
        )
    if not is_hub_id(source):
        raise CheckpointError(f"checkpoint {source} is neither a folder, a .ckpt file nor a hub id like user/name")
    return None


def read_json(path: Path, hint: str) -> dict:
    """A JSON file that holds an object; `hint` says what to do where there is none."""
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: {hint}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object: the checkpoint is damaged, copy it again")
    return content
