"""Samples beside stored predictions, by a denoiser with given scales: python -m tools.benchmarks.energy CHECKPOINT

For each set of pairs with stored predictions: the change of PSNR and LPIPS, and the squared error as a multiple of the
prediction's.
"""

import argparse
from functools import partial
from pathlib import Path

import torch

from deblur.data.files import images
from deblur.data.layouts import list_pairs, paired
from deblur.data.predictions import Predictions, to_log_size
from deblur.evaluation.perceptual import Lpips
from deblur.models.diffusion import Estimator, add_residual, residual_size
from deblur.models.samplers import ddim_step, sample
from deblur.pipeline import load_pipeline

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("checkpoint")
parser.add_argument("--scales", type=float, nargs=3, help="default: those of the checkpoint")
parser.add_argument("--sets", nargs="+", required=True)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--eta", type=float, default=1.0)
parser.add_argument("--limit", type=int, default=8)
options = parser.parse_args()

pipeline = load_pipeline(options.checkpoint, "cpu", precision="fp32")
scales = torch.tensor(options.scales or pipeline.config.residual_scale).view(3, 1, 1)
log_snr = torch.linspace(-3.0, 3.8, options.steps, dtype=torch.float64)
step, lpips = partial(ddim_step, eta=options.eta), Lpips()


def scored(image: torch.Tensor, sharp: torch.Tensor) -> torch.Tensor:
    """PSNR, LPIPS and squared error of images in [-1, 1], the means over them."""
    squared = ((image - sharp) / 2).square().mean((1, 2, 3))
    distance = lpips(((image + 1) / 2).clamp(0, 1), (sharp + 1) / 2)
    return torch.stack([-10 * squared.log10(), distance, squared]).mean(1)


for root in options.sets:
    stored = Predictions.of(root, "train", "blur")
    rows = []
    for pair in paired(list_pairs(root, "train", "blur"), root)[: options.limit]:
        files = stored.files(pair.name)
        sharp, blurry, x_init = (2 * images.read(file)[None] - 1 for file in (pair.sharp, pair.blurry, files["x_init"]))
        log_size = to_log_size(images.read(files["log_size"])[None, :1])
        rows.append((sharp, blurry, x_init, scales * residual_size("learned", blurry, x_init, log_size)))
    generator, drawn = torch.Generator().manual_seed(0), []
    for sharp, blurry, x_init, s in rows:
        with torch.autocast("cpu", torch.bfloat16):
            r_0 = sample(
                Estimator(pipeline.denoiser), blurry, x_init, s, log_snr.sigmoid(), step,
                lambda shape: torch.randn(shape, generator=generator),
            )  # fmt: skip
        drawn.append(add_residual(x_init, r_0.float(), s))
    sharp, _, x_init, _ = (torch.cat(column) for column in zip(*rows, strict=True))
    before, after = scored(x_init, sharp), scored(torch.cat(drawn), sharp)
    gain = f"{after[0] - before[0]:+.2f} dB, {100 * (after[1] / before[1] - 1):+.0f} %"
    print(f"{Path(root).name}: {gain}, error {after[2] / before[2]:.2f}")
