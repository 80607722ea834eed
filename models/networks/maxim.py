"""MAXIM (Tu et al., CVPR 2022, arXiv 2201.02973) as a predictor: three U-Nets in a row, each a whole restoration.

Its blocks mix positions by gated MLPs along two axes: inside small windows of neighbouring pixels, and across a grid of
pixels far apart. The grid spans the whole image, so every output sees all of it, and tiles are not exact.

The weights were trained on crops. On frames of 1280x720 the grid and the means of the channel attention see more than
they ever did, and tiles are better by 0.1 to 0.8 dB (Chu et al., ECCV 2022, found so of means over the image).

Features are (N, H, W, C), so that every 1x1 convolution is a dense layer. The weights are the authors'; the names of
the submodules are ours; pretrained/maxim/RECIPE.md names the tool that converted them.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deblur.models.networks.base import Predictor
from deblur.models.networks.layers import SizeHead, reflected, without_autocast, zeroed
from deblur.models.networks.mixins import register_to_config

WIDTHS = (32, 64, 128)  # channels at the full size, 1/2 and 1/4
WINDOW_SIDES = (16, 16, 8)  # of the windows and of the grid there
STRIP = 2**20  # features that are mixed at once on a CPU: two megabytes in bfloat16
MULTIPLE = 64  # 1/8 of the size, at the bottom, must be a multiple of its windows' side of 8
SMALLEST_REDUCED = 256  # pixels; smaller crops gained up to 1.2 dB at their own size


class LayerNorm(nn.LayerNorm):
    """Over the channels of each pixel of (..., C), in the type of the features."""

    def __init__(self, channels: int):
        super().__init__(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class Conv(nn.Conv2d):
    """A convolution of (N, H, W, C) that keeps the size, or with stride 2 halves it."""

    def __init__(self, in_channels: int, out_channels: int, side: int = 3, stride: int = 1):
        super().__init__(in_channels, out_channels, side, stride, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class Up(nn.ConvTranspose2d):
    """A transposed convolution that doubles the size of (N, H, W, C)."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__(in_channels, out_channels, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class PositionMix(nn.Linear):
    """A dense layer over the P positions of (P, groups, C), the same for every group and channel."""

    def __init__(self, side: int):
        super().__init__(side**2, side**2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias[:, None], self.weight, x.reshape(len(x), -1)).view(x.shape)


class GatedMlp(nn.Module):
    """gMLP (Liu et al. 2021) on groups of positions (P, groups, C): one half of the features gates the other."""

    def __init__(self, channels: int, side: int):
        super().__init__()
        self.norm = LayerNorm(channels)
        self.project_in = nn.Linear(channels, 2 * channels)
        self.norm_gate = LayerNorm(channels)
        self.mix = PositionMix(side)
        self.project_out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = gelu(self.project_in(self.norm(x))).chunk(2, dim=-1)
        gate = self.mix(self.norm_gate(gate))
        return x + self.project_out(value * (gate + 1))


class AxesMix(nn.Module):
    """Half of the features mix over a grid, half in windows (the paper's figure 3).

    Both are done in strips: the features of an image do not fit into a processor's caches, those of few windows do.
    """

    def __init__(self, channels: int, side: int):
        super().__init__()
        self.side = side
        self.norm = LayerNorm(channels)
        self.project_in = nn.Linear(channels, 2 * channels)
        self.project_out = nn.Linear(2 * channels, channels)

    def mixed(self, x: Tensor, start: Tensor, grid: nn.Module, window: nn.Module) -> Tensor:
        """start + project_out([grid(far), window(near)]) with [far, near] = gelu(project_in(norm(x))).

        x and start are (N, H, W, C); `start` is written over.
        """
        x = self.norm(x)
        width = x.shape[-1]
        start += self.project_out.bias
        for first, mix, split in [(0, grid, as_grid), (width, window, as_windows)]:
            half = slice(first, first + width)  # not chunks: an export stores slices of weights as weights
            parts = strips(split(x, self.side))
            sums = strips(split(start, self.side))
            for part, total in zip(parts, sums, strict=True):
                hidden = gelu(F.linear(positions_first(part), self.project_in.weight[half], self.project_in.bias[half]))
                total += images_first(F.linear(mix(hidden), self.project_out.weight[:, half]), part.shape)
        return start


class MultiAxisMlp(AxesMix):
    """The multi-axis gated MLP. (N, H, W, C) -> the same."""

    def __init__(self, channels: int, side: int):
        super().__init__(channels, side)
        self.grid = GatedMlp(channels, side)
        self.window = GatedMlp(channels, side)

    def forward(self, x: Tensor) -> Tensor:
        return self.mixed(x, x.clone(), self.grid, self.window)


