"""What a restoration gains by being blurred again and compared: with the true path, and with one that is found.

python -m tools.benchmarks.reblur PHOTOS

Each photograph gives one crop of its middle, blurred in light by a long curved shake (translation alone, so one kernel
is the whole truth), with noise of one level and 8 bits. `maxim` restores it: x_0. Then x minimises |k * x - y|^2 +
lambda |x - x_0|^2 by conjugate gradients, in light, where y is not clipped. k is the true kernel, or that of the path
(five coefficients a direction) by which x_0, and then x, is most like y.
"""

import math
import sys
from pathlib import Path

import torch
from kornia.color import linear_rgb_to_rgb, rgb_to_linear_rgb
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, pad

from deblur.cli import call, run_command
from deblur.data.camera import CameraShake, convolve
from deblur.data.files import images, search
from deblur.pipeline import load_pipeline

SIDE, HALF = 256, 20  # pixels, of a crop and of the largest kernel beside its middle
STEPS = 30  # of conjugate gradients
ROUNDS = 3  # of finding the path and the image in turn
LAMBDAS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
OFFSETS = torch.arange(-HALF, HALF + 1.0)
TIMES = torch.linspace(-1, 1, 48)
BASIS = torch.stack([TIMES, TIMES**2 - 1 / 3, TIMES**3 - 0.6 * TIMES, TIMES**4 - 0.2, torch.sin(3 * TIMES)])


def psnr(light: Tensor, sharp: Tensor) -> float:
    inside = slice(HALF, -HALF)
    return -10 * torch.log10((linear_rgb_to_rgb(light) - sharp)[..., inside, inside].square().mean()).item()


def blurry_crop(file: Path, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The blurry crop, the sharp one and the kernel."""
    generator = torch.Generator().manual_seed(seed)
    sharp = images.read(file)[None]
    kernel = CameraShake((25.0, 40.0), (1.5, 3.0)).kernel(generator)
    while kernel.shape[-1] > 2 * HALF + 1:
        kernel = CameraShake((25.0, 40.0), (1.5, 3.0)).kernel(generator)
    margin = kernel.shape[-1] // 2
    side = SIDE + 2 * margin
    top, left = ((room - side) // 2 for room in sharp.shape[-2:])
    sharp = sharp[..., top : top + side, left : left + side]
    blurry = linear_rgb_to_rgb(convolve(rgb_to_linear_rgb(sharp)[0], kernel, margin)[None])
    blurry = (blurry + torch.randn(blurry.shape, generator=generator) / 255).clamp(0, 1)
    inside = slice(margin, side - margin)
    return (255 * blurry).round() / 255, sharp[..., inside, inside], pad(kernel, [HALF - margin] * 4)


def refined(y: Tensor, x_0: Tensor, kernel: Tensor, weight: float, counts: Tensor) -> Tensor:
    """The minimum over x of |counts (k * x - y)|^2 + weight |x - x_0|^2, where the kernel lies inside."""
    inner, k = y[..., HALF:-HALF, HALF:-HALF], kernel[None, None]

    def adjoint(image: Tensor) -> Tensor:
        return conv_transpose2d((counts * image).transpose(0, 1), k).transpose(0, 1)

    def normal(x: Tensor) -> Tensor:
        return adjoint(conv2d(x.transpose(0, 1), k).transpose(0, 1)) + weight * x

    x = x_0.clone()
    rest = adjoint(inner) + weight * x_0 - normal(x)
    direction, size = rest.clone(), rest.square().sum()
    for _ in range(STEPS):
        image = normal(direction)
        step = size / (direction * image).sum()
        x += step * direction
        rest -= step * image
        before, size = size, rest.square().sum()
        direction = rest + size / before * direction
    return x.clamp(0, 1)


def kernel_of(path: Tensor) -> Tensor:
    """The kernel of a path, (5, 2) coefficients of BASIS in pixels down and across."""
    down, across = path.T @ BASIS
    rows, columns = (torch.exp(-((OFFSETS[:, None] - one) ** 2) / (2 * 0.7**2)) for one in (down, across))
    kernel = rows @ columns.T
    return kernel / kernel.sum()


def found_path(y: Tensor, x: Tensor, counts: Tensor, starts: list[Tensor], steps: int = 60) -> Tensor:
    """The path by which x, blurred, is most like y: by gradients, from the best of these starts."""
    grey, mask = y.mean(1)[0][HALF:-HALF, HALF:-HALF], counts.amin(1)[0]
    spectrum = torch.fft.rfft2(x.mean(1)[0])
    found = []
    for start in starts:
        path = start.clone().requires_grad_(True)
        optimizer = torch.optim.Adam([path], 0.6)
        for _ in range(steps):
            optimizer.zero_grad()
            kernel = torch.fft.rfft2(pad(kernel_of(path), [0, SIDE - 2 * HALF - 1] * 2))
            error = mask * (torch.fft.irfft2(spectrum * kernel.conj(), (SIDE, SIDE))[: -2 * HALF, : -2 * HALF] - grey)
            loss = sum(error.diff(dim=d).square().mean() for d in (0, 1)) + 0.02 * error.square().mean()
            loss.backward()
            optimizer.step()
        found.append((loss.item(), path.detach()))
    return min(found, key=lambda one: one[0])[1]


def bows() -> list[Tensor]:
    """Eight paths to begin with: of four directions, curved to either side."""
    paths = []
    for angle in (torch.arange(4) * math.pi / 4).tolist():
        for bow in (-3, 3):
            path = torch.zeros(5, 2)
            path[0] = 8 * torch.tensor([math.sin(angle), math.cos(angle)])
            path[1] = bow * torch.tensor([math.cos(angle), -math.sin(angle)])
            paths.append(path)
    return paths


def main(photos: str, checkpoint: str = "maxim", count: int = 12, seed: int = 5) -> None:
    """Measure, and print PSNR in dB, without the borders of 20 px.

    Args:
        photos: folder of sharp photographs of at least 296 px.
        checkpoint: whose predictor restores.
        count: photographs, the first by name.
        seed: of the blur and the noise.
    """
    torch.set_num_threads(1)
    pipeline = load_pipeline(checkpoint)
    for at, file in enumerate(search.find(photos)[:count]):
        y, sharp, kernel = blurry_crop(file, seed + at)
        light, x_0 = rgb_to_linear_rgb(y), rgb_to_linear_rgb(pipeline.predict(y).images)
        counts = (y < 0.98).float()[..., HALF:-HALF, HALF:-HALF]
        print(file.name, f"blurry {psnr(light, sharp):.2f}, x_0 {psnr(x_0, sharp):.2f}, true kernel:", end="")
        for weight in LAMBDAS:
            print(f" {psnr(refined(light, x_0, kernel, weight, counts), sharp):.2f}", end="")
        x, starts = x_0, bows()
        for round_ in range(ROUNDS):
            starts = [found_path(light, x, counts, starts)]
            x = refined(light, x_0, kernel_of(starts[0]), 0.03, counts)
            mild = refined(light, x_0, kernel_of(starts[0]), 0.1, counts)
            print(f"; round {round_ + 1}: {psnr(mild, sharp):.2f}, {psnr(x, sharp):.2f}", end="", flush=True)
        print()


if __name__ == "__main__":
    sys.exit(
        run_command("tools.benchmarks.reblur", lambda args=None: call(main, args, "-m tools.benchmarks.reblur"), "")
    )
