"""What networks share: diffusers' base classes, padding, heads, the noise level; predictors without weights."""

import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deblur.models.diffusion import PREDICTION_TYPES, PredictionType

_hides = "torch._dynamo" not in sys.modules  # otherwise it is already loaded
if _hides:
    sys.modules["torch._dynamo"] = None  # makes its import fail as if it were not installed
try:
    from diffusers import ConfigMixin, DDPMScheduler, ModelMixin, SchedulerMixin  # noqa: F401
finally:
    if _hides:
        del sys.modules["torch._dynamo"]
from diffusers.configuration_utils import register_to_config  # noqa: E402
from diffusers.utils import BaseOutput  # noqa: E402, F401
from diffusers.utils.torch_utils import randn_tensor  # noqa: E402, F401

CASCADE = ("first", "second")  # a cascade's networks, which have folders of their own in a checkpoint


class Predictor(ModelMixin, ConfigMixin):
    """A predictor g: a blurry image (N, 3, H, W) in [-1, 1] -> x_init.

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

    def estimates(self, *images: Tensor) -> list[Tensor]:
        """The outputs to supervise in training, the one of `forward` first."""
        return [self(*images)]


def zeroed(layer: nn.Module) -> nn.Module:
    """A layer whose weights and biases are set to zero, so that at the start it adds nothing."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def reflected(image: Tensor, top: int, bottom: int, left: int, right: int) -> Tensor:
    """(N, C, H, W) padded by reflection, which goes to and fro where the padding is wider than the image."""
    rows = reflected_places(image.shape[-2], top, bottom, image.device)
    columns = reflected_places(image.shape[-1], left, right, image.device)
    return image[:, :, rows][..., columns]


def reflected_places(side: int, before: int, after: int, device: torch.device) -> Tensor:
    """Indices into `side` pixels that pad them by reflection."""
    places = torch.arange(-before, side + after, device=device)
    period = max(1, 2 * side - 2)
    places = places % period
    return torch.minimum(places, period - places) if side > 1 else places


def extended(image: Tensor, rows: int, columns: int, is_noise: bool = False) -> Tensor:
    """A network's input (N, C, H, W) with rows below and columns to the right: its border repeated.

    Noise is reflected: noise that is repeated is no noise, and samples were several times as uncertain there.
    """
    if rows == 0 and columns == 0:  # torch.compile cannot differentiate a pad of 0
        return image
    if is_noise:
        return reflected(image, 0, rows, 0, columns)
    return F.pad(image, (0, columns, 0, rows), mode="replicate")


class SizeHead(nn.Module):
    """Features (N, C, h, w) -> log of the expected |x - x_init| (N, 1, k h, k w), float32; no gradient to the features.

    It starts at 0.02 everywhere, about the error of a good prediction in [-1, 1].
    """

    def __init__(self, channels: int, unshuffle: int):
        super().__init__()
        self.unshuffle = unshuffle
        self.conv = zeroed(nn.Conv2d(channels, unshuffle**2, 3, padding=1))
        nn.init.constant_(self.conv.bias, math.log(0.02))

    def forward(self, features: Tensor) -> Tensor:
        return F.pixel_shuffle(self.conv(features.detach()), self.unshuffle).float()


