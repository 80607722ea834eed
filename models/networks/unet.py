"""The paper's U-Net, without normalisation and attention, so that its output does not depend on the image's size.

It is SR3's U-Net (Saharia et al. 2021) with BigGAN residual blocks (Brock et al. 2019), as modified by Whang et al.
2022: no self-attention, positional encoding or group normalisation.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deblur.models.diffusion import PredictionType
from deblur.models.networks.base import LocalDenoiser, LocalPredictor
from deblur.models.networks.layers import PixelBlocks, zeroed
from deblur.models.networks.mixins import register_to_config

UNetNorm = Literal["none", "pixel"]


class PixelNorm(nn.LayerNorm):
    """Layer normalisation over the channels of each pixel of (N, C, H, W), as in NAFNet (Chen et al., ECCV 2022).

    Its output at a pixel depends on that pixel alone, so crops, tiles and full frames still agree.
    """

    def forward(self, x: Tensor) -> Tensor:
        if torch.onnx.is_in_onnx_export():  # without the permutations, which OpenVINO would carry out
            centred = x.float() - x.float().mean(1, keepdim=True)
            normal = centred / (centred.square().mean(1, keepdim=True) + self.eps).sqrt()
            return normal.to(x.dtype) * self.weight[:, None, None] + self.bias[:, None, None]
        # CUDA takes no weights of another type; the statistics are float32 all the same.
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        normal = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, weight, bias, self.eps)
        return normal.permute(0, 3, 1, 2)


class ResidualBlock(nn.Module):
    """BigGAN residual block: swish, resample, 3x3, + dense(swish(embedding)), swish, dropout, 3x3; 1x1 skip.

    Args:
        in_channels, out_channels: channels before and after.
        resample: None, "down" (2x2 mean) or "up" (nearest, x2).
        embedding_channels: width of the noise embedding, which adds a bias to each channel after the first convolution;
            0 for none.
        dropout: probability.
        norm: "none" (the paper), or "pixel" to normalise the input of the branch.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        resample: Literal["down", "up"] | None = None,
        embedding_channels: int = 0,
        dropout: float = 0.0,
        norm: UNetNorm = "none",
    ):
        super().__init__()
        self.norm = {"none": nn.Identity, "pixel": PixelNorm}[norm](in_channels)
        self.resample = {None: nn.Identity(), "down": nn.AvgPool2d(2), "up": nn.Upsample(scale_factor=2)}[resample]
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.embed = nn.Linear(embedding_channels, out_channels) if embedding_channels else None
        self.dropout = nn.Dropout(dropout)
        self.conv2 = zeroed(nn.Conv2d(out_channels, out_channels, 3, padding=1))
        self.skip = nn.Conv2d(in_channels, out_channels, 1, bias=False)

        # Nothing normalises the activations, so the block must preserve their variance at the start: the branch
        # adds nothing, and the skip is the identity where possible.
        nn.init.kaiming_normal_(self.conv1.weight)
        if in_channels == out_channels:
            nn.init.dirac_(self.skip.weight)
        else:
            nn.init.normal_(self.skip.weight, std=in_channels**-0.5)

    def forward(self, x: Tensor, embedding: Tensor | None = None) -> Tensor:
        h = self.conv1(self.resample(F.silu(self.norm(x))))
        if self.embed is not None:
            h = h + self.embed(F.silu(embedding))[:, :, None, None]
        h = self.conv2(self.dropout(F.silu(h)))
        return self.skip(self.resample(x)) + h


