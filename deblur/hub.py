"""Find checkpoints by name, in folders or on the Hugging Face hub, and read their index; this needs no torch."""

import json
import math
import os
import re
from pathlib import Path
from typing import NamedTuple

from deblur.settings import SamplingSettings

INDEX = "model_index.json"
ONNX_CLASS = "OnnxNetwork"  # stands in the index where a PyTorch class otherwise would
SHIPPED = Path(__file__).parent / "pretrained"  # the checkpoints that come with the repository
PRETRAINED = str(SHIPPED / "lite")  # the default
DOWNLOADED_FILES = ["*.json", "*.safetensors", "*.onnx", "*.md"]  # of a checkpoint; nothing else is downloaded


class Way(NamedTuple):
    """A checkpoint of the repository with a preset, and what it is for.

    Args:
        checkpoint, preset: their names.
        longest: seconds that a job may take by it on a CPU where no checkpoint is named; 0: it must be named.
        purpose: when to use it.
    """

    checkpoint: str
    preset: str
    longest: float
    purpose: str


WAYS = (  # the best first, for photographs
    Way("maxim", "balanced", 60, "use it when one photograph matters and may take minutes"),
    Way("maxim", "fast", 120, "use it when that takes too long: a third of the time"),
    Way("swift", "balanced", 600, "use it when a photograph is large, or there are several"),
    Way("lite", "balanced", math.inf, "use it when there are many photographs and no GPU"),
    Way("u2net", "balanced", 0, "use it when photographs must be restored faster still"),
    Way("text", "balanced", 0, "use it when there is a page of text: a document, a screen, a receipt"),
)
TEXT = "text"  # the checkpoint that is for no photograph
PURPOSES = {way.checkpoint: way.purpose for way in reversed(WAYS)}


class CheckpointError(ValueError):
    """A checkpoint cannot be used. The message is one sentence that says which, why and what to do."""


def shipped() -> list[str]:
    """The names of the checkpoints that come with the repository, the default first."""
    return sorted((f.parent.name for f in SHIPPED.glob(f"*/{INDEX}")), key=lambda name: (name != "lite", name))


def locate(source: str) -> str:
    """The path of a checkpoint: lite and pretrained/lite are the repository's own from any folder.

    A checkpoint of that name in the current folder comes first; anything else is returned unchanged.
    """
    name = source.removeprefix("pretrained/")
    comes_along = bool(re.fullmatch(r"[\w-]+", name)) and (SHIPPED / name / INDEX).is_file()
    is_here = os.path.isfile(os.path.join(source, INDEX))
    return str(SHIPPED / name) if comes_along and not is_here else source


def name_of(checkpoint: str | None) -> str:
    """A checkpoint's display name: as the user gave it, or pretrained/NAME for the repository's own."""
    checkpoint = checkpoint or PRETRAINED
    is_shipped = Path(checkpoint).parent == SHIPPED
    return f"pretrained/{Path(checkpoint).name}" if is_shipped else checkpoint


def require_hub_id(source: str) -> None:
    """Raise CheckpointError unless source is like user/name or user/name@revision and no local file has that name."""
    if os.path.exists(source) or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(@.+)?", source):
        raise CheckpointError(
            f"checkpoint {source} is neither a folder, a .ckpt file, a hub id like user/name nor one that comes with"
            f" the repository ({', '.join(shipped()) or 'none is there'})"
        )


def find_folder(source: str) -> Path:
    """The folder of a checkpoint: a local one, the repository's own by its name, or the download of a hub id
    "user/name" or "user/name@revision".

    If the hub cannot be reached, an earlier download is taken from the cache.

    Raises:
        CheckpointError: there is no such local folder, and the hub did not provide one.
    """
    source = locate(source)
    if os.path.isdir(source):
        return Path(source)
    require_hub_id(source)
    name, _, revision = source.partition("@")
    from huggingface_hub import get_token, snapshot_download  # not at the top: slow to import, and rarely needed

    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=DOWNLOADED_FILES))
    except Exception as error:  # any error of the network or the hub
        reason, token = (str(error).strip() or type(error).__name__).splitlines()[0], get_token()
        if token:  # which a server may have sent back
            reason = reason.replace(token, "***")
        raise CheckpointError(
            f"checkpoint {source} is not a folder here, and the hub did not give it: {reason}"
        ) from None


def stored_index(source: str) -> dict | None:
    """The model_index.json of a local checkpoint; None for a .ckpt or a hub id, which cannot be read so cheaply.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    source = locate(source)
    if source.endswith(".ckpt"):
        if not Path(source).is_file():
            raise CheckpointError(f"checkpoint {source} does not exist")
        return None
    if os.path.isdir(source):
        return read_index(Path(source))
    require_hub_id(source)
    return None


def read_index(folder: Path) -> dict:
    """The model_index.json of an exported checkpoint, with presets that are settings.

    Raises CheckpointError if it is missing or damaged.
    """
    index = read_json(folder / INDEX, "an exported checkpoint has one; train.py writes it after fit")
    presets = index.get("presets") or {}
    if not isinstance(presets, dict):
        raise CheckpointError(f"{folder / INDEX} has presets that are none: settings by their names, got {presets!r}")
    for name, values in presets.items():
        try:
            SamplingSettings(**values)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{folder / INDEX} has a preset {name} that is none: {error}") from None
    return index | {"presets": presets}


def read_json(path: Path, hint: str = "the checkpoint is incomplete, copy it again") -> dict:
    """Read a JSON file that holds an object. CheckpointError if there is none, which ends with `hint`."""
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: {hint}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} does not hold a JSON object: the checkpoint is damaged, copy it again")
    return content
