"""Read weight files: names and tensors, never code. Every error is one sentence."""

import textwrap
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from models.index import CheckpointError


def read_torch(path: Path, checksums: bool = False) -> Any:
    """Load what torch.save wrote: tensors and plain values. A file that would run code is refused.

    `checksums`: verify the archive's checksums, which reads the whole file; otherwise tensors are read on first use.
    """
    if not path.is_file():
        raise CheckpointError(f"checkpoint {path} does not exist")
    try:
        if checksums:
            with zipfile.ZipFile(path) as archive:
                if damaged := archive.testzip():
                    raise zipfile.BadZipFile(damaged)
        lazy = not checksums and zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=lazy)
    except Exception as error:  # a damaged file, or a pickle that holds more than tensors and plain values
        raise CheckpointError(
            f"checkpoint {path} is damaged, or holds more than tensors and plain values, and was not loaded"
        ) from error


def read_folder(folder: Path) -> dict[str, Tensor]:
    """The tensors of the .safetensors file in a folder; none if there is no such file."""
    files = sorted(folder.glob("*.safetensors"))
    if len(files) > 1:
        names = " and ".join(file.name for file in files[:2])
        raise CheckpointError(f"{folder} has several weight files, {names}: remove all but one")
    try:
        return load_file(files[0]) if files else {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{files[0]} is damaged: {error}") from error


def load_weights(network: nn.Module, state: dict[str, Tensor], what: str) -> None:
    """Load weights. Raises CheckpointError, naming the first differing keys, if they are not those of the network."""
    try:
        network.load_state_dict(state)
    except RuntimeError as error:  # of several lines, the first of which names the class
        difference = textwrap.shorten(str(error).splitlines()[1], 200)
        raise CheckpointError(f"{what} is of another architecture: {difference}") from None
