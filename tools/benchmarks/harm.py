"""What checkpoints make of a folder of pairs, and how much of it they make worse: python -m tools.benchmarks.harm PAIRS

PSNR, LPIPS and the share of the area that is further from the sharp image than the blurry one was, by more than 6
levels (rms over 24 px), in the mean of the images, by preset balanced at the scale that is found.
"""

import sys

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from deblur.cli import call, run_command
from deblur.data.files import images
from deblur.data.layouts import list_pairs, paired
from deblur.evaluation.perceptual import Lpips
from deblur.pipeline import load_pipeline

SIDE = 24  # pixels
LEAST_LOSS = 6.0  # levels


def local_error(image: Tensor, sharp: Tensor) -> Tensor:
    """The rms error around each pixel, in 8-bit levels."""
    squares = (255 * (image - sharp)).square().mean(1, keepdim=True)
    return avg_pool2d(squares, SIDE, 1, SIDE // 2, count_include_pad=False).sqrt()


def main(pairs: str, checkpoints: tuple[str, ...] = ("lite", "swift")) -> None:
    """Measure, and print a row for the blurry images and each checkpoint.

    Args:
        pairs: folder of a dataset of pairs.
        checkpoints: whose restorations are measured.
    """
    lpips, listing = Lpips(), paired(list_pairs(pairs, "train", "blur"), pairs)
    for name in ("blurry", *checkpoints):
        pipeline = None if name == "blurry" else load_pipeline(name, precision="bf16")
        rows = []
        for pair in listing:
            blurry, sharp = (images.read(file)[None] for file in (pair.blurry, pair.sharp))
            restored = blurry
            if pipeline is not None:
                restored = pipeline(blurry, names=[pair.name], output_type="pt").images
            psnr = -10 * torch.log10((restored - sharp).square().mean())
            worse = local_error(restored, sharp) > local_error(blurry, sharp) + LEAST_LOSS
            rows.append([psnr.item(), lpips(restored, sharp).item(), 100 * worse.float().mean().item()])
        psnr, distance, share = torch.tensor(rows).mean(0).tolist()
        print(f"| {name} | {psnr:.2f} dB / {distance:.3f} | {share:.2f} % |", flush=True)


if __name__ == "__main__":
    sys.exit(run_command("tools.benchmarks.harm", lambda args=None: call(main, args, "-m tools.benchmarks.harm"), ""))
