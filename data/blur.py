"""Synthetic blur as a camera makes it: motion and defocus in linear light, then the sensor, then the file.

CameraShake is the simple case in one class. SyntheticBlur puts together a scene's blur out of parts (UniformShake,
MeasuredKernels, SixDegrees, Defocus, ObjectMotion) and what the camera adds (response, saturation, noise, JPEG).
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from kornia.color import linear_rgb_to_rgb, rgb_to_linear_rgb
from kornia.enhance import jpeg_codec_differentiable
from kornia.geometry.transform import warp_perspective
from torch import Generator, Tensor

Range = tuple[float, float]


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
        _check("CameraShake", length=length, curvature=curvature, noise=noise)
        self.length = length
        self.curvature = curvature
        self.noise = noise
        self.linear_light = linear_light
        self.margin = _margin(length)
        self.instants = _instants(length)

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

        length, curvature, noise = (_between(generator, span) for span in (self.length, self.curvature, self.noise))
        seed = torch.randint(2**62, (), generator=generator).item()
        return draw_trajectory(generator, length, curvature, self.instants), noise, seed


class UniformShake:
    """A part of SyntheticBlur: the same random trajectory for every place of the picture, as CameraShake's.

    Args:
        length: range of the trajectory's length in pixels.
        curvature: range of the standard deviation in radians of the direction's change during the exposure.
    """

    def __init__(self, length: Range = (3.0, 21.0), curvature: Range = (0.0, 3.0)):
        _check("UniformShake", length=length, curvature=curvature)
        self.length = length
        self.curvature = curvature
        self.margin = _margin(length)

    def kernels(self, generators: Sequence[Generator]) -> Tensor:
        """One (2 margin + 1)^2 kernel for each generator."""
        paths = [
            draw_trajectory(g, _between(g, self.length), _between(g, self.curvature), _instants(self.length))
            for g in generators
        ]
        return rasterise(torch.stack(paths), self.margin)

    def __call__(self, light: Tensor, generators: Sequence[Generator]) -> Tensor:
        return convolve(light, self.kernels(generators).to(light.device))


class MeasuredKernels:
    """A part of SyntheticBlur: kernels out of a file, for instance measured ones (Levin et al., CVPR 2009).

    Args:
        file: an .npz file of square arrays of odd size; each is normalised to sum 1.
        largest: kernels of more pixels a side are left out; bounds the margin.
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
                self.bank.append(kernel / kernel.sum())
        if not self.bank:
            raise ValueError(f"{file} holds no kernel of at most {largest} x {largest} pixels: raise largest.")
        # Centred at the pixel next to its centroid, so that no kernel shifts the picture.
        self.bank = [_centred(kernel) for kernel in self.bank]
        self.margin = max(len(kernel) for kernel in self.bank) // 2
        self.bank = torch.stack([F.pad(k, [self.margin - len(k) // 2] * 4) for k in self.bank])

    def __call__(self, light: Tensor, generators: Sequence[Generator]) -> Tensor:
        chosen = [int(torch.randint(len(self.bank), (), generator=g)) for g in generators]
        # A kernel spreads a point of light as it is drawn, which is the mirror image of where a pixel looks.
        return convolve(light, self.bank[chosen].flip(-1, -2).to(light.device))


class Defocus:
    """A part of SyntheticBlur: the disc of a lens out of focus.

    Args:
        radius: range of the disc's radius in pixels; 0 is in focus.
    """

    def __init__(self, radius: Range = (1.0, 6.0)):
        _check("Defocus", radius=radius)
        self.radius = radius
        self.margin = math.ceil(radius[1] + 0.5)

    def __call__(self, light: Tensor, generators: Sequence[Generator]) -> Tensor:
        radii = torch.tensor([_between(g, self.radius) for g in generators])
        return convolve(light, disc(radii, self.margin).to(light.device))


class SixDegrees:
    """A part of SyntheticBlur: a hand-held camera that turns and moves in all six degrees of freedom.

    The pose follows smooth random paths about its mean; the picture is the average of the scene, taken as a plane in
    front of the camera, seen from `instants` poses (Whyte et al., "Non-uniform deblurring for shaken images", IJCV
    2012, for rotations; Tai et al., "Richardson-Lucy deblurring for scenes under a projective motion path", TPAMI
    2011, for homographies).

    Args:
        length: range, drawn uniformly, of the largest shift in pixels of a corner of the picture from its place.
        rotation: strength of turns about the two axes in the picture's plane (tilt and pan), relative to the others.
        roll: strength of turns about the line of sight, which blur the corners and leave the centre sharp.
        translation: strength of shifts parallel to the picture.
        zoom: strength of moves along the line of sight.
        focal: focal length over the photograph's longer side.
        instants: poses that are averaged, 16 to 64.
        frame: longer side in pixels of the 4:3 photograph that the picture is a crop of, at a random place, so that
            the blur varies over the crop as it does there; none: the picture is the whole photograph, as is a side
            that is longer than the photograph's.
    """

    def __init__(
        self,
        length: Range = (1.0, 12.0),
        rotation: float = 1.0,
        roll: float = 1.0,
        translation: float = 0.3,
        zoom: float = 0.3,
        focal: float = 1.2,
        instants: int = 32,
        frame: int | None = None,
    ):
        _check("SixDegrees", length=length)
        if frame is not None and frame < 1:
            raise ValueError(f"SixDegrees's frame must be at least 1 pixel, not {frame}.")
        if not 16 <= instants <= 64:
            raise ValueError(f"SixDegrees's instants must be from 16 to 64, not {instants}.")
        if min(rotation, roll, translation, zoom) < 0 or max(rotation, roll, translation, zoom) == 0:
            raise ValueError("SixDegrees's rotation, roll, translation and zoom must be at least 0, and one above.")
        self.length = length
        self.strengths = torch.tensor([rotation, rotation, roll, translation, translation, zoom])
        self.focal = focal
        self.instants = instants
        self.frame = frame
        self.margin = math.ceil(length[1]) + 1

    def __call__(self, light: Tensor, generators: Sequence[Generator]) -> Tensor:
        height, width = light.shape[-2:]
        centres = torch.stack([self._centre(g, height, width) for g in generators])
        poses = torch.stack([self._path(g, height, width, c) for g, c in zip(generators, centres, strict=True)])
        return average_views(light, homographies(poses, self._focal(height, width), centres[:, None]))

    def _focal(self, height: int, width: int) -> float:
        return self.focal * max(height, width, self.frame or 0)

    def _centre(self, generator: Generator, height: int, width: int) -> Tensor:
        """The photograph's centre (x, y) in the picture's pixels."""
        centre = torch.tensor([(width - 1) / 2, (height - 1) / 2])
        if self.frame is None:
            return centre
        sides = torch.tensor([self.frame, 0.75 * self.frame])
        sides = sides.flip(0) if torch.rand((), generator=generator) < 0.5 else sides  # crops are turned, too
        room = (sides - torch.tensor([width, height])).clamp_min(0)
        return centre + (torch.rand(2, generator=generator) - 0.5) * room

    def _path(self, generator: Generator, height: int, width: int, centre: Tensor) -> Tensor:
        """(instants, 6) poses: turns in radians about x, y and the line of sight; shifts x, y, z over the distance."""
        length = _between(generator, self.length)
        walk = torch.randn(2, self.instants, 6, generator=generator).cumsum(1).cumsum(1)[0]  # integrated twice: smooth
        walk = walk - walk.mean(0)
        path = walk / walk.abs().amax(0).clamp_min(1e-6) * torch.rand(6, generator=generator) * self.strengths
        # Small motions shift corners in proportion, so that one small trial gives the strength.
        trial = 1e-3
        views = homographies(trial * path.double(), self._focal(height, width), centre)
        x, y = width - 1.0, height - 1.0
        corners = torch.tensor([[0, 0, 1], [x, 0, 1], [0, y, 1], [x, y, 1]], dtype=torch.float64).T
        moved = views @ corners
        shift = (moved[:, :2] / moved[:, 2:] - corners[:2]).norm(dim=1).max()
        return path * (trial * length / shift.clamp_min(1e-12)).float()


class ObjectMotion:
    """A part of SyntheticBlur for scenes with a moving thing: a region with a soft edge and a motion of its own.

    The region is cut out softly, its light and its mask are blurred by the thing's trajectory and laid over the
    scene, which the camera's own blur has blurred already.

    Args:
        probability: of a picture to have such a region.
        length: range of its trajectory's length in pixels.
        curvature: range of the direction's change.
        size: range of the region's radius over the picture's shorter side.
    """

    def __init__(
        self,
        probability: float = 0.3,
        length: Range = (5.0, 21.0),
        curvature: Range = (0.0, 1.0),
        size: Range = (0.15, 0.4),
    ):
        _check("ObjectMotion", length=length, curvature=curvature, size=size)
        if not 0 <= probability <= 1:
            raise ValueError(f"ObjectMotion's probability must be from 0 to 1, not {probability}.")
        self.probability = probability
        self.size = size
        self.shake = UniformShake(length, curvature)
        self.margin = self.shake.margin

    def over(self, scene: Tensor, light: Tensor, generators: Sequence[Generator]) -> Tensor:
        """Lay the moving regions of `light` (N, 3, H, W), the sharp scene, over the blurred `scene`."""
        masks = torch.stack([self._mask(g, *light.shape[-2:]) for g in generators])[:, None].to(light)
        kernels = self.shake.kernels(generators).to(light.device)
        moved, share = convolve(light * masks, kernels), convolve(masks, kernels)
        still = _identity(kernels) | (masks.amax((1, 2, 3)) == 0)
        return torch.where(still.view(-1, 1, 1, 1), scene, moved + (1 - share) * scene)

    def _mask(self, generator: Generator, height: int, width: int) -> Tensor:
        """(H, W) in [0, 1]: a random star-shaped region of wavy outline, or nothing."""
        used = torch.rand((), generator=generator) < self.probability
        top, left = torch.rand(2, generator=generator) * torch.tensor([height, width])
        radius = _between(generator, self.size) * min(height, width)
        waves, phases = 0.15 * torch.randn(3, generator=generator), 2 * math.pi * torch.rand(3, generator=generator)
        y, x = torch.meshgrid(torch.arange(height) - top, torch.arange(width) - left, indexing="ij")
        angle = torch.atan2(y, x)
        rays = zip((1, 2, 3), waves, phases, strict=True)
        outline = radius * (1 + sum(wave * torch.cos(k * angle + phase) for k, wave, phase in rays))
        soft = max(radius / 10, 1.0)
        return torch.sigmoid((outline - torch.hypot(x, y)) / soft * 4) * used


class SyntheticBlur:
    """Blur sharp pictures as cameras do; every part is on or off by itself, and zero strength changes no bit.

    In this order (Rim et al., "Realistic blur synthesis for learning image deblurring", ECCV 2022): to light by the
    inverse response, saturated highlights, one of the `camera` parts, a moving object, clipping, shot and read noise,
    back by the response, JPEG.

    Args:
        camera: the kinds of blur of the whole picture, one of which is drawn for each picture.
        weights: how often each is drawn, relative to each other; none: alike.
        moving: a moving object in some pictures.
        response: from light to the file's values: srgb, gamma (value = light^(1/gamma), as GoPro's blur_gamma assumes
            with 2.2), or linear, which takes the file's values for light.
        gamma: of the response gamma.
        saturation: range of the factor by which light that is clipped in the file really exceeds the clip; 0: off.
        shot_noise: range of the Poisson noise's variance at full light, 1 / (electrons of a full pixel); 0: off.
        read_noise: range of the standard deviation of the sensor's Gaussian noise, in light; 0: off.
        jpeg: range of the JPEG quality, 1 to 100; none: no JPEG.
    """

    def __init__(
        self,
        camera: list[UniformShake | MeasuredKernels | SixDegrees | Defocus] | None = None,
        weights: list[float] | None = None,
        moving: ObjectMotion | None = None,
        response: Literal["srgb", "gamma", "linear"] = "srgb",
        gamma: float = 2.2,
        saturation: Range = (0.0, 0.0),
        shot_noise: Range = (0.0, 0.0),
        read_noise: Range = (0.0, 0.0),
        jpeg: Range | None = None,
    ):
        _check("SyntheticBlur", saturation=saturation, shot_noise=shot_noise, read_noise=read_noise)
        self.camera = camera or []
        self.weights = torch.tensor([1.0] * len(self.camera) if weights is None else weights)
        if len(self.weights) != len(self.camera) or (len(self.camera) and not self.weights.sum() > 0):
            raise ValueError(f"SyntheticBlur's weights must be {len(self.camera)} numbers, one for each camera part.")
        if jpeg is not None and not 1 <= jpeg[0] <= jpeg[1] <= 100:
            raise ValueError(f"SyntheticBlur's jpeg must be a range from 1 to 100, not {tuple(jpeg)}.")
        if not gamma > 0:
            raise ValueError(f"SyntheticBlur's gamma must be above 0, not {gamma}.")
        self.moving = moving
        self.response = response
        self.gamma = gamma
        self.saturation = saturation
        self.shot_noise = shot_noise
        self.read_noise = read_noise
        self.jpeg = jpeg
        parts = [*self.camera, *([moving] if moving else [])]
        self.margin = max((part.margin for part in parts), default=0)

    def __call__(self, sharp: Tensor, generators: Sequence[Generator]) -> Tensor:
        """Blur (N, 3, H, W) pictures in [0, 1], on their device, with one CPU generator a picture.

        A picture's result depends on the picture and its generator, not on its batch. Its outer `margin` pixels see
        a border made by repeating the edge.
        """
        device = sharp.device
        gain = _column([_between(g, self.saturation) for g in generators], device)
        shot = _column([_between(g, self.shot_noise) for g in generators], device)
        read = _column([_between(g, self.read_noise) for g in generators], device)
        quality = torch.tensor([_between(g, self.jpeg or (100, 100)) for g in generators], device=device)
        seeds = [torch.randint(2**62, (), generator=g).item() for g in generators]
        light = self._to_light(sharp)
        # Light at the clip is brighter than it says, by the factor 1 + gain; from 0.95 on it rises to that.
        bright = light * (1 + gain * ((light.amax(1, keepdim=True) - 0.95) / 0.05).clamp(0, 1))
        scene = bright.clone()
        if self.camera:
            kinds = [int(torch.multinomial(self.weights, 1, generator=g)) for g in generators]
            for kind in set(kinds):
                at = [i for i, own in enumerate(kinds) if own == kind]
                scene[at] = self.camera[kind](bright[at], [generators[i] for i in at])
        if self.moving is not None:
            scene = self.moving.over(scene, bright, generators)
        moved = (scene != bright).flatten(1).any(1).view(-1, 1, 1, 1)
        noisy = self._noise(scene.clamp(0, 1), shot, read, seeds)
        same = ~moved & (shot == 0) & (read == 0)
        blurry = torch.where(same, sharp, self._from_light(noisy.clamp(0, 1)))
        return blurry if self.jpeg is None else compress(blurry, quality)

    def _to_light(self, pictures: Tensor) -> Tensor:
        if self.response == "srgb":
            return rgb_to_linear_rgb(pictures)
        return pictures**self.gamma if self.response == "gamma" else pictures

    def _from_light(self, light: Tensor) -> Tensor:
        if self.response == "srgb":
            return linear_rgb_to_rgb(light)
        return light ** (1 / self.gamma) if self.response == "gamma" else light

    def _noise(self, light: Tensor, shot: Tensor, read: Tensor, seeds: list[int]) -> Tensor:
        """Poisson noise of variance shot * light and Gaussian noise of deviation read (Foi et al., TIP 2008)."""
        noisy = light.clone()
        for picture, variance, deviation, seed in zip(noisy, shot.flatten(), read.flatten(), seeds, strict=True):
            generator = Generator(light.device).manual_seed(seed)
            if variance > 0:
                picture.copy_(torch.poisson(picture / variance, generator=generator) * variance)
            if deviation > 0:
                grain = torch.randn(picture.shape, generator=generator, device=light.device)
                picture.add_(grain * deviation)
        return noisy


def draw_trajectory(generator: Generator, length: float, curvature: float, instants: int) -> Tensor:
    """A random (instants, 2) trajectory of offsets (x, y) in pixels about its centroid; see CameraShake."""
    direction, pace = 2 * math.pi * torch.rand((), generator=generator).item(), torch.randn((), generator=generator)
    # Random walks whose standard deviation is 1 at the end of the exposure.
    walks = torch.randn(2, instants - 1, generator=generator) / math.sqrt(instants - 1)
    turn, change = walks.cumsum(1)
    direction = direction + curvature * turn
    speed = 2 ** torch.tanh(pace + change)  # 1/2 to 2
    speed = speed * (length / speed.sum())
    steps = torch.stack([speed * direction.cos(), speed * direction.sin()], dim=1)
    trajectory = F.pad(steps.cumsum(0), (0, 0, 1, 0))  # starts at the origin
    return trajectory - trajectory.mean(0)


def homographies(poses: Tensor, focal: float, centre: Tensor) -> Tensor:
    """The (..., 3, 3) maps of pixels (x, y, 1) that (..., 6) camera poses make of a plane in front of the camera.

    K (R - t n^T) K^-1 with the turns R = exp([turns]) in radians, the shifts t over the plane's distance, n the line of
    sight, and the principal point at `centre`, (..., 2) x and y (Hartley and Zisserman, Multiple View Geometry, 13.1).
    A pose of zeros gives the identity exactly.
    """
    camera = torch.diag(poses.new_tensor([focal, focal, 1])).repeat(*centre.shape[:-1], 1, 1)
    camera[..., :2, 2] = centre
    x, y, z = poses[..., :3].unbind(-1)
    zero = torch.zeros_like(x)
    skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
    plane = torch.linalg.matrix_exp(skew)
    plane[..., :, 2] -= poses[..., 3:]
    views = camera @ plane @ torch.linalg.inv(camera)
    still = (poses == 0).all(-1)[..., None, None]  # rounding would leave 1e-7 of a pixel
    return torch.where(still, torch.eye(3).to(views), views)


def average_views(pictures: Tensor, views: Tensor) -> Tensor:
    """Average (N, C, H, W) pictures over (N, T, 3, 3) homographies of their pixels; beyond the border the edge repeats.

    A picture whose homographies are all the identity comes back as it is.
    """
    views = views.to(pictures)
    mean = torch.zeros_like(pictures)
    for view in views.unbind(1):
        mean += warp_perspective(pictures, view, pictures.shape[-2:], padding_mode="border") / views.shape[1]
    still = (views == torch.eye(3).to(views)).flatten(1).all(1)
    return torch.where(still.view(-1, 1, 1, 1), pictures, mean)


def disc(radii: Tensor, margin: int) -> Tensor:
    """(N,) radii as (N, 2 margin + 1, 2 margin + 1) discs of sum 1, their edges one pixel soft; radius 0 is a point."""
    axis = torch.arange(-margin, margin + 1.0)
    distance = torch.hypot(axis[:, None], axis[None, :])
    kernels = (radii[:, None, None] + 0.5 - distance).clamp(0, 1) * (radii[:, None, None] > 0)
    kernels[:, margin, margin] += radii == 0
    return kernels / kernels.sum((1, 2), keepdim=True)


def compress(pictures: Tensor, quality: Tensor) -> Tensor:
    """(N, 3, H, W) pictures in [0, 1] as JPEG of (N,) qualities makes them, on their device."""
    height, width = pictures.shape[-2:]
    padded = F.pad(pictures, (0, -width % 16, 0, -height % 16), mode="replicate")
    return jpeg_codec_differentiable(padded, quality)[..., :height, :width].clamp(0, 1)


def _check(whose: str, **ranges: Range) -> None:
    for name, (low, high) in ranges.items():
        if not 0 <= low <= high:
            raise ValueError(f"{whose}'s {name} must be a range from 0 up, low <= high, not ({low}, {high}).")


def _between(generator: Generator, span: Range) -> float:
    return span[0] + (span[1] - span[0]) * torch.rand((), generator=generator).item()


def _column(values: list[float], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device).view(-1, 1, 1, 1)


def _centred(kernel: Tensor) -> Tensor:
    """Move a kernel by whole pixels until its centroid is within half a pixel of the middle, in the room it needs."""
    radius = len(kernel) // 2
    offsets = torch.arange(-radius, radius + 1.0)
    down, right = round((kernel.sum(1) @ offsets).item()), round((kernel.sum(0) @ offsets).item())
    room = max(abs(down), abs(right))
    kernel = F.pad(kernel, [room] * 4).roll((-down, -right), (0, 1))
    empty = (kernel.amax(0) + kernel.amax(1) + kernel.flip(0, 1).amax(0) + kernel.flip(0, 1).amax(1)) == 0
    border = int((empty[: len(kernel) // 2]).long().cumprod(0).sum())
    return kernel[border : len(kernel) - border, border : len(kernel) - border]


def _identity(kernels: Tensor) -> Tensor:
    middle = kernels.shape[-1] // 2
    return kernels[:, middle, middle] == 1


def _margin(length: Range) -> int:
    # With speeds between v and 4 v no point is farther from the centroid than 2/3 of the length.
    return math.ceil(2 / 3 * length[1])


def _instants(length: Range) -> int:
    return max(16, math.ceil(4 * length[1]))


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
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # TF32's 10 bits would show in a picture
        return F.conv2d(padded, weight, groups=count * channels).view(pictures.shape)