class GateWeights(AxesMix):
    """Weights for a cross gating block. (N, H, W, C) -> the same."""

    def __init__(self, channels: int, side: int):
        super().__init__(channels, side)
        self.mix_grid = PositionMix(side)
        self.mix_window = PositionMix(side)

    def forward(self, x: Tensor) -> Tensor:
        return self.mixed(x, torch.zeros_like(x), self.mix_grid, self.mix_window)


class CrossGating(nn.Module):
    """The cross gating block (the paper's section 3.4): x and y gate each other. Returns both.

    Args:
        x_channels: channels of x.
        channels, side: channels of both results, and of y; side of their windows and grid.
        below: y has this many channels and half the size of x, and is enlarged first; None: it has x's size.
    """

    def __init__(self, x_channels: int, channels: int, side: int, below: int | None = None):
        super().__init__()
        self.up = None if below is None else Up(below, channels)
        self.first_x = nn.Linear(x_channels, channels)
        self.first_y = nn.Linear(channels, channels)
        self.norm_x = LayerNorm(channels)
        self.norm_y = LayerNorm(channels)
        self.project_in_x = nn.Linear(channels, channels)
        self.project_in_y = nn.Linear(channels, channels)
        self.weights_x = GateWeights(channels, side)
        self.weights_y = GateWeights(channels, side)
        self.project_out_x = nn.Linear(channels, channels)
        self.project_out_y = nn.Linear(channels, channels)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = y if self.up is None else self.up(y)
        x, y = self.first_x(x), self.first_y(y)
        hidden_x = gelu(self.project_in_x(self.norm_x(x)))
        hidden_y = gelu(self.project_in_y(self.norm_y(y)))
        y = y + self.project_out_y(hidden_y * self.weights_x(hidden_x))
        x = x + self.project_out_x(hidden_x * self.weights_y(hidden_y)) + y
        return x, y


