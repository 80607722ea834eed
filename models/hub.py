"""Find checkpoints by name, in local folders or on the Hugging Face hub."""

import os
from pathlib import Path

from models.index import CheckpointError, locate, require_hub_id

PATTERNS = ["*.json", "*.safetensors", "*.onnx", "*.md"]


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
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=PATTERNS))
    except Exception as error:  # any error of the network or the hub
        raise CheckpointError(
            f"checkpoint {source} is not a folder here, and the hub did not give it: {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    """The first line of an error of huggingface_hub, without the token, which a server may have sent back."""
    from huggingface_hub import get_token

    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    token = get_token()
    return reason.replace(token, "***") if token else reason
