"""Third-party restoration networks (NAFNet, FFTformer, Uformer, SCUNet and more) as predictors, through spandrel."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from models.heads import Predictor
from models.parts import register_to_config
from models.weights import read_weights

if TYPE_CHECKING:
    from spandrel import ImageModelDescriptor

MISSING = "networks of others need the spandrel package: pip install -r requirements-extra.txt"


class SpandrelPredictor(Predictor):
    """A published restoration network, frozen, as the predictor to refine.

    spandrel detects a network's architecture and sizes from its weights. The pipeline folder stores the weights and the
    architecture's name, so it loads without the original file.

    Args:
        path: weights as published (.pth or .safetensors), never unpickled.
        architecture: spandrel's name for the architecture; None: detected from the weights.
        weights: the weights themselves, in place of the path.

    Raises:
        ValueError: spandrel is missing, the file cannot be read, or the network does not turn RGB images into RGB
            images of the same size.
    """

    ignore_for_config = ["path", "weights"]  # noqa: RUF012 (the name diffusers reads)
    receptive_field = None  # unknown; many of these networks average over the image

    @register_to_config
    def __init__(
        self, path: str | None = None, architecture: str | None = None, weights: dict[str, Tensor] | None = None
    ):
        super().__init__()
        if (path is None) == (weights is None):
            raise ValueError("SpandrelPredictor needs path, the file of a restoration network")
        name = path or "the checkpoint's predictor"
        if weights is None:
            weights = read_weights(Path(path))
        # Weights that this class saved have its submodule's name before every key.
        weights = {
            key.removeprefix("network."): value.float() if value.is_floating_point() else value
            for key, value in weights.items()
        }
        descriptor = _load(weights, architecture, name)
        if descriptor.purpose != "Restoration" or (descriptor.input_channels, descriptor.output_channels) != (3, 3):
            raise ValueError(
                f"{name} is a {descriptor.architecture.name} for {descriptor.purpose} with"
                f" {descriptor.input_channels} channels in and {descriptor.output_channels} out; a predictor restores"
                " RGB images of unchanged size"
            )
        self.register_to_config(architecture=str(descriptor.architecture.id))
        self._descriptor = descriptor
        self.network = descriptor.model.requires_grad_(False).eval()
        self.stride = descriptor.size_requirements.multiple_of

    def train(self, mode: bool = True) -> "SpandrelPredictor":
        """Stay in evaluation mode, since this network is not trained."""
        return super().train(False)

    def compute_in(self, dtype: torch.dtype) -> None:
        """Convert the weights to a type, if spandrel says that the network supports it."""
        if dtype != torch.bfloat16 or self._descriptor.supports_bfloat16:
            self._descriptor.to(dtype)

    def forward(self, blurry: Tensor) -> Tensor:
        """(N, 3, H, W) in [-1, 1], any H and W -> x_init of the same shape, float32, in [-1, 1]; no gradient.

        spandrel works in [0, 1], pads to the sizes that the network takes, and clips the result.
        """
        image = ((blurry.float() + 1) / 2).to(self._descriptor.dtype)
        # Cloned, because tensors made in inference mode cannot enter the denoiser's training.
        return self._descriptor(image).clone().float() * 2 - 1


def _load(weights: dict[str, Tensor], architecture: str | None, name: str) -> "ImageModelDescriptor":
    """spandrel's descriptor of the network with these weights."""
    if importlib.util.find_spec("spandrel") is None:
        raise ValueError(MISSING)
    import spandrel

    if importlib.util.find_spec("spandrel_extra_arches"):  # Restormer and others, under different licences
        import spandrel_extra_arches

        spandrel_extra_arches.install(ignore_duplicates=True)
    if architecture is not None and architecture not in spandrel.MAIN_REGISTRY:
        raise ValueError(f"{name} is of the architecture {architecture}, which the spandrel installed here lacks")
    try:
        if architecture is not None:
            return spandrel.MAIN_REGISTRY[architecture].architecture.load(weights)
        return spandrel.MAIN_REGISTRY.load(weights)
    except spandrel.UnsupportedModelError:
        first = next(iter(weights))
        raise ValueError(
            f"{name} is of no architecture that spandrel knows (its first key is {first} {tuple(weights[first].shape)})"
        ) from None
    except (RuntimeError, KeyError, AssertionError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # torch names the class first, then every difference: report the first difference.
        raise ValueError(f"{name} does not fit its architecture: {(lines[1:] or lines or [''])[0]}") from None
