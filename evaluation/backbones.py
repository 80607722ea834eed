"""Files with the weights of the networks that metrics look through."""

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from evaluation.fidelity import MetricError


def read_backbone(path: str | Path, name: str, wanted: str) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a .pth file, of which nothing but tensors is unpickled.

    Args:
        path: the file.
        name: of the metric or network, for what an error says.
        wanted: which file would be right, for what an error says.

    Raises:
        MetricError: the file cannot be read or holds no weights.
    """
    try:
        if Path(path).suffix == ".safetensors":
            return load_file(path)
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except OSError as error:
        raise MetricError(f"{name} backbone {path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # torch.load raises any kind on what is no weights file
        raise MetricError(f"{name} backbone {path} is not a weights file: give {wanted}.") from error


def sha256(tensors: dict[str, Tensor]) -> str:
    """Of the safetensors file that would hold these tensors alone."""
    return hashlib.sha256(save(tensors)).hexdigest()
