"""What every network is: a `Predictor`, a `Cascade` of two, or a denoiser; and predictors without weights.

A user's own network is derived from these (docs/extend.md).
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deblur.models.diffusion import PREDICTION_TYPES, PredictionType, predict
from deblur.models.networks.layers import NoiseLevelEmbedding, PixelBlocks
from deblur.models.networks.mixins import ConfigMixin, ModelMixin, register_to_config

CASCADE = ("first", "second")  # a cascade's networks, which have folders of their own in a checkpoint


class Predictor(ModelMixin, ConfigMixin):
    """A predictor g: a blurry image (N, 3, H, W) in [-1, 1] -> x_init, float32, of that shape, not clipped.

    One with a size head returns two: x_init, and the log of the expected |x - x_init| (N, 1, H, W).

    Attributes:
        receptive_field: pixels that an output sees in each direction, for exact tiles; None if it is most of an image.
        stride: tiles start at multiples of it.
        own_tile: side (halo included) and halo of the tiles in which it restores best; None: whole images.
        stages: how many parts it has that each give an image, and may be left out from the last one on; None: no such.
    """

    receptive_field: int | None = None
    stride: int = 1
    own_tile: tuple[int, int] | None = None
    stages: int | None = None

    def estimates(self, *images: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """The images to supervise in training, the one of `forward` first; and what a size head says of that one."""
        x_init, log_size = predict(self, *images)
        return [x_init], log_size


class LocalPredictor(Predictor):
    """x_init = y + network(y). Starts as the identity.

    A network of two images also sees an earlier estimate, and adds to that: see `Cascade`.
    """

    def __init__(self, unet: PixelBlocks):
        super().__init__()
        self.unet, self.receptive_field, self.stride = unet, unet.receptive_field, unet.stride

    def forward(self, blurry: Tensor, estimate: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Images (N, 3, H, W) in [-1, 1], any H and W."""
        images = [blurry] if estimate is None else [blurry, estimate]
        out, base = self.unet(*images), images[-1].float()
        if isinstance(out, tuple):
            return base + out[0].float(), out[1]
        if out.shape[1] > 3:  # both in one, for an ONNX file
            base = F.pad(base, (0, 0, 0, 0, 0, out.shape[1] - 3))
        return base + out.float()


class Cascade(Predictor):
    """x_init = second(y, first(y)).

    The first is a strong network, often with the weights of others. The second is a small one that learns what those
    lack, such as noise that they never saw. It adds to the first one's estimate, and starts as that.

    Args:
        first: a predictor of one image. Its size head, if it has one, is not used.
        second: a predictor of two images, such as `models.networks.nafnet.SlimPredictor(images=2)`.
        frozen: the first keeps its weights, in evaluation mode; otherwise both learn.
    """

    receptive_field = None

    def __init__(self, first: Predictor, second: Predictor, frozen: bool = True):
        super().__init__()
        self.first, self.second, self.frozen = first, second, frozen
        self.stride = max(first.stride, second.stride)
        self.own_tile = first.own_tile
        parts = {part: {"class": type(net).__name__, "config": dict(net.config)} for part, net in self.named_children()}
        size_head = bool(second.config.get("size_head"))
        self.register_to_config(parts=parts, frozen=frozen, size_head=size_head)
        if frozen:
            first.requires_grad_(False).eval()

    @property
    def stages(self) -> int | None:
        """Of the first network, if that has stages."""
        return self.first.stages

    def train(self, mode: bool = True) -> "Cascade":
        super().train(mode)
        if self.frozen:
            self.first.eval()
        return self

    def forward(self, blurry: Tensor, **options: Any) -> Tensor | tuple[Tensor, Tensor]:
        """The options, such as `stages`, are the first one's."""
        return self.second(blurry, self.first_estimate(blurry, **options))

    def estimates(self, blurry: Tensor, stored: Tensor | None = None) -> tuple[list[Tensor], Tensor | None]:
        """The images to supervise: the second one's and, unless it is frozen, the first one's; and the second's size.

        `stored` is what `first_estimate` gives, where it was stored; a first network that learns makes its own.
        """
        if self.frozen:
            return self.second.estimates(blurry, self.first_estimate(blurry) if stored is None else stored)
        first, _ = self.first.estimates(blurry)
        second, log_size = self.second.estimates(blurry, first[0].clamp(-1, 1))
        return [*second, *first], log_size

    def first_estimate(self, blurry: Tensor, **options: Any) -> Tensor:
        """What the second network sees beside the blurry image: (N, 3, H, W) in [-1, 1], clipped."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            x_init, _ = predict(self.first, blurry, **options)
            return x_init[:, :3].clamp(-1, 1)  # in an ONNX export it may have the size as a fourth channel

    def save_pretrained(self, folder: str | Path, **options: Any) -> None:
        """Write each network into a folder of its own, so that a new second one does not store the first again."""
        self.save_config(folder)
        for part, network in self.named_children():
            network.save_pretrained(Path(folder) / part, **options)


class LocalDenoiser(ModelMixin, ConfigMixin):
    """A denoiser made of a network that is told the noise level. ValueError for an unknown prediction type."""

    def __init__(self, unet: PixelBlocks, prediction_type: PredictionType, embedding_channels: int):
        super().__init__()
        if prediction_type not in PREDICTION_TYPES:
            raise ValueError(f"prediction_type must be one of {', '.join(PREDICTION_TYPES)}, got {prediction_type!r}")
        self.unet, self.receptive_field, self.stride = unet, unet.receptive_field, unet.stride
        self.prediction_type, self.embedding = prediction_type, NoiseLevelEmbedding(embedding_channels)


class IdentityPredictor(Predictor):
    """For ablation, x_init = y: the denoiser samples the difference between the sharp and the blurry image."""

    receptive_field, stride = 0, 1

    @register_to_config
    def __init__(self):
        super().__init__()
        self.register_buffer("_place", torch.empty(0), persistent=False)  # lets diffusers find the device

    def forward(self, blurry: Tensor) -> Tensor:
        """(N, 3, H, W) in [-1, 1] -> the same."""
        return blurry.float()


class ZeroPredictor(IdentityPredictor):
    """For ablation, x_init = 0 (mid grey): the denoiser samples the whole image, as SR3's conditional DDPM does."""

    def forward(self, blurry: Tensor) -> Tensor:
        """(N, 3, H, W) in [-1, 1] -> zeros of that shape."""
        return torch.zeros_like(blurry, dtype=torch.float32)
