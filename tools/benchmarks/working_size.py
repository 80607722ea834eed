"""Which scale restores photographs with large blur best, and which one the program finds.

python -m tools.benchmarks.working_size PHOTOS --names test.txt --output runs/working_size.md

Each photograph, enlarged if asked for, is blurred by camera shake in linear light, gets noise of one level and is saved
with 8 bits. PSNR is that of the prediction at each scale.
"""

import sys
from pathlib import Path

import torch
from kornia.color import linear_rgb_to_rgb, rgb_to_linear_rgb
from torch import Tensor

from deblur.cli import call, run_command
from deblur.data.camera import CameraShake, convolve
from deblur.data.files import images
from deblur.data.files.lists import named_files
from deblur.pipeline import Area, load_pipeline
from deblur.working_size import resized, with_change

BLURS = [(12, 0.0), (25, 2.0), (30, 0.0), (40, 1.0), (50, 2.0), (60, 0.0), (80, 2.0)]  # pixels, curvature
MARGIN = 16  # pixels at the borders that are not compared


def blurred(sharp: Tensor, length: float, curvature: float, seed: int) -> tuple[Tensor, Tensor]:
    """The blurry image, and the part of the sharp one that it shows."""
    generator = torch.Generator().manual_seed(seed)
    kernel = CameraShake((length, length), (curvature, curvature)).kernel(generator)
    margin = len(kernel) // 2
    light = convolve(rgb_to_linear_rgb(sharp)[0], kernel, margin)
    blurry = linear_rgb_to_rgb(light[None])
    blurry = (blurry + torch.randn(blurry.shape, generator=generator) / 255).clamp(0, 1)
    inside = slice(margin, -margin or None)
    return (255 * blurry).round() / 255, sharp[..., inside, inside]


def psnr(image: Tensor, sharp: Tensor) -> float:
    """PSNR in dB, without the borders."""
    inside = slice(MARGIN, -MARGIN)
    return -10 * torch.log10((image - sharp)[..., inside, inside].square().mean()).item()


def main(
    photos: str, output: str, names: str, checkpoint: str = "lite", count: int = 6, enlarged: float = 1, seed: int = 0
) -> None:
    """Measure, and write a table.

    Args:
        photos: folder of sharp photographs.
        output: Markdown file to write.
        names: text file in the folder that lists the photographs.
        checkpoint: whose predictor restores.
        count: photographs, the first by name.
        enlarged: so many times.
        seed: of the blur and the noise.
    """
    torch.set_num_threads(1)
    pipeline = load_pipeline(checkpoint)
    files = sorted(named_files(Path(photos) / names, Path(photos)))[:count]
    lines = []
    for length, curvature in BLURS:
        rows, found = [], []
        for at, file in enumerate(files):
            photograph = images.read(file)[None]
            photograph = resized(photograph, *(round(enlarged * side) for side in photograph.shape[-2:])).clamp(0, 1)
            blurry, sharp = blurred(photograph, enlarged * length, curvature, seed + at)
            scales = pipeline.working_size.possible_scales(*blurry.shape[-2:])
            restored = {}
            for scale in scales:
                small = pipeline.prepare(blurry, Area(scale))
                restored[scale] = psnr(with_change(blurry, small.small, pipeline.draft(small).prediction.images), sharp)
            found.append(pipeline.prepare(blurry).scale)
            rows.append([psnr(blurry, sharp), *restored.values(), restored[found[-1]], max(restored.values())])
        means = torch.tensor(rows).mean(0).tolist()
        chosen = ", ".join(f"{scale:g}" for scale in found)
        lines.append(f"| {length} px, {curvature:g} | {' | '.join(f'{one:.2f}' for one in means)} | {chosen} |")
        print(lines[-1], flush=True)
    head = (
        f"| blur, curvature | blurry | {' | '.join(f'{scale:g}' for scale in scales)} | auto | best of each | chosen |"
    )
    Path(output).write_text("\n".join([head, "|---" * (head.count("|") - 1) + "|", *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(
        run_command(
            "tools.benchmarks.working_size", lambda args=None: call(main, args, "-m tools.benchmarks.working_size"), ""
        )
    )
