"""Synthetic blur that follows a camera: motion and defocus in linear light, then the sensor, then the file.

SyntheticBlur combines the kinds of blur in data/camera.py with moving objects and what the camera adds (response,
saturation, noise, JPEG).
"""

import math
from collections.abc import Sequence
from typing import Literal

import imagecodecs
import numpy as np
import torch
import torch.nn.functional as F
from kornia.color import CFA, linear_rgb_to_rgb, raw_to_rgb, rgb_to_linear_rgb, rgb_to_raw
from kornia.filters import gaussian_blur2d, get_gaussian_kernel2d
from torch import Generator, Tensor

from deblur.data.camera import (
    CameraShake,
    Defocus,
    MeasuredKernels,
    Range,
    SixDegrees,
    TiltedDefocus,
    Together,
    between,
    check_ranges,
    convolve,
    inner,
)

RESPONSES = {  # light by a file's values, and the values by light, all in [0, 1]
    "srgb": (rgb_to_linear_rgb, linear_rgb_to_rgb),
    "gamma": (lambda values: values**2.2, lambda light: light ** (1 / 2.2)),
    "linear": (lambda values: values, lambda light: light),
}
RED_GAIN, BLUE_GAIN = (1.9, 2.4), (1.5, 1.9)  # of white balance, over green


class ObjectMotion:
    """A moving object in some images: a region with a soft edge and its own motion.

    The region's light and its mask are blurred by the object's trajectory and composited over the scene, which the
    camera's own blur has already blurred.

    Args:
        probability: that an image has such a region; a list has one value for each camera part of the blur.
        length: range of the trajectory's length in pixels.
        curvature: range of the change of direction.
        size: range of the region's radius relative to the image's shorter side.
    """

    def __init__(
        self,
        probability: float | list[float] = 0.3,
        length: Range = (5.0, 21.0),
        curvature: Range = (0.0, 1.0),
        size: Range = (0.15, 0.4),
    ):
        check_ranges("ObjectMotion", size=size)
        _check_shares("ObjectMotion", probability=probability)
        self.probability = probability
        self.size = size
        self.shake = CameraShake(length, curvature)
        self.margin = self.shake.margin

    def over(self, scene: Tensor, light: Tensor, generator: Generator) -> Tensor:
        """Composite a moving region of the sharp scene `light` (3, H, W) over the blurred `scene`, which is smaller by
        `margin` on each side."""
        mask = self._mask(generator, *light.shape[-2:]).to(light)
        kernel = self.shake.kernel(generator)
        if len(kernel) == 1:
            return scene
        moved = convolve(torch.cat([light * mask, mask]), kernel, self.margin)
        return moved[:3] + (1 - moved[3:]) * scene

    def _mask(self, generator: Generator, height: int, width: int) -> Tensor:
        """(1, H, W) in [0, 1]: a random star-shaped region with a wavy outline."""
        top, left = torch.rand(2, generator=generator) * torch.tensor([height, width])
        radius = between(generator, self.size) * min(height, width)
        waves, phases = 0.15 * torch.randn(3, generator=generator), 2 * math.pi * torch.rand(3, generator=generator)
        y, x = torch.arange(float(height))[:, None] - top, torch.arange(float(width))[None] - left
        angle = torch.atan2(y, x)
        rays = zip((1, 2, 3), waves, phases, strict=True)
        outline = radius * (1 + sum(wave * torch.cos(k * angle + phase) for k, wave, phase in rays))
        soft = max(radius / 10, 1.0)
        return torch.sigmoid((outline - torch.hypot(x, y)) / soft * 4)[None]