class UNet(PixelBlocks):
    """Channels c * multipliers[i] at resolution 1 / 2^i; `blocks` residual blocks per level down and one more going up.

    Unshuffled pixels make k^2 times fewer positions for the same width.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        channels: int,
        multipliers: Sequence[int],
        blocks: int,
        dropout: float = 0.0,
        embedding_channels: int = 0,
        unshuffle: int = 1,
        norm: UNetNorm = "none",
        size_head: bool = False,
    ):
        super().__init__(unshuffle, unshuffle * 2 ** (len(multipliers) - 1))

        def block(i: int, o: int, resample: Literal["down", "up"] | None = None) -> ResidualBlock:
            return ResidualBlock(i, o, resample, embedding_channels, dropout, norm)

        self.stem = nn.Conv2d(in_channels * unshuffle**2, channels, 1)
        ch, skips = channels, [channels]
        self.down = nn.ModuleList()
        for level, multiplier in enumerate(multipliers):
            if level > 0:
                self.down.append(block(ch, ch, "down"))
                skips.append(ch)
            for _ in range(blocks):
                self.down.append(block(ch, channels * multiplier))
                ch = channels * multiplier
                skips.append(ch)
        self.middle = nn.ModuleList([block(ch, ch), block(ch, ch)])
        self.up = nn.ModuleList()
        for level, multiplier in reversed(list(enumerate(multipliers))):
            for _ in range(blocks + 1):
                self.up.append(block(ch + skips.pop(), channels * multiplier))
                ch = channels * multiplier
            if level > 0:
                self.up.append(block(ch, ch, "up"))
        # No swish before the head, unlike in SR3: if it became zero everywhere, no gradient could revive the network.
        self.add_heads(ch, out_channels, size_head)
        nn.init.normal_(self.stem.weight, std=self.stem.in_channels**-0.5)

    @property
    def receptive_field(self) -> int:
        """How far outputs see beyond their own cell of `stride` x `stride` pixels, rounded up to whole strides."""
        radius = 0  # in pixels of the current resolution; that of a skip is never larger
        for block in (*self.down, *self.middle, *self.up):
            if isinstance(block.resample, nn.AvgPool2d):
                radius = -(-radius // 2)
            elif isinstance(block.resample, nn.Upsample):
                radius *= 2
            radius += 2  # two 3x3 convolutions
        radius = (radius + 1) * self.unshuffle  # the head is a 3x3 convolution too
        return -(-radius // self.stride) * self.stride

    def trunk(self, h: Tensor, embedding: Tensor | None) -> Tensor:
        skips = [h]  # (N, c, H, W)
        for block in self.down:
            h = block(h, embedding)
            skips.append(h)
        for block in self.middle:
            h = block(h, embedding)  # (N, 4c, H/8, W/8)
        for block in self.up:
            if not isinstance(block.resample, nn.Upsample):
                h = torch.cat([h, skips.pop()], dim=1)
            h = block(h, embedding)
        return h


class UNetPredictor(LocalPredictor):
    """The paper's predictor g: x_init = y + U-Net(y). Starts as the identity.

    Args:
        channels: width c; the paper's is 64.
        multipliers: channels at resolution 1, 1/2, 1/4, ... as multiples of c.
        blocks: residual blocks per level.
        dropout: probability inside the blocks (the paper does not give one).
        unshuffle: side k of the pixel blocks that are moved to channels; the paper's is 1. With 2 and twice the width
            a network needs the same number of operations and has four times the parameters.
        norm: "none", or "pixel", which normalises over the channels of each pixel at the start of every block's branch
            and keeps the network local.
        size_head: also estimate the log of the expected |x - x_init|, as a second output, from the last features. Its
            loss sends no gradient into them.
    """

    @register_to_config
    def __init__(
        self,
        channels: int = 64,
        multipliers: Sequence[int] = (1, 2, 3, 4),
        blocks: int = 3,
        dropout: float = 0.0,
        unshuffle: int = 1,
        norm: UNetNorm = "none",
        size_head: bool = False,
    ):
        super().__init__(UNet(3, 3, channels, multipliers, blocks, dropout, 0, unshuffle, norm, size_head=size_head))


class Denoiser(LocalDenoiser):
    """The paper's denoiser f(r_t, y, alpha_bar). It is given the noise level itself, never a step number.

    Args:
        channels: width c; the paper's is 32.
        multipliers, blocks, dropout, unshuffle, norm: as in `UNetPredictor`.
        condition: what is concatenated to r_t: "blurry" (the paper), or "blurry+x_init" (also the prediction).
        prediction_type: what the network predicts: "v_prediction", "epsilon" (the paper) or "sample".
        embedding_channels: width of the noise-level embedding.
    """

    @register_to_config
    def __init__(
        self,
        channels: int = 32,
        multipliers: Sequence[int] = (1, 2, 3, 4),
        blocks: int = 3,
        dropout: float = 0.0,
        condition: Literal["blurry", "blurry+x_init"] = "blurry",
        prediction_type: PredictionType = "v_prediction",
        embedding_channels: int = 32,
        unshuffle: int = 1,
        norm: UNetNorm = "none",
    ):
        in_channels = {"blurry": 6, "blurry+x_init": 9}[condition]
        unet = UNet(in_channels, 3, channels, multipliers, blocks, dropout, embedding_channels, unshuffle, norm)
        super().__init__(unet, prediction_type, embedding_channels)
        self.condition = condition

    def forward(
        self, r_t: Tensor, blurry: Tensor, alpha_bar: Tensor, x_init: Tensor, s: Tensor | None = None
    ) -> Tensor:
        """One denoising evaluation.

        Args:
            r_t: noisy scaled residual (N, 3, H, W).
            blurry, x_init: (N, 3, H, W) in [-1, 1]; x_init is used if `condition` includes it.
            alpha_bar: noise level of each image (N,), in (0, 1].
            s: the residual's scale (N, 1, H, W), which only other denoisers use.

        Returns:
            The quantity named by `prediction_type`, (N, 3, H, W), float32.
        """
        images = [blurry] if self.condition == "blurry" else [blurry, x_init]
        return self.unet(*images, noisy=r_t, embedding=self.embedding(alpha_bar)).float()
