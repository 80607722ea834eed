"""Read weight files of the networks that metrics use."""

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor
from torch.overrides import TorchFunctionMode

from evaluation.pixels import MetricError


class SkippedInitialisation(TorchFunctionMode):
    """Skips the random initialisation of layers before weights are loaded.

    It takes 0.4 s for AlexNet and more for VGG16, and would change the random numbers of a training with the metric.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def read_backbone(path: str | Path, name: str, wanted: str) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a .pth file, from which only tensors are unpickled.

    The name of the metric or network and a description of the `wanted` file are for error messages.

    Raises:
        MetricError: the file cannot be read or holds no weights.
    """
    try:
        if Path(path).suffix == ".safetensors":
            return load_file(path)
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except OSError as error:
        raise MetricError(f"{name} backbone {path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # torch.load raises any type on a file that holds no weights
        raise MetricError(f"{name} backbone {path} is not a weights file: give {wanted}.") from error


def sha256(tensors: dict[str, Tensor]) -> str:
    """The sha256 of a safetensors file with exactly these tensors."""
    return hashlib.sha256(save(tensors)).hexdigest()
