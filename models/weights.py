"""Read weight files: names and tensors, never code. Every error is one sentence."""

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


def check_keys(network: nn.Module, state: dict[str, Tensor], what: str) -> None:
    """Raise CheckpointError, naming the first differing key, unless all keys and shapes are those of the network."""
    expected, found = ({k: tuple(v.shape) for k, v in tensors.items()} for tensors in (network.state_dict(), state))
    for key in sorted(expected.keys() | found.keys()):
        if key not in found:
            difference = f"it lacks {key} {expected[key]}"
        elif key not in expected:
            difference = f"it has {key} {found[key]}, which is not expected"
        elif expected[key] != found[key]:
            difference = f"{key} has shape {found[key]}, expected {expected[key]}"
        else:
            continue
        raise CheckpointError(f"{what} is of another architecture: {difference}")