class Softening:
    """Soften some scenes by a small Gaussian before anything else, which affects the blurry and the sharp image.

    Downscaled photographs are crisper than video frames, and a network that sees only those sharpens video frames
    beyond their ground truth. Blur, noise and JPEG are applied later and are not softened.

    Args:
        share: of the images, from 0 to 1; a list has one value for each camera part of the blur.
        sigma: range of the Gaussian's standard deviation in pixels, drawn uniformly.
    """

    def __init__(self, share: float | list[float] = 0.12, sigma: Range = (0.3, 1.2)):
        check_ranges("Softening", sigma=sigma)
        _check_shares("Softening", share=share)
        if not sigma[0] > 0:
            raise ValueError(f"Softening's sigma must be above 0, not {sigma[0]}: what is left sharp is 1 - share.")
        self.share = share
        self.sigma = sigma
        self.margin = math.ceil(3 * sigma[1])

    def __call__(self, sharp: Tensor, generator: Generator) -> Tensor:
        """Soften a (3, H, W) image and crop its outer `margin` pixels."""
        sigma = between(generator, self.sigma)
        (kernel,) = get_gaussian_kernel2d(2 * self.margin + 1, (sigma, sigma))
        return convolve(sharp, kernel, self.margin).clamp(0, 1)


class SyntheticBlur:
    """Blur sharp images as cameras do. Every part can be switched off, and zero strength changes no bit.

    The order is that of Rim et al., "Realistic blur synthesis for learning image deblurring", ECCV 2022: softening,
    inverse response to light, saturated highlights, one of the `camera` parts, a moving object, clipping, shot and read
    noise, response; then what phones add, a sharpening halo and resampling; JPEG. All random choices are made
    separately for each image.

    Args:
        camera: kinds of blur of the whole image; one of them is drawn for each image.
        weights: relative frequency of each; none: all equal.
        moving: a moving object in some images.
        soften: softening of some scenes, in the blurry and the sharp image.
        response: from light to the file's values: srgb, gamma (value = light^(1/2.2), as GoPro's blur_gamma
            assumes), or linear, which treats the file's values as light.
        file_values: share of the images whose file values are treated as light, whatever the response; GoPro's folder
            `blur` was averaged this way.
        saturation: range of the factor by which the true light exceeds the clipping level where the file is clipped; 0:
            off.
        shot_noise: range of the shot noise's variance at full light; it is proportional to the light and equals
            1 / (electrons of a full pixel); 0: off.
        read_noise: range of the standard deviation of the sensor's Gaussian noise, in light; 0: off.
        raw: share of the noisy images whose noise is that of a raw file: see `add_raw_noise`.
        jpeg: range of the JPEG quality, 1 to 100, rounded; none: no JPEG.
        clean: share of the images without noise, halo, resampling and JPEG.
        halo: range of the amount of an unsharp mask; 0: off.
        resample: range of the share of its sides to which the image is resized and back; from 1 up: off.
    """

    def __init__(
        self,
        camera: list[CameraShake | MeasuredKernels | SixDegrees | Defocus | TiltedDefocus | Together] | None = None,
        weights: list[float] | None = None,
        moving: ObjectMotion | None = None,
        soften: Softening | None = None,
        response: Literal["srgb", "gamma", "linear"] = "srgb",
        file_values: float = 0.0,
        saturation: Range = (0.0, 0.0),
        shot_noise: Range = (0.0, 0.0),
        read_noise: Range = (0.0, 0.0),
        raw: float = 0.0,
        jpeg: Range | None = None,
        clean: float = 0.0,
        halo: Range = (0.0, 0.0),
        resample: Range = (1.0, 1.0),
    ):
        ranges = {"saturation": saturation, "shot_noise": shot_noise, "read_noise": read_noise, "halo": halo}
        check_ranges("SyntheticBlur", **ranges, resample=resample)
        if not resample[0] > 0:
            raise ValueError(f"SyntheticBlur's resample must be above 0, not {resample[0]}: from 1 up it is off.")
        _check_shares("SyntheticBlur", file_values=file_values, raw=raw, clean=clean)
        self.camera = camera or []
        self.weights = torch.tensor([1.0] * len(self.camera) if weights is None else weights)
        if len(self.weights) != len(self.camera) or (len(self.camera) and not self.weights.sum() > 0):
            raise ValueError(f"SyntheticBlur's weights must be {len(self.camera)} numbers, one for each camera part.")
        if jpeg is not None and not 1 <= jpeg[0] <= jpeg[1] <= 100:
            raise ValueError(f"SyntheticBlur's jpeg must be a range from 1 to 100, not {tuple(jpeg)}.")
        # One value for each camera part: how often an object moves, and how often a scene is soft.
        self.moves = self._by_part("ObjectMotion's probability", moving.probability if moving else 0.0)
        self.softens = self._by_part("Softening's share", soften.share if soften else 0.0)
        self.moving, self.soften = moving, soften
        self.response, self.file_values = response, file_values
        self.saturation, self.shot_noise, self.read_noise, self.raw = saturation, shot_noise, read_noise, raw
        self.jpeg, self.clean, self.halo, self.resample = jpeg, clean, halo, resample

    @property
    def margin(self) -> int:
        """The pixels on every side that the blur needs and crops."""
        parts = [*self.camera, *([self.moving] if self.moving else [])]
        return max((part.margin for part in parts), default=0) + (self.soften.margin if self.soften else 0)

    def __call__(self, sharp: Tensor, generators: Sequence[Generator]) -> tuple[Tensor, Tensor]:
        """Blur (N, 3, H, W) images in [0, 1], on their device, with one CPU generator per image.

        Returns (blurry, ground truth), each (N, 3, H - 2 margin, W - 2 margin). An image's result depends on the image
        and its generator, not on the rest of the batch.
        """
        pairs = [self._pair(image, generator) for image, generator in zip(sharp, generators, strict=True)]
        blurry, ground_truth = zip(*pairs, strict=True)
        return torch.stack(blurry), torch.stack(ground_truth)

    def _pair(self, sharp: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        kind = int(torch.multinomial(self.weights, 1, generator=generator)) if self.camera else 0
        *shares, gain, shot, read, quality = torch.rand(8, generator=generator).tolist()
        seed = int(torch.randint(2**62, (), generator=generator))
        limits = self.moves[kind], self.softens[kind], self.file_values, self.clean
        moves, soft, as_light, clean = (number < limit for number, limit in zip(shares, limits, strict=True))
        gain, shot, read = (
            low + (high - low) * number
            for number, (low, high) in ((gain, self.saturation), (shot, self.shot_noise), (read, self.read_noise))
        )
        # One generator per part, so that a part that draws more numbers than before does not affect the others.
        shake, motion, softness, grain = (Generator().manual_seed(seed + at) for at in range(4))
        parts = [*self.camera[kind : kind + 1], *([self.moving] if moves else [])]
        margin = max((part.margin for part in parts), default=0)  # may be less than the margin of unused parts
        if soft:
            sharp = self.soften(inner(sharp, self.margin - margin - self.soften.margin), softness)
        else:
            sharp = inner(sharp, self.margin - margin)
        ground_truth = inner(sharp, margin)

        to_light, from_light = RESPONSES["linear" if as_light else self.response]
        light = to_light(sharp)
        if gain:
            # Clipped light was brighter than recorded by the factor 1 + gain; the factor rises from 1 at 0.95.
            light = light * (1 + gain * ((light.amax(0) - 0.95) / 0.05).clamp(0, 1))
        still = inner(light, margin)
        scene = self.camera[kind](inner(light, margin - self.camera[kind].margin), shake) if self.camera else still
        if moves:
            scene = self.moving.over(scene, inner(light, margin - self.moving.margin), motion)
        noisy = not clean and (shot > 0 or read > 0)
        if torch.equal(scene, still) and not noisy:
            blurry = ground_truth
        else:
            scene = scene.clamp(0, 1)
            if noisy:
                as_raw = between(Generator().manual_seed(seed + 5), (0, 1)) < self.raw
                scene = (add_raw_noise if as_raw else add_noise)(scene, shot, read, grain).clamp(0, 1)
            blurry = from_light(scene)
        if not clean:
            phone = Generator().manual_seed(seed + 4)
            blurry = shrink(sharpen(blurry, between(phone, self.halo)), between(phone, self.resample))
        if self.jpeg is not None and not clean:
            blurry = compress(blurry, round(self.jpeg[0] + (self.jpeg[1] - self.jpeg[0]) * quality))
        return blurry, ground_truth

    def _by_part(self, name: str, share: float | list[float]) -> list[float]:
        if not isinstance(share, list):
            return [share] * max(len(self.camera), 1)
        if len(share) != len(self.camera):
            raise ValueError(f"{name} must be {len(self.camera)} numbers, one for each camera part, or a single one.")
        return share


def add_noise(light: Tensor, shot: float, read: float, generator: Generator) -> Tensor:
    """Add Gaussian noise of variance shot * light + read^2.

    The Gaussian approximates the Poisson noise of many electrons (Foi et al., "Practical Poissonian-Gaussian noise
    modeling and fitting for single-image raw-data", TIP 2008, section II) in a thirtieth of the time.
    """
    grain = torch.randn(light.shape, generator=generator).to(light)
    return light + grain * (shot * light + read**2).sqrt()


def add_raw_noise(light: Tensor, shot: float, read: float, generator: Generator) -> Tensor:
    """`add_noise` to the sensor's signal: before white balance, which amplifies red and blue, and before the demosaic,
    which spreads a pixel's noise to its neighbours; (3, H, W).

    The gains are those of Rim et al., "Realistic blur synthesis for learning image deblurring", ECCV 2022.
    """
    gains = torch.tensor([between(generator, RED_GAIN), 1.0, between(generator, BLUE_GAIN)]).to(light)[:, None, None]
    height, width = light.shape[-2:]
    signal = add_noise(light / gains, shot, read, generator)
    even = F.pad(signal[None], (0, width % 2, 0, height % 2), "replicate")
    return raw_to_rgb(rgb_to_raw(even, CFA.RG), CFA.RG)[0, :, :height, :width] * gains


def sharpen(image: Tensor, amount: float) -> Tensor:
    """The unsharp mask of a phone's processing, with a Gaussian of one pixel, which leaves halos; (3, H, W)."""
    if not amount:
        return image
    soft = gaussian_blur2d(image[None], (7, 7), (1.0, 1.0), "replicate")[0]
    return (image + amount * (image - soft)).clamp(0, 1)


def shrink(image: Tensor, share: float) -> Tensor:
    """Resize a (3, H, W) image to this share of its sides and back, as a digital zoom or a messenger does."""
    height, width = image.shape[-2:]
    if share >= 1:
        return image
    small = max(1, round(share * height)), max(1, round(share * width))
    smaller = F.interpolate(image[None], small, mode="bicubic", antialias=True)
    return F.interpolate(smaller, (height, width), mode="bicubic")[0].clamp(0, 1)


def compress(image: Tensor, quality: int) -> Tensor:
    """Compress a (3, H, W) image in [0, 1] as JPEG, with libjpeg's chroma subsampling 4:2:0, and decode it again."""
    values = image.mul(255).round_().byte().movedim(0, -1).cpu().numpy()
    read = imagecodecs.jpeg8_decode(imagecodecs.jpeg8_encode(np.ascontiguousarray(values), quality))
    return torch.from_numpy(read).to(image.device).movedim(-1, 0).float().div_(255)


def _check_shares(owner: str, **shares: float | list[float]) -> None:
    for name, share in shares.items():
        if not all(0 <= value <= 1 for value in (share if isinstance(share, list) else [share])):
            raise ValueError(f"{owner}'s {name} must be from 0 to 1, not {share}.")