class PixelBlocks(nn.Module):
    """A local network: a stem, a trunk, and a head that starts at zero.

    Input (one image, or several concatenated over channels) and output are (N, channels, H, W), any H and W: the input
    is `extended` to a multiple of `stride`, and the output is cropped. A noisy input is the first one. Blocks of k x k
    pixels are moved to channels, k being `unshuffle` (Shi et al., CVPR 2016). A subclass sets `stem`, calls `add_heads`
    and has `trunk` and `receptive_field`.
    """

    def __init__(self, unshuffle: int, stride: int):
        super().__init__()
        self.unshuffle, self.stride = unshuffle, stride

    def add_heads(self, width: int, out_channels: int, size_head: bool) -> None:
        """Add the head, and a `SizeHead` if wanted, for features of `width` channels."""
        self.head = zeroed(nn.Conv2d(width, out_channels * self.unshuffle**2, 3, padding=1))
        self.log_size = SizeHead(width, self.unshuffle) if size_head else None

    def forward(self, *images: Tensor, noisy: Tensor | None = None, embedding: Tensor | None = None) -> Tensor:
        """With a size head the output has one channel more, the log of the expected |x - x_init|."""
        (height, width), dtype = images[0].shape[-2:], self.stem.weight.dtype
        rows, columns = -height % self.stride, -width % self.stride
        inputs = [extended(image, rows, columns) for image in images]
        if noisy is not None:
            inputs.insert(0, extended(noisy, rows, columns, is_noise=True))
        x = torch.cat(inputs, dim=1).to(dtype)
        h = self.stem(F.pixel_unshuffle(x, self.unshuffle))  # (N, c, H / k, W / k)
        h = self.trunk(h, None if embedding is None else embedding.to(dtype))
        return self.outputs(h)[..., :height, :width]

    def outputs(self, h: Tensor) -> Tensor:
        """Both heads' outputs one after the other, (N, channels, H, W), from the trunk's features."""
        if self.log_size is None:
            return F.pixel_shuffle(self.head(h), self.unshuffle)
        if torch.onnx.is_in_onnx_export():  # as one convolution: engines would copy whole images to join them
            heads = (self.head, self.log_size.conv)
            weight, bias = torch.cat([head.weight for head in heads]), torch.cat([head.bias for head in heads])
            return F.pixel_shuffle(F.conv2d(h, weight, bias, padding=1), self.unshuffle).float()
        return torch.cat([F.pixel_shuffle(self.head(h), self.unshuffle).float(), self.log_size(h)], dim=1)


class LocalPredictor(Predictor):
    """x_init = y + network(y). Starts as the identity.

    A network of two images also sees an earlier estimate, and adds to that: see `Cascade`.
    """

    def __init__(self, unet: PixelBlocks):
        super().__init__()
        self.unet, self.receptive_field, self.stride = unet, unet.receptive_field, unet.stride

    def forward(self, blurry: Tensor, estimate: Tensor | None = None) -> Tensor:
        """(N, 3, H, W) in [-1, 1], any H and W -> x_init of the same shape, float32, not clipped.

        With a size head the result is (N, 4, H, W); its last channel is the log of the expected |x - x_init|.
        """
        images = [blurry] if estimate is None else [blurry, estimate]
        out, base = self.unet(*images).float(), images[-1].float()
        if out.shape[1] > 3:
            base = F.pad(base, (0, 0, 0, 0, 0, out.shape[1] - 3))  # 0 in the last channel
        return base + out


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

    def forward(self, blurry: Tensor, **options: Any) -> Tensor:
        """As `models.networks.base.LocalPredictor.forward`; the options, such as `stages`, are the first one's."""
        return self.second(blurry, self.first_estimate(blurry, **options))

    def estimates(self, blurry: Tensor, stored: Tensor | None = None) -> list[Tensor]:
        """The outputs to supervise: the second one's and, unless it is frozen, the first one's.

        `stored` is what `first_estimate` gives, where it was stored; a first network that learns makes its own.
        """
        if self.frozen:
            return self.second.estimates(blurry, self.first_estimate(blurry) if stored is None else stored)
        outputs = [output[:, :3] for output in self.first.estimates(blurry)]
        return [*self.second.estimates(blurry, outputs[0].clamp(-1, 1)), *outputs]

    def first_estimate(self, blurry: Tensor, **options: Any) -> Tensor:
        """What the second network sees beside the blurry image: (N, 3, H, W) in [-1, 1], clipped."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return self.first(blurry, **options)[:, :3].clamp(-1, 1)

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


class NoiseLevelEmbedding(nn.Module):
    """Sines and cosines of the log-SNR, then two dense layers. (N,) -> (N, channels).

    WaveGrad and SR3 embed sqrt(alpha_bar). log-SNR resolves the nearly clean end and the nearly pure-noise end equally
    well, which a v-predicting network needs.
    """

    def __init__(self, channels: int):
        super().__init__()
        # Periods from 2 pi / 8 to 2 pi * 8 over a log-SNR range of about [-14, 14].
        frequencies = torch.logspace(3, -3, channels // 2, base=2)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.dense1 = nn.Linear(2 * len(frequencies), 4 * channels)
        self.dense2 = nn.Linear(4 * channels, channels)

    def forward(self, alpha_bar: Tensor) -> Tensor:
        a = alpha_bar.float().clamp(1e-6, 1 - 1e-6)
        angles = (a / (1 - a)).log()[:, None] * self.frequencies.float()
        features = torch.cat([angles.sin(), angles.cos()], dim=1).to(self.dense1.weight.dtype)
        return self.dense2(F.silu(self.dense1(features)))


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