class ChannelAttention(nn.Module):
    """Each channel times a weight that depends on the means of all channels (Hu et al., CVPR 2018)."""

    def __init__(self, channels: int):
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // 4)
        self.excite = nn.Linear(channels // 4, channels)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((1, 2), keepdim=True)
        return x * self.excite(self.squeeze(means).relu()).sigmoid()


class ConvAttention(nn.Module):
    """x + attention(conv(leaky_relu(conv(norm(x)))))."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = LayerNorm(channels)
        self.conv1 = Conv(channels, channels)
        self.conv2 = Conv(channels, channels)
        self.attention = ChannelAttention(channels)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.leaky_relu(self.conv1(self.norm(x)), 0.2)
        return x + self.attention(self.conv2(hidden))


class DenseAttention(nn.Module):
    """x + attention(dense(gelu(dense(norm(x))))), in the place of `ConvAttention` at the bottom."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = LayerNorm(channels)
        self.dense1 = nn.Linear(channels, channels)
        self.dense2 = nn.Linear(channels, channels)
        self.attention = ChannelAttention(channels)

    def forward(self, x: Tensor) -> Tensor:
        hidden = gelu(self.dense1(self.norm(x)))
        return x + self.attention(self.dense2(hidden))


class Block(nn.Module):
    """A dense layer, then twice a `MultiAxisMlp` and channel attention, plus what the dense layer gave."""

    def __init__(self, in_channels: int, channels: int, side: int, attention: type[nn.Module] = ConvAttention):
        super().__init__()
        self.first = nn.Linear(in_channels, channels)
        pairs = [(MultiAxisMlp(channels, side), attention(channels)) for _ in range(2)]
        self.layers = nn.Sequential(*[layer for pair in pairs for layer in pair])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x + self.layers(x)


class Resized(nn.Module):
    """Feature maps of several scales, each through its own dense layer and resized to `scale`, then concatenated."""

    def __init__(self, scales: tuple[int, ...], scale: int):
        super().__init__()
        self.factors = [2.0 ** (old - scale) for old in scales]
        self.dense = nn.ModuleList([nn.Linear(WIDTHS[old], WIDTHS[scale]) for old in scales])

    def forward(self, maps: list[Tensor]) -> Tensor:
        return torch.cat([self._resized(*each) for each in zip(maps, self.dense, self.factors, strict=True)], dim=-1)

    def _resized(self, x: Tensor, dense: nn.Linear, factor: float) -> Tensor:
        """Both operations are linear, so the dense layer goes where the image is smaller."""
        if factor > 1:
            return resize(dense(x), factor)
        return dense(resize(x, factor))


class SupervisedAttention(nn.Module):
    """An image from the features, and features attended by that image (Zamir et al., MPRNet, CVPR 2021)."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = Conv(channels, channels)
        self.to_image = Conv(channels, 3)
        self.from_image = Conv(3, channels)

    def forward(self, x: Tensor, blurry: Tensor) -> tuple[Tensor, Tensor]:
        image = self.to_image(x) + blurry
        return image, x + self.conv(x) * self.from_image(image).sigmoid()


class Features(NamedTuple):
    """What a stage hands to the next one: lists with a tensor (N, H, W, C) for each scale."""

    encoded: list[Tensor]
    decoded: list[Tensor]
    attended: list[Tensor]


class Stage(nn.Module):
    """One U-Net of three scales.

    Args:
        first: no stage comes before it, whose features it would take.
        last: it ends in a convolution to an image; otherwise in supervised attention at each scale.
    """

    def __init__(self, first: bool, last: bool):
        super().__init__()
        scales = range(3)
        above = [WIDTHS[max(scale - 1, 0)] for scale in scales]
        below = [WIDTHS[min(scale + 1, 2)] for scale in scales]
        self.inputs = nn.ModuleList([Conv(3, width) for width in WIDTHS])
        self.encoder = nn.ModuleList([Block(above[i] + WIDTHS[i], WIDTHS[i], WINDOW_SIDES[i]) for i in scales])
        self.down = nn.ModuleList([Conv(width, width, side=4, stride=2) for width in WIDTHS])
        self.bottom = nn.Sequential(*[Block(WIDTHS[2], WIDTHS[2], WINDOW_SIDES[2], DenseAttention) for _ in range(2)])
        self.resize_encoded = nn.ModuleList([Resized((0, 1, 2), i) for i in scales])
        self.gate = nn.ModuleList([CrossGating(3 * WIDTHS[i], WIDTHS[i], WINDOW_SIDES[i], below[i]) for i in scales])
        self.resize_skips = nn.ModuleList([Resized((2, 1, 0), i) for i in scales])
        self.up = nn.ModuleList([Up(below[i], WIDTHS[i]) for i in scales])
        self.decoder = nn.ModuleList([Block(4 * WIDTHS[i], WIDTHS[i], WINDOW_SIDES[i]) for i in scales])
        if not first:
            self.fuse_inputs = nn.ModuleList([CrossGating(WIDTHS[i], WIDTHS[i], WINDOW_SIDES[i]) for i in scales])
            self.fuse_encoded = nn.ModuleList([CrossGating(WIDTHS[i], WIDTHS[i], WINDOW_SIDES[i]) for i in scales])
        if last:
            self.to_image = zeroed(Conv(WIDTHS[0], 3))
        else:
            self.attention = nn.ModuleList([SupervisedAttention(width) for width in WIDTHS])

    def encode(self, images: list[Tensor], before: Features | None) -> list[Tensor]:
        """Features of the three scales, then those at the bottom."""
        inputs = [conv(image) for conv, image in zip(self.inputs, images, strict=True)]
        if before is not None:
            inputs = [fuse(x, y)[0] for fuse, x, y in zip(self.fuse_inputs, inputs, before.attended, strict=True)]
        encoded, x = [], inputs[0]
        for i in range(3):
            x = self.encoder[i](torch.cat([x, inputs[i]], dim=-1))
            if before is not None:
                x, _ = self.fuse_encoded[i](x, before.encoded[i] + before.decoded[i])
            encoded.append(x)
            x = self.down[i](x)
        return [*encoded, self.bottom(x)]

    def decode(self, encoded: list[Tensor], bottom: Tensor) -> list[Tensor]:
        """Features of the three scales."""
        skips, gate = [], bottom  # skips come from the smallest scale up
        for i in (2, 1, 0):
            skip, gate = self.gate[i](self.resize_encoded[i](encoded), gate)
            skips.append(skip)
        decoded, x = [], bottom
        for i in (2, 1, 0):
            x = self.decoder[i](torch.cat([self.up[i](x), self.resize_skips[i](skips)], dim=-1))
            decoded.append(x)
        return decoded[::-1]

    def forward(self, images: list[Tensor], before: Features | None) -> tuple[Tensor, Features]:
        """The blurry image at three scales and the features of the stage before -> an image and its own features."""
        *encoded, bottom = self.encode(images, before)
        decoded = self.decode(encoded, bottom)
        if hasattr(self, "to_image"):
            return self.to_image(decoded[0]) + images[0], Features(encoded, decoded, [])
        attended = [each(x, image) for each, x, image in zip(self.attention, decoded, images, strict=True)]
        return attended[0][0], Features(encoded, decoded, [features for _, features in attended])


class Maxim(Predictor):
    """MAXIM: x_init is the image of its last stage. Every stage gives one, and fewer stages take less time.

    Args:
        stages: U-Nets in a row; 3 as published for deblurring (22.2 M parameters).
        size_head: as in `models.networks.unet.UNetPredictor`, one from the features of each stage.
        reduction: it sees the image made so many times smaller, and what it changes there is enlarged and added to the
            image. With 2 it takes a sixth of the time, and lacks the detail that the smaller image does not have. An
            image whose shorter side is below SMALLEST_REDUCED is seen at its own size.

    Raises:
        ValueError: a size head with `reduction` above 1.
    """

    receptive_field = None  # the whole image: the grid spans it
    own_tile = (384, 24)  # the best of 512, 384 and 256 px (tools/benchmarks/results/maxim.md)
    stride = MULTIPLE

    @register_to_config
    def __init__(self, stages: int = 3, size_head: bool = False, reduction: int = 1):
        if size_head and reduction > 1:
            raise ValueError("size_head needs reduction 1: an expected error cannot be enlarged")
        super().__init__()
        self.reduction, self.stride = reduction, MULTIPLE * reduction
        self.own_tile = tuple(reduction * pixels for pixels in self.own_tile)
        self.unets = nn.ModuleList([Stage(k == 0, k == stages - 1) for k in range(stages)])
        self.log_size = nn.ModuleList([SizeHead(WIDTHS[0], 1) for _ in range(stages)]) if size_head else None

    @property
    def stages(self) -> int:
        """How many there are, each of which gives an image."""
        return len(self.unets)

    def forward(self, blurry: Tensor, stages: int | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """From the first `stages` stages; None: all."""
        images, log_size = self.estimates(blurry, stages)
        return images[0] if log_size is None else (images[0], log_size)

    def estimates(self, blurry: Tensor, stages: int | None = None) -> tuple[list[Tensor], Tensor | None]:
        """The images of the stages to supervise, the last one, that of `forward`, first."""
        height, width = blurry.shape[-2:]
        reduction = self.reduction if min(height, width) >= SMALLEST_REDUCED else 1
        multiple = MULTIPLE * reduction
        top, left = (-height % multiple // 2, -width % multiple // 2)
        whole = padded(blurry, multiple)
        small = reduced(whole, reduction)
        images, log_size = self._estimates(small, stages or self.stages)
        if reduction > 1:
            images = [whole + enlarged(image - small, reduction) for image in images]
        inside = ..., slice(top, top + height), slice(left, left + width)
        return [image[inside] for image in images], None if log_size is None else log_size[inside]

    def _estimates(self, blurry: Tensor, stages: int) -> tuple[list[Tensor], Tensor | None]:
        """The same for an image whose sides are multiples of MULTIPLE, at the size that the network sees."""
        image = (blurry + 1) / 2
        image = image.to(self.unets[0].down[0].weight.dtype).permute(0, 2, 3, 1)
        # The authors take every second pixel from the second on, and every fourth from the third on.
        images = [image, image[:, 1::2, 1::2], image[:, 2::4, 2::4]]
        estimates, features = [], None
        for k in range(stages):
            estimate, features = self.unets[k](images, features)
            estimates.append(2 * estimate.float().permute(0, 3, 1, 2) - 1)
        if self.log_size is None:
            return estimates[::-1], None
        return estimates[::-1], self.log_size[stages - 1](features.decoded[0].permute(0, 3, 1, 2))


def gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form, with which the weights were trained.

    In bfloat16 on a CPU the exact form, which differs by less than 5e-4 and takes a quarter of the time there.
    """
    exact = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return F.gelu(x, approximate="none" if exact else "tanh")


def as_windows(x: Tensor, side: int) -> Tensor:
    """(N, H, W, C) -> a view (N, H / side, side, W / side, side, C): neighbouring pixels are together."""
    n, height, width, channels = x.shape
    return x.view(n, height // side, side, width // side, side, channels)


def as_grid(x: Tensor, side: int) -> Tensor:
    """The same shape, of pixels that are H / side and W / side apart."""
    n, height, width, channels = x.shape
    return x.view(n, side, height // side, side, width // side, channels).permute(0, 2, 1, 4, 3, 5)


def positions_first(x: Tensor) -> Tensor:
    """(N, h, side, w, side, C) -> (side^2, N h w, C)."""
    side, channels = x.shape[2], x.shape[5]
    return x.permute(2, 4, 0, 1, 3, 5).reshape(side**2, -1, channels)


def images_first(x: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `positions_first`."""
    n, rows, side, columns, _, channels = shape
    return x.view(side, side, n, rows, columns, channels).permute(2, 3, 0, 4, 1, 5)


def strips(x: Tensor) -> tuple[Tensor, ...]:
    """(N, h, side, w, side, C) in parts along h: one where nothing is gained by more."""
    if x.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_exporting():
        return (x,)
    return x.split(max(1, STRIP * x.shape[1] // x.numel()), dim=1)


def resize(x: Tensor, factor: float) -> Tensor:
    """(N, H, W, C) resized bilinearly by 4, 2, 1, 1/2 or 1/4, with antialiasing where it gets smaller.

    H and W are multiples of 1 / factor.
    """
    if factor == 1:
        return x
    x = x.permute(0, 3, 1, 2)
    resized = F.interpolate(x, scale_factor=factor, mode="bilinear") if factor > 1 else shrink(x, round(1 / factor))
    return resized.permute(0, 2, 3, 1)


def shrink(x: Tensor, factor: int) -> Tensor:
    """(N, C, H, W) bilinearly to 1 / factor of its size with antialiasing: a convolution with a triangle.

    It is F.interpolate(antialias=True), which takes twenty times as long on a CPU. Beyond the border are no pixels, so
    that the others weigh more there.
    """
    channels, height, width = x.shape[1:]
    places = torch.arange(2 * factor, dtype=torch.float32, device=x.device) + 0.5
    triangle = (factor - (places - factor).abs()) / factor**2
    weight = torch.outer(triangle, triangle).to(x.dtype).expand(channels, 1, -1, -1)
    shrunk = F.conv2d(x, weight, stride=factor, padding=factor // 2, groups=channels)

    def inside(side: int) -> Tensor:
        """How much of the triangle lies inside the image, for each output along a side."""
        ones = torch.ones(1, 1, side, device=x.device)
        return F.conv1d(ones, triangle.view(1, 1, -1), stride=factor, padding=factor // 2).view(-1)

    return shrunk / torch.outer(inside(height), inside(width)).to(x.dtype)


def padded(image: Tensor, multiple: int = MULTIPLE) -> Tensor:
    """(N, C, H, W) with sides that are such multiples, padded by reflection and centred."""
    rows, columns = (-side % multiple for side in image.shape[-2:])
    if rows == 0 and columns == 0:
        return image
    return reflected(image, rows // 2, rows - rows // 2, columns // 2, columns - columns // 2)


def reduced(image: Tensor, factor: int) -> Tensor:
    """(N, C, H, W) in float32, so many times smaller: bicubic, without aliasing; H and W are multiples of the factor.

    As `F.interpolate(mode="bicubic", antialias=True)`, of which OpenVINO leaves out the part against aliasing.
    """
    if factor == 1:
        return image
    places = torch.arange(-2 * factor, 3 * factor, device=image.device)
    distances = ((places + 0.5) / factor - 0.5).abs()  # from the middle of the new pixel, in new pixels
    weights = cubic(distances)
    kernel = torch.outer(weights, weights).expand(image.shape[1], 1, -1, -1)
    inside = torch.ones_like(image[:, :1], dtype=torch.float32)
    with without_autocast(image.device):
        sums = F.conv2d(image.float(), kernel, stride=factor, padding=2 * factor, groups=image.shape[1])
        # Beyond the edges there are no pixels: the weights inside are made to add up to 1.
        return sums / F.conv2d(inside, kernel[:1], stride=factor, padding=2 * factor)


def cubic(distances: Tensor) -> Tensor:
    """Keys' cubic of parameter -0.5 (IEEE Trans. ASSP 29(6), 1981, eq. 4)."""
    near = 1.5 * distances**3 - 2.5 * distances**2 + 1
    far = -0.5 * distances**3 + 2.5 * distances**2 - 4 * distances + 2
    return torch.where(distances < 1, near, torch.where(distances < 2, far, 0.0))


def enlarged(image: Tensor, factor: int) -> Tensor:
    """(N, C, H, W) in float32, so many times larger: bicubic."""
    return F.interpolate(image.float(), scale_factor=factor, mode="bicubic", align_corners=False)
