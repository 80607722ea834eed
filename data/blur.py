"""Synthetic camera shake: random curved trajectories, drawn as kernels, applied in linear light."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from kornia.color import linear_rgb_to_rgb, rgb_to_linear_rgb
from torch import Generator, Tensor


class CameraShake:
    """Blur sharp pictures as a camera does that moves, without rotation, while its shutter is open.

    Every picture gets a trajectory of its own (after the random motion of Boracchi & Foi, "Modeling the
    performance of image restoration from motion blur", 2012, and of Kupyn et al., "DeblurGAN", 2018): its
    direction and its speed perform random walks, the highest speed at most four times the lowest. The kernel
    is the time spent at each place, centred at its centroid so that the blurry picture is not shifted.

    Args:
        length: range of the trajectory's length in pixels, drawn uniformly.
        curvature: range, drawn uniformly, of the standard deviation in radians of the direction's change from
            the start to the end of the exposure; 0 moves along a straight line, 3 loops.
        noise: range, drawn uniformly, of the standard deviation of the Gaussian noise added to the finished
            picture in [0, 1].
        linear_light: blur in linear light (inverse sRGB, blur, sRGB), as a sensor does, not in the file's
            values.
    """

    def __init__(
        self,
        length: tuple[float, float] = (3.0, 21.0),
        curvature: tuple[float, float] = (0.0, 3.0),
        noise: tuple[float, float] = (0.0, 0.02),
        linear_light: bool = True,
    ):
        for name, (low, high) in {"length": length, "curvature": curvature, "noise": noise}.items():
            if not 0 <= low <= high:
                raise ValueError(
                    f"CameraShake's {name} must be a range from 0 up, low <= high, not ({low}, {high})."
                )
        self.length = length
        self.curvature = curvature
        self.noise = noise
        self.linear_light = linear_light
        # With speeds between v and 4 v no point is farther from the centroid than 2/3 of the length.
        self.margin = math.ceil(2 / 3 * length[1])
        self.instants = max(16, math.ceil(4 * length[1]))

    def __call__(self, sharp: Tensor, generators: Sequence[Generator]) -> Tensor:
        """Blur (N, 3, H, W) pictures in [0, 1], on their device, with one CPU generator a picture.

        A picture's result depends on the picture and its generator, not on its batch. Its outer `margin`
        pixels see a border made by repeating the edge. A trajectory of length 0 leaves the picture exactly as
        it is, noise 0 adds none.
        """
        trajectories, noises, seeds = zip(*(self._draw(generator) for generator in generators), strict=True)
        kernels = rasterise(torch.stack(trajectories), self.margin).to(sharp.device)
        light = rgb_to_linear_rgb(sharp) if self.linear_light else sharp
        light = convolve(light, kernels).clamp(0, 1)
        blurry = linear_rgb_to_rgb(light) if self.linear_light else light
        still = torch.tensor([not trajectory.any() for trajectory in trajectories], device=sharp.device)
        blurry = torch.where(still.view(-1, 1, 1, 1), sharp, blurry)
        for picture, noise, seed in zip(blurry, noises, seeds, strict=True):
            if noise:
                generator = Generator(sharp.device).manual_seed(seed)
                grain = torch.randn(picture.shape, generator=generator, device=sharp.device)
                picture.add_(grain, alpha=noise).clamp_(0, 1)
        return blurry

    def _draw(self, generator: Generator) -> tuple[Tensor, float, int]:
        """One trajectory as (instants, 2) offsets (x, y) in pixels, the noise's strength and its seed."""

        def between(low: float, high: float) -> float:
            return low + (high - low) * torch.rand((), generator=generator).item()

        length, curvature, noise = between(*self.length), between(*self.curvature), between(*self.noise)
        seed = torch.randint(2**62, (), generator=generator).item()
        direction, pace = between(0, 2 * math.pi), torch.randn((), generator=generator)
        # Random walks whose standard deviation is 1 at the end of the exposure.
        walks = torch.randn(2, self.instants - 1, generator=generator) / math.sqrt(self.instants - 1)
        turn, change = walks.cumsum(1)
        direction = direction + curvature * turn
        speed = 2 ** torch.tanh(pace + change)  # 1/2 to 2
        speed = speed * (length / speed.sum())
        steps = torch.stack([speed * direction.cos(), speed * direction.sin()], dim=1)
        trajectory = F.pad(steps.cumsum(0), (0, 0, 1, 0))  # starts at the origin
        return trajectory - trajectory.mean(0), noise, seed


def rasterise(trajectories: Tensor, radius: int) -> Tensor:
    """Draw (N, T, 2) trajectories of offsets (x, y) as (N, 2 radius + 1, 2 radius + 1) kernels of sum 1.

    Every instant spreads 1/T over its four nearest pixels (bilinear), which keeps the centroid. The offset
    (0, 0) is the middle of the kernel; none may be farther away than `radius` in x or y.
    """
    count, instants, _ = trajectories.shape
    size = 2 * radius + 1
    corner = trajectories.floor()
    high = trajectories - corner  # share of the neighbour to the right, below
    low = 1 - high
    stride = size + 1  # one more, for the empty neighbours of the last row and column
    kernels = trajectories.new_zeros(count, stride * stride)
    x, y = (corner.long() + radius).unbind(-1)
    for right, below in ((0, 0), (1, 0), (0, 1), (1, 1)):
        share = (high if right else low)[..., 0] * (high if below else low)[..., 1]
        kernels.scatter_add_(1, (y + below) * stride + x + right, share / instants)
    return kernels.view(count, stride, stride)[:, :size, :size]


def convolve(pictures: Tensor, kernels: Tensor) -> Tensor:
    """Average each of (N, C, H, W) pictures over the offsets of its own (N, K, K) kernel, K odd; same size.

    blurry(p) = sum over d of kernel(d) sharp(p + d); beyond the border the edge repeats.
    """
    count, channels = pictures.shape[:2]
    radius = kernels.shape[-1] // 2
    # One group a channel: on a CPU twice as fast as the FFT up to 31 x 31.
    padded = F.pad(pictures, (radius,) * 4, mode="replicate").flatten(0, 1).unsqueeze(0)
    weight = kernels.repeat_interleave(channels, 0).unsqueeze(1)
    with torch.backends.cudnn.flags(allow_tf32=False):  # TF32's 10 bits would show in a picture
        return F.conv2d(padded, weight, groups=count * channels).view(pictures.shape)
