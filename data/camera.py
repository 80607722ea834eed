"""The kinds of camera blur that SyntheticBlur draws from: shake, measured kernels, defocus, six degrees of freedom.

Each is called with one image of linear light and a generator. It returns the blurred image without its outer `margin`
pixels, which only serve as context, so that no pixels beyond the border are needed. Zero strength changes no bit.
"""

import math
from pathlib import Path
from typing import Literal

import numpy as np
import scipy.fft
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

Range = tuple[float, float]
# Where the scene is in the ground truth: at the mean of its positions during the exposure, so that the blurry image is
# not shifted; or where it was in the middle of the exposure, as in GoPro and REDS, whose sharp frame is the middle one.
Truth = Literal["mean", "middle"]

FINE = 64  # steps in which a path is drawn before it is resampled
FOCAL = 1.2  # focal length relative to the photograph's longer side
CHUNK = 2**16  # pixels warped at once; they fit into a processor's cache


class CameraShake:
    """The camera moves without rotation while its shutter is open: one random kernel for the whole image.

    Every image gets its own trajectory (after the random motion of Boracchi and Foi, "Modeling the performance of image
    restoration from motion blur", 2012, and of Kupyn et al., "DeblurGAN", 2018). Direction and speed follow random
    walks, with a highest speed of at most four times the lowest. The kernel is the time spent at each position.

    Args:
        length: range of the trajectory's length in pixels, drawn uniformly.
        curvature: range of the standard deviation, in radians, of the change of direction from the start to the end of
            the exposure, drawn uniformly; 0 is a straight line, 3 makes loops.
        truth: see `Truth`.
        unevenness: range of a power p, drawn uniformly: the path's length grows by t^p of the exposure's time t in half
            of the images, which start slowly, and by 1 - (1 - t)^p in the others, which end so. At 4 the camera is
            nearly still for half of the time, as in frames of GoPro, and the middle of the exposure is far from the
            mean. null: as the speed is.
    """

    def __init__(
        self,
        length: Range = (3.0, 21.0),
        curvature: Range = (0.0, 3.0),
        truth: Truth = "mean",
        unevenness: Range | None = None,
    ):
        check_ranges("CameraShake", length=length, curvature=curvature)
        if unevenness is not None:
            check_ranges("CameraShake", 1, unevenness=unevenness)
        self.length, self.curvature, self.truth, self.unevenness = length, curvature, truth, unevenness
        # With speeds between v and 4 v no point is further from the centroid than 2/3 of the length, and none further
        # from the middle of the exposure than 4/5. Nothing is further from a point of its path than the path is long.
        reach = {"mean": 2 / 3, "middle": 4 / 5}[truth] if unevenness is None else 1
        self.margin = math.ceil(reach * length[1])

    def kernel(self, generator: Generator) -> Tensor:
        """A random (K, K) kernel of sum 1, K odd and at most 2 margin + 1."""
        return rasterise(self.trajectory(generator))

    def trajectory(self, generator: Generator) -> Tensor:
        """A random (T, 2) trajectory of offsets (x, y) in pixels, with at least four points per pixel of length."""
        length, curvature = between(generator, self.length), between(generator, self.curvature)
        power = 1 if self.unevenness is None else between(generator, self.unevenness)
        instants = max(16, math.ceil(4 * length * power))
        direction, pace = 2 * math.pi * torch.rand((), generator=generator).item(), torch.randn((), generator=generator)
        # Random walks whose standard deviation is 1 at the end of the exposure.
        walks = torch.randn(2, instants - 1, generator=generator) / math.sqrt(instants - 1)
        turn, change = walks.cumsum(1)
        direction = direction + curvature * turn
        speed = 2 ** torch.tanh(pace + change)  # 1/2 to 2
        if self.unevenness is not None:
            growth = torch.linspace(0, 1, instants).pow(power).diff()
            speed = speed * (growth if torch.rand((), generator=generator) < 0.5 else growth.flip(0))
        speed = speed * (length / speed.sum())
        steps = torch.stack([speed * direction.cos(), speed * direction.sin()], dim=1)
        trajectory = F.pad(steps.cumsum(0), (0, 0, 1, 0))  # starts at the origin
        return trajectory - (trajectory.mean(0) if self.truth == "mean" else trajectory[len(trajectory) // 2])

    def __call__(self, light: Tensor, generator: Generator) -> Tensor:
        return convolve(light, self.kernel(generator), self.margin)


class MeasuredKernels:
    """Kernels from a file, for instance measured ones (Levin et al., CVPR 2009); one is drawn for each image.

    Args:
        file: an .npz file of square arrays of odd size; each is normalised to sum 1.
        largest: kernels with more pixels per side are ignored; limits the margin.
    """

    def __init__(self, file: str, largest: int = 41):
        if not Path(file).is_file():
            raise ValueError(f"{file} is no file: give an .npz file of kernels.")
        arrays = np.load(file)
        self.bank = []
        for name in arrays.files:
            kernel = torch.from_numpy(arrays[name]).float()
            if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or len(kernel) % 2 == 0 or kernel.sum() <= 0:
                raise ValueError(f"{file} holds {name}, which is no square kernel of odd size and positive sum.")
            if len(kernel) <= largest:
                # A file holds the point spread function, which is the mirror image of the offsets a pixel looks at.
                self.bank.append(_centred(kernel / kernel.sum()).flip(0, 1))
        if not self.bank:
            raise ValueError(f"{file} holds no kernel of at most {largest} x {largest} pixels: raise largest.")
        self.margin = max(len(kernel) for kernel in self.bank) // 2

    def kernel(self, generator: Generator) -> Tensor:
        """One of the kernels, in its own size."""
        return self.bank[int(torch.randint(len(self.bank), (), generator=generator))]

    def __call__(self, light: Tensor, generator: Generator) -> Tensor:
        return convolve(light, self.kernel(generator), self.margin)


class Defocus:
    """The disc of a lens out of focus.

    Args:
        radius: range of the disc's radius in pixels, drawn uniformly; 0 is in focus.
    """

    def __init__(self, radius: Range = (1.0, 6.0)):
        check_ranges("Defocus", radius=radius)
        self.radius = radius
        self.margin = math.ceil(radius[1] + 0.5)

    def kernel(self, generator: Generator) -> Tensor:
        """A random disc."""
        return disc(between(generator, self.radius))

    def __call__(self, light: Tensor, generator: Generator) -> Tensor:
        return convolve(light, self.kernel(generator), self.margin)


class TiltedDefocus:
    """The focus on a sheet that is not parallel to the sensor: the disc's radius changes linearly across the image.

    Every pixel blends the two of LEVELS discs whose radii are nearest to its own.

    Args:
        radius: range from which the radii at the two opposite ends of the image are drawn, in pixels.
    """

    LEVELS = 5

    def __init__(self, radius: Range = (0.0, 4.0)):
        check_ranges("TiltedDefocus", radius=radius)
        self.radius = radius
        self.margin = math.ceil(radius[1] + 0.5)

    def __call__(self, light: Tensor, generator: Generator) -> Tensor:
        first, last = between(generator, self.radius), between(generator, self.radius)
        angle = 2 * math.pi * torch.rand((), generator=generator).item()
        height, width = (side - 2 * self.margin for side in light.shape[-2:])
        x, y = torch.linspace(-1, 1, width, device=light.device), torch.linspace(-1, 1, height, device=light.device)
        across = math.cos(angle) * x + math.sin(angle) * y[:, None]
        place = (across / (abs(math.cos(angle)) + abs(math.sin(angle))) + 1) / 2 * (self.LEVELS - 1)  # 0 to LEVELS - 1
        total = 0
        for level in range(self.LEVELS):
            radius = first + (last - first) * level / (self.LEVELS - 1)
            total = total + (1 - (place - level).abs()).clamp_min(0) * convolve(light, disc(radius), self.margin)
        return total


class Together:
    """Several kinds of blur of the same image, one after the other, such as defocus and shake.

    Args:
        parts: kinds of blur; convolutions do not depend on their order.
    """

    def __init__(self, parts: list[CameraShake | Defocus | TiltedDefocus]):
        self.parts = parts
        self.margin = sum(part.margin for part in parts)

    def __call__(self, light: Tensor, generator: Generator) -> Tensor:
        for part in self.parts:
            light = part(light, generator)
        return light


class SixDegrees:
    """A hand-held camera that rotates and moves in all six degrees of freedom.

    The pose follows smooth random paths around its mean. The result is the average of the views from poses along the
    path, with the scene taken as a plane in front of the camera (Whyte et al., "Non-uniform deblurring for shaken
    images", IJCV 2012, for rotations; Tai et al., "Richardson-Lucy deblurring for scenes under a projective motion
    path", TPAMI 2011, for homographies). Neighbouring poses are `spacing` pixels apart.

    Args:
        length: range of the largest shift of an image corner in pixels, drawn uniformly.
        frame: longer side in pixels of the 4:3 photograph of which the image is a crop, at a random position, so that
            the blur varies over the crop as it would there. none: the image is the whole photograph, as it also is
            along a side that is longer than the photograph's.
        truth: see `Truth`.
        steady: the camera keeps its direction and speed but for a tenth, as in the short exposures of a video.
    """

    spacing = 1.0
    # Relative strengths of tilt, pan, roll (which leaves the centre sharp), shifts parallel to the image, and zoom.
    strengths = torch.tensor([1.0, 1.0, 1.0, 0.3, 0.3, 0.3])

    def __init__(
        self, length: Range = (1.0, 12.0), frame: int | None = None, truth: Truth = "mean", steady: bool = False
    ):
        check_ranges("SixDegrees", length=length)
        if frame is not None and frame < 1:
            raise ValueError(f"SixDegrees's frame must be at least 1 pixel, not {frame}.")
        self.length, self.frame, self.truth, self.steady = length, frame, truth, steady
        self.margin = math.ceil(length[1]) + 1

    def __call__(self, light: Tensor, generator: Generator) -> Tensor:
        return average_views(light, self.views(generator, *light.shape[-2:]), self.margin)

    def views(self, generator: Generator, height: int, width: int) -> Tensor:
        """(T, 3, 3) homographies for the pixels of an image of this size, along a random camera path."""
        centre = self._centre(generator, height, width)
        poses = self._path(generator, height, width, centre)
        return homographies(poses, self._focal(height, width), centre)

    def _focal(self, height: int, width: int) -> float:
        return FOCAL * max(height, width, self.frame or 0)

    def _centre(self, generator: Generator, height: int, width: int) -> Tensor:
        """The photograph's centre (x, y) in pixel coordinates of the image."""
        centre = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=torch.float64)
        if self.frame is None:
            return centre
        sides = torch.tensor([self.frame, 0.75 * self.frame])
        sides = sides.flip(0) if torch.rand((), generator=generator) < 0.5 else sides  # crops may be rotated
        room = (sides - torch.tensor([width, height])).clamp_min(0)
        return centre + (torch.rand(2, generator=generator) - 0.5) * room

    def _path(self, generator: Generator, height: int, width: int, centre: Tensor) -> Tensor:
        """(T, 6) poses: rotations in radians about x, y and the optical axis; shifts x, y, z over the distance."""
        length = between(generator, self.length)
        walk = torch.randn(FINE, 6, generator=generator).double().cumsum(0).cumsum(0)  # integrated twice for smoothness
        if self.steady:
            line = torch.linspace(-1, 1, FINE).double()[:, None] * torch.randn(6, generator=generator).sign()
            walk = line + 0.1 * walk / walk.abs().amax(0).clamp_min(1e-6)
        walk = walk - (walk.mean(0) if self.truth == "mean" else walk[FINE // 2])
        path = walk / walk.abs().amax(0).clamp_min(1e-6) * torch.rand(6, generator=generator) * self.strengths
        # Small motions shift corners proportionally, so six trial motions determine the strength and the path length.
        trial = 1e-3
        x, y = width - 1.0, height - 1.0
        corners = torch.tensor([[0, 0, 1], [x, 0, 1], [0, y, 1], [x, y, 1]], dtype=torch.float64).T
        moved = homographies(trial * torch.eye(6).double(), self._focal(height, width), centre) @ corners
        moved = moved[:, :2] / moved[:, 2:] - corners[:2]  # (6, x and y, corners)
        moved = torch.tensordot(path, moved, 1)  # (FINE, x and y, corners)
        scale = length / moved.norm(dim=1).max().clamp_min(1e-12)
        travelled = scale * moved.diff(dim=0).norm(dim=1).sum(0).max()
        count = min(max(math.ceil(travelled / self.spacing), 1), FINE)
        middles = (torch.arange(count) + 0.5) / count * FINE - 0.5
        before = middles.floor().long().clamp(0, FINE - 2)
        share = (middles - before)[:, None]
        poses = (path[before] * (1 - share) + path[before + 1] * share) * (trial * scale)
        return poses - (poses.mean(0) if self.truth == "mean" else poses[count // 2])


def rasterise(trajectory: Tensor) -> Tensor:
    """Draw a (T, 2) trajectory of offsets (x, y) as the smallest (K, K) kernel, K odd, that contains it; its sum is 1.

    Every point spreads 1/T over its four nearest pixels (bilinear), which keeps the centroid. The offset (0, 0) is the
    middle of the kernel. A trajectory without motion is the kernel [[1]].
    """
    radius = math.ceil(trajectory.abs().max().item())
    corner = trajectory.floor()
    high = trajectory - corner  # weight of the neighbour to the right, or below
    low = 1 - high
    stride = 2 * radius + 2  # one more for the last row's and column's neighbours, whose weight is 0
    kernel = trajectory.new_zeros(stride * stride)
    x, y = (corner.long() + radius).unbind(-1)
    for right, below in ((0, 0), (1, 0), (0, 1), (1, 1)):
        share = (high if right else low)[:, 0] * (high if below else low)[:, 1]
        kernel.index_add_(0, (y + below) * stride + x + right, share / len(trajectory))
    return kernel.view(stride, stride)[:-1, :-1]


def disc(radius: float) -> Tensor:
    """A (K, K) disc of sum 1 with this radius in pixels and an edge one pixel soft; radius 0 is a point."""
    reach = math.ceil(radius + 0.5) if radius else 0
    axis = torch.arange(-reach, reach + 1.0)
    kernel = (radius + 0.5 - torch.hypot(axis[:, None], axis[None, :])).clamp(0, 1)
    return kernel / kernel.sum()


def convolve(image: Tensor, kernel: Tensor, margin: int) -> Tensor:
    """Average a (C, H, W) image over the offsets of a (K, K) kernel, K odd and at most 2 margin + 1.

    blurry(p) = sum over d of kernel(d) sharp(p + d), for the pixels p with at least `margin` pixels on every side:
    (C, H - 2 margin, W - 2 margin). The kernel [[1]] changes no bit.
    """
    inside = inner(image, margin - len(kernel) // 2)
    if len(kernel) == 1:
        return inside
    # By FFT: on a CPU core kornia.filters.filter2d takes 2.5 times as long at 9 x 9, and 18 times at 33 x 33.
    size = [scipy.fft.next_fast_len(side, real=True) for side in inside.shape[-2:]]
    spectrum = torch.fft.rfft2(inside, size) * torch.fft.rfft2(kernel.to(inside), size).conj()
    height, width = (side - len(kernel) + 1 for side in inside.shape[-2:])
    return torch.fft.irfft2(spectrum, size)[..., :height, :width]


def homographies(poses: Tensor, focal: float, centre: Tensor) -> Tensor:
    """(T, 3, 3) homographies of pixels (x, y, 1), for (T, 6) camera poses and a plane in front of the camera.

    K (R - t n^T) K^-1 with rotations R = exp([angles]) in radians, shifts t relative to the plane's distance, n the
    optical axis, and the principal point at `centre`, x and y (Hartley and Zisserman, Multiple View Geometry, 13.1).
    A pose of zeros gives exactly the identity.
    """
    camera = torch.diag(poses.new_tensor([focal, focal, 1]))
    camera[:2, 2] = centre
    x, y, z = poses[:, :3].unbind(-1)
    zero = torch.zeros_like(x)
    skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
    plane = torch.linalg.matrix_exp(skew)
    plane[..., :, 2] -= poses[:, 3:]
    views = camera @ plane @ torch.linalg.inv(camera)
    still = (poses == 0).all(-1)[:, None, None]  # rounding would leave an error of 1e-7 pixels
    return torch.where(still, torch.eye(3).to(views), views)


def average_views(image: Tensor, views: Tensor, margin: int) -> Tensor:
    """Average a (C, H, W) image over (T, 3, 3) homographies of its pixels, without its outer `margin` pixels.

    Interpolation is bilinear, and the edge is repeated beyond the border. If all homographies are the identity, no bit
    changes.
    """
    if torch.equal(views, torch.eye(3).to(views).expand_as(views)):
        return inner(image, margin)
    height, width = image.shape[-2:]
    x = torch.arange(margin, width - margin, device=image.device).float()
    y = torch.arange(margin, height - margin, device=image.device).float()[:, None]
    # A pixel of the view is looked up through the inverse map; grid_sample's coordinates run from -1 to 1.
    unit = torch.tensor([[2 / (width - 1), 0, -1], [0, 2 / (height - 1), -1], [0, 0, 1]], dtype=torch.float64)
    inverse = (unit @ torch.linalg.inv(views.double())).to(image)[..., None, None]  # (T, 3, 3, 1, 1)
    total = torch.zeros_like(inner(image, margin))
    for part in inverse.split(max(1, CHUNK // (len(x) * len(y)))):
        across, down, depth = (part[:, row, 0] * x + (part[:, row, 1] * y + part[:, row, 2]) for row in range(3))
        places = torch.empty(*depth.shape, 2, dtype=image.dtype, device=image.device)  # (T, H, W, 2)
        torch.div(across, depth, out=places[..., 0])  # takes a quarter of the time of torch.stack
        torch.div(down, depth, out=places[..., 1])
        seen = F.grid_sample(image[None], places.flatten(0, 1)[None], padding_mode="border", align_corners=True)
        total += seen.view(len(image), len(part), *total.shape[-2:]).sum(1)
    return total / len(views)


def inner(image: Tensor, margin: int) -> Tensor:
    """(..., H, W) without its outer `margin` pixels."""
    height, width = image.shape[-2:]
    return image[..., margin : height - margin, margin : width - margin]


def between(generator: Generator, span: Range) -> float:
    """A uniform draw from a range."""
    return span[0] + (span[1] - span[0]) * torch.rand((), generator=generator).item()


def check_ranges(owner: str, least: float = 0, **ranges: Range) -> None:
    """Raise ValueError, naming the argument, unless each range satisfies least <= low <= high."""
    for name, (low, high) in ranges.items():
        if not least <= low <= high:
            raise ValueError(f"{owner}'s {name} must be a range from {least:g} up, low <= high, not ({low}, {high}).")


def _centred(kernel: Tensor) -> Tensor:
    """Move a kernel by whole pixels until its centroid is within half a pixel of the middle; enlarge it as needed."""
    radius = len(kernel) // 2
    offsets = torch.arange(-radius, radius + 1.0)
    down, right = round((kernel.sum(1) @ offsets).item()), round((kernel.sum(0) @ offsets).item())
    room = max(abs(down), abs(right))
    kernel = F.pad(kernel, [room] * 4).roll((-down, -right), (0, 1))
    empty = (kernel.amax(0) + kernel.amax(1) + kernel.flip(0, 1).amax(0) + kernel.flip(0, 1).amax(1)) == 0
    border = int((empty[: len(kernel) // 2]).long().cumprod(0).sum())
    return kernel[border : len(kernel) - border, border : len(kernel) - border]
