"""What a checkpoint says of itself in model_index.json, read without the libraries that its networks need."""

import json
import os
import re
from pathlib import Path

from models.flow import Flow

INDEX = "model_index.json"
ONNX = "OnnxNetwork"  # what stands there in place of a class of PyTorch
PRETRAINED = Path(__file__).parents[1] / "pretrained" / "lite"


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message is one sentence that says which, why and what to do."""


def pretrained() -> str:
    """The checkpoint that comes with the repository; CheckpointError where it is not there."""
    if not PRETRAINED.is_dir():
        raise CheckpointError(f"no checkpoint is named, and there is no {PRETRAINED}: give one with --checkpoint")
    return str(PRETRAINED)


def name_of(checkpoint: str | None) -> str:
    """What a checkpoint is called where it is spoken of: as it was given, or if none was the repository's own."""
    return checkpoint or PRETRAINED.relative_to(PRETRAINED.parents[1]).as_posix()


def is_hub_id(source: str) -> bool:
    """Whether a checkpoint is named user/name or user/name@revision, and nothing here has that name."""
    return not os.path.exists(source) and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(@.+)?", source) is not None


def stored_index(source: str) -> dict | None:
    """What a checkpoint that lies here says of itself; None for a .ckpt and a hub's, of which nothing is known yet.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    if source.endswith(".ckpt"):
        if not Path(source).is_file():
            raise CheckpointError(f"checkpoint {source} does not exist")
        return None
    if os.path.isdir(source):
        return read_json(Path(source) / INDEX, "an exported checkpoint has one; train.py writes it after fit")
    if not is_hub_id(source):
        raise CheckpointError(f"checkpoint {source} is neither a folder, a .ckpt file nor a hub id like user/name")
    return None


def is_deployed(index: dict) -> bool:
    """Whether a checkpoint's networks are ONNX files, which onnxruntime runs."""
    predictor = index.get("predictor")
    return isinstance(predictor, list) and predictor[-1:] == [ONNX]


def flow_of(index: dict, what: str) -> Flow | None:
    """The flow that a checkpoint, called `what`, was trained as; None for diffusion, as in all older ones.

    Raises:
        CheckpointError: what it says is no flow.
    """
    if index.get("flow") is None:
        return None
    try:
        return Flow(**index["flow"])
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{what} says of its flow {index['flow']!r}, which is none: {error}") from error


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
