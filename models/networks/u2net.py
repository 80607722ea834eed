"""U2-Net (Qin et al. 2020) as a deblurring predictor: x_init = y + head.

Each stage of this U-Net is itself a small U-Net, the residual U-block RSU-L. Submodules are named as in the official
code, so that the encoder and decoder of official weight files fit.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deblur.models.networks.base import Predictor
from deblur.models.networks.layers import SizeHead, extended, zeroed
from deblur.models.networks.mixins import register_to_config
from deblur.models.networks.unet import PixelNorm

U2NetNorm = Literal["batch", "pixel", "none"]
Upsample = Literal["bilinear", "nearest"]

# Every stage of the encoder, then of the decoder, with the height of its RSU block (or "4F").
STAGES = {"stage1": 7, "stage2": 6, "stage3": 5, "stage4": 4, "stage5": "4F", "stage6": "4F"}
STAGES |= {"stage5d": "4F", "stage4d": 4, "stage3d": 5, "stage2d": 6, "stage1d": 7}
# Middle and output channels of each stage, from the table of Qin et al. 2020.
FULL = [(32, 64), (32, 128), (64, 256), (128, 512), *[(256, 512)] * 3, (128, 256), (64, 128), (32, 64), (16, 64)]
# Our own table, for a first resolution of 1/2: few channels at high resolution, many at low resolution.
SMALL = [(16, 32), (32, 64), (32, 64), (32, 96), *[(64, 128)] * 3, (32, 96), (32, 64), (32, 64), (16, 32)]
TABLES = {"full": FULL, "lite": [(16, 64)] * 11, "small": SMALL}


class ConvNormRelu(nn.Module):
    """3x3 convolution with dilation, normalisation, ReLU."""

    def __init__(self, in_channels: int, out_channels: int, dilation: int = 1, norm: U2NetNorm = "batch"):
        super().__init__()
        self.conv_s1 = nn.Conv2d(in_channels, out_channels, 3, padding=dilation, dilation=dilation)
        norms = {"batch": nn.BatchNorm2d, "pixel": PixelNorm, "none": nn.Identity}
        self.bn_s1 = norms[norm](out_channels)
        if norm != "batch":  # without BatchNorm only the initialisation keeps the variance of the activations
            nn.init.kaiming_normal_(self.conv_s1.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn_s1(self.conv_s1(x)))


class RSU(nn.Module):
    """Residual U-block RSU-L: out = U(h) + h with h = conv(x).

    With `height` L (4 to 7) the inner U has L - 1 convolutions with pooling between them, and one with dilation 2 at
    the bottom. RSU-4F (height "4F") has dilations 1, 2, 4 and 8 instead of pooling.
    """

    def __init__(
        self,
        height: int | str,
        in_channels: int,
        mid_channels: int,
        out_channels: int,
        norm: U2NetNorm = "batch",
        upsample: Upsample = "bilinear",
    ):
        super().__init__()
        self.upsample = upsample
        self.pooled = height != "4F"
        self.levels = L = int(str(height)[0])
        dilations = [1] * (L - 1) + [2] if self.pooled else [1, 2, 4, 8]
        inner: U2NetNorm = "none" if norm == "pixel" else norm  # one pixel norm per block is enough for stable training

        self.rebnconvin = ConvNormRelu(in_channels, out_channels, norm=norm)
        for i in range(1, L + 1):
            first = out_channels if i == 1 else mid_channels
            self.add_module(f"rebnconv{i}", ConvNormRelu(first, mid_channels, dilations[i - 1], inner))
        for i in range(L - 1, 0, -1):
            last = out_channels if i == 1 else mid_channels
            self.add_module(f"rebnconv{i}d", ConvNormRelu(2 * mid_channels, last, dilations[i - 1], inner))

    def forward(self, x: Tensor) -> Tensor:
        h = h_in = self.rebnconvin(x)
        skips = []
        for i in range(1, self.levels):
            # The last convolution before the bottom stays at the bottom's resolution, as in the official code.
            if self.pooled and i > 1:
                h = F.max_pool2d(h, 2, stride=2, ceil_mode=True)
            h = self.get_submodule(f"rebnconv{i}")(h)
            skips.append(h)
        h = self.get_submodule(f"rebnconv{self.levels}")(h)
        for i in range(self.levels - 1, 0, -1):
            skip = skips.pop()
            h = self.get_submodule(f"rebnconv{i}d")(torch.cat([_resize(h, skip, self.upsample), skip], dim=1))
        return h + h_in


class U2NetPredictor(Predictor):
    """U2-Net with three-channel linear heads and a global skip: x_init = y + head.

    Args:
        variant: "full" (44.0 M parameters), "lite" (1.1 M), or "small" (3.6 M; for `unshuffle` 2).
        norm: "batch" (official), "pixel" (over the channels of each pixel, once per block) or "none". With the last two
            the output never depends on statistics of the crop.
        unshuffle: as in `models.networks.unet.UNetPredictor`; 1 is official.
        side_outputs: fuse six side outputs and supervise them (official); otherwise the last stage's head gives x_init.
        upsample: "bilinear" (official), or "nearest", whose gradient is five times as fast on a CPU.
        size_head: as in `models.networks.unet.UNetPredictor`, from the last stage's features.
        images: how many it sees; 2 as the second network of a `models.networks.base.Cascade`.
    """

    receptive_field = None  # most of an image: stages at 1/32 resolution pool by 32 again or dilate by 8

    @register_to_config
    def __init__(
        self,
        variant: Literal["full", "lite", "small"] = "full",
        norm: U2NetNorm = "batch",
        unshuffle: int = 1,
        side_outputs: bool = True,
        upsample: Upsample = "bilinear",
        size_head: bool = False,
        images: int = 1,
    ):
        super().__init__()
        self.unshuffle, self.upsample, self.stride = unshuffle, upsample, 32 * unshuffle
        self.multiple = unshuffle  # sides are padded to it, and pooling rounds up from there
        heads, i, widths = 3 * unshuffle**2, 3 * images * unshuffle**2, {}
        for (stage, height), (mid, o) in zip(STAGES.items(), TABLES[variant], strict=True):
            skip = widths.get(stage.removesuffix("d"), 0)  # a stage of the decoder also takes that of the encoder
            self.add_module(stage, RSU(height, i + skip, mid, o, norm, upsample))
            widths[stage] = i = o
        names = ("stage1d", "stage2d", "stage3d", "stage4d", "stage5d", "stage6")
        for k, stage in enumerate(names if side_outputs else names[:1], start=1):
            # All side outputs start at zero, so the untrained predictor is the identity.
            self.add_module(f"side{k}", zeroed(nn.Conv2d(widths[stage], heads, 3, padding=1)))
        if side_outputs:
            self.outconv = nn.Conv2d(6 * heads, heads, 1)
            nn.init.zeros_(self.outconv.bias)
        self.side_outputs = side_outputs
        self.log_size = SizeHead(widths["stage1d"], unshuffle) if size_head else None

    def forward(self, blurry: Tensor, estimate: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        images, log_size = self.estimates(blurry, estimate)
        return images[0] if log_size is None else (images[0], log_size)

    def estimates(self, blurry: Tensor, estimate: Tensor | None = None) -> tuple[list[Tensor], Tensor | None]:
        """The images to supervise: that of `forward` and, if there are any, the six side outputs at full size."""
        images = [blurry] if estimate is None else [blurry, estimate]
        height, width = images[-1].shape[-2:]
        h = torch.cat(images, dim=1).to(self.side1.weight.dtype)
        h = extended(h, -height % self.unshuffle, -width % self.unshuffle)
        h = F.pixel_unshuffle(h, self.unshuffle)
        skips: list[Tensor] = []
        for i in range(1, 7):
            if i > 1:
                h = F.max_pool2d(h, 2, stride=2, ceil_mode=True)
            h = self.get_submodule(f"stage{i}")(h)
            skips.append(h)
        decoded = [skips.pop()]  # from the bottom up: stage6, stage5d .. stage1d
        for i in range(5, 0, -1):
            skip = skips.pop()
            joined = torch.cat([_resize(decoded[-1], skip, self.upsample), skip], dim=1)
            decoded.append(self.get_submodule(f"stage{i}d")(joined))
        decoded.reverse()
        if self.side_outputs:
            sides = [
                _resize(self.get_submodule(f"side{k}")(d), decoded[0], "bilinear")
                for k, d in enumerate(decoded, start=1)
            ]
            heads = [self.outconv(torch.cat(sides, dim=1)), *sides]
        else:
            heads = [self.side1(decoded[0])]
        heads = [F.pixel_shuffle(head, self.unshuffle)[..., :height, :width] for head in heads]
        estimates = [images[-1].float() + head.float() for head in heads]
        return estimates, None if self.log_size is None else self.log_size(decoded[0])[..., :height, :width]


def _resize(x: Tensor, like: Tensor, mode: Upsample) -> Tensor:
    if torch.onnx.is_in_onnx_export():
        return _resize_in_onnx(x, like, mode)
    if x.shape[-2:] == like.shape[-2:]:
        return x
    return F.interpolate(x, like.shape[-2:], mode=mode, align_corners=False if mode == "bilinear" else None)


def _resize_in_onnx(x: Tensor, like: Tensor, mode: Upsample) -> Tensor:
    """`_resize` in ONNX's operators; the exporter's own would compute the size in a way that onnx cannot infer."""
    ops, shape = torch.onnx.ops, [*x.shape[:2], *like.shape[2:]]
    size = ops.symbolic("Shape", [like], {"start": 2, "end": 4}, dtype=torch.int64, shape=[2], version=20)
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    attributes = {"axes": [2, 3]} | (nearest if mode == "nearest" else {"mode": "linear"})
    return ops.symbolic("Resize", [x, None, None, size], attributes, dtype=x.dtype, shape=shape, version=20)
