"""What the program leaves of sharp images: photographs, screenshots, pages.

python -m tools.benchmarks.kept FOLDER --checkpoint lite
"""

import sys

import torch

from deblur.checkpoints import load_pipeline
from deblur.cli import call, run_command
from deblur.data.files import images, search
from deblur.evaluation.metrics import psnr

SAME = 100.0  # dB, shown for an image that did not change


def main(folder: str, checkpoint: str = "lite", preset: str = "balanced", limit: int | None = None) -> None:
    """Restore sharp images, and print the PSNR of the 8-bit results to them, the lowest and the mean.

    Args:
        folder: of sharp images.
        checkpoint, preset: that restore them.
        limit: the number of images, evenly spaced; default: all.
    """
    files = search.find(folder)
    step = max(1, len(files) // limit) if limit else 1
    pipeline, scores, extremes = load_pipeline(checkpoint), [], 0
    for file in files[::step][:limit]:
        image = images.read(file)[None]
        restored = (255 * pipeline(image, preset, output_type="pt").images).round() / 255
        scores.append(min(SAME, psnr(restored, image).item()))
        is_extreme = (image == 0) | (image == 1)
        extremes += int((is_extreme & (restored != image)).sum())
        print(f"{file.name}: {scores[-1]:.1f} dB", flush=True)
    same = sum(score == SAME for score in scores)
    mean = torch.tensor(scores).mean().item()
    print(f"{same} of {len(scores)} as they are; lowest {min(scores):.1f} dB, mean {mean:.1f}")
    print(f"{extremes} values of black or white changed")


if __name__ == "__main__":
    sys.exit(run_command("kept", lambda: call(main, None, "-m tools.benchmarks.kept"), "stopped"))
