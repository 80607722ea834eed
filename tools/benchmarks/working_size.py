"""Which scale restores blurry photographs of 12 megapixels best, and which one the program finds.

python -m tools.benchmarks.working_size PHOTOS --output runs/working_size.md

Four photographs, each enlarged to 2000x1500, make one of 4000x3000, which is blurred by camera shake or defocus, gets
noise of one level and is stored with 8 bits. Its restoration (the prediction, sharp parts kept) is compared at
1600 pixels, where the photographs are sharp. Seconds are the processor's, of one thread.
"""

import sys
import time
from pathlib import Path

import torch
from kornia.color import linear_rgb_to_rgb, rgb_to_linear_rgb
from torch import Tensor

from deblur.checkpoints import load_pipeline
from deblur.cli import call, run_command
from deblur.data.camera import CameraShake, Defocus, convolve
from deblur.data.files import images, search
from deblur.evaluation.metrics import psnr
from deblur.pipeline import Area, Limits
from deblur.settings import SamplingSettings
from deblur.storage import replacing
from deblur.working_size import resized

HEIGHT, WIDTH = 1500, 2000  # of one of four photographs
COMPARED = (1200, 1600)
MARGIN = 30  # pixels of the compared images that are left out at the borders
KINDS = {"straight": (0.0, 0.0), "curved": (2.0, 2.0)}  # curvature of the shake
BLURS = [(2, "straight"), (6, "curved"), (12, "straight"), (12, "curved"), (25, "straight"), (25, "curved")]
BLURS += [(50, "straight"), (50, "curved"), (62, "straight"), (25, "defocus")]


def photograph(files: list[Path]) -> Tensor:
    """(1, 3, 3000, 4000) in [0, 1] of four photographs."""
    parts = []
    for file in files:
        image = images.read(file)[None]
        upright = image.shape[-2] > image.shape[-1]
        parts.append(resized(image.transpose(2, 3) if upright else image, HEIGHT, WIDTH).clamp(0, 1))
    return torch.cat([torch.cat(parts[:2], 3), torch.cat(parts[2:], 3)], 2)


def blurred(sharp: Tensor, length: int, kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """The blurry image, and the part of the sharp one that it shows."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "defocus":
        kernel = Defocus((length / 2, length / 2)).kernel(generator)
    else:
        kernel = CameraShake((length, length), KINDS[kind]).kernel(generator)
    margin = len(kernel) // 2
    light = convolve(rgb_to_linear_rgb(sharp)[0], kernel, margin)
    blurry = linear_rgb_to_rgb(light[None])
    blurry = (blurry + torch.randn(blurry.shape, generator=generator) / 255).clamp(0, 1)
    inside = slice(margin, -margin or None)
    return (255 * blurry).round() / 255, sharp[..., inside, inside]


def at_comparison(image: Tensor) -> Tensor:
    return resized(image, *COMPARED).clamp(0, 1)[..., MARGIN:-MARGIN, MARGIN:-MARGIN]


def main(photos: str, output: str, checkpoint: str = "lite", seed: int = 0, repetitions: int = 1) -> None:
    """Measure, and write a table.

    Args:
        photos: folder of sharp photographs.
        output: Markdown file to write.
        checkpoint: whose predictor restores.
        seed: of the photographs, the blur and the noise.
        repetitions: number of photographs of 12 megapixels.
    """
    files = search.find(photos)
    pipeline = load_pipeline(checkpoint)
    scales = [scale for scale in pipeline.working_size.scales if scale >= 0.25]
    limits = Limits(memory=int(3.5e9))
    settings = SamplingSettings(blend=0.0, keep_sharp=pipeline.preset().keep_sharp)
    torch.set_num_threads(1)
    head = ["blur", "blurry", *(f"{round(4000 * scale)} px" for scale in scales), "auto", "chosen", "seconds"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for length, kind in BLURS:
        rows = []
        for k in range(repetitions):
            order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed + k)).tolist()
            blurry, sharp = blurred(photograph([files[i] for i in order[:4]]), length, kind, seed + k)
            truth = at_comparison(sharp)
            scores = [psnr(at_comparison(blurry), truth).item()]
            seconds = []
            for scale in scales:
                start = time.process_time()
                restored = pipeline(blurry, settings, output_type="pt", limits=limits, area=Area(scale)).images
                seconds.append(time.process_time() - start)
                scores.append(psnr(at_comparison(restored), truth).item())
            start = time.process_time()
            chosen = scales.index(max(min(scales), pipeline.working_scale(blurry)))
            seconds.append(time.process_time() - start + seconds[chosen])
            rows.append([*scores, scores[1 + chosen], scales[chosen], seconds[0], seconds[-1]])
        means = torch.tensor(rows, dtype=torch.float64).mean(0).tolist()
        numbers = " | ".join(f"{value:.2f}" for value in means[:-3])
        chosen = ", ".join(f"{row[-3]:g}" for row in rows)
        lines.append(f"| {length} px, {kind} | {numbers} | {chosen} | {means[-1]:.0f} of {means[-2]:.0f} |")
        print(lines[-1], flush=True)
    with replacing(Path(output)) as part:
        part.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(run_command("working_size", lambda: call(main, None, "-m tools.benchmarks.working_size"), "stopped"))
