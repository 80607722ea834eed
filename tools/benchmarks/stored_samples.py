"""Samples beside stored predictions, with shares of the residual's scales: python -m tools.benchmarks.stored_samples

For each folder of pairs with stored predictions: PSNR and LPIPS of the prediction, and how a sample changes them.
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
parser.add_argument("--scales", type=float, nargs=3, help="of the residual; default: those of the checkpoint")
parser.add_argument("--sets", nargs="+", required=True)
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--blends", type=float, nargs="+", default=[0.6, 1.0])
options = parser.parse_args()

torch.set_num_threads(1)
pipeline, lpips = load_pipeline(options.checkpoint, "cpu", precision="fp32"), Lpips()
scales = torch.tensor(options.scales or pipeline.config.residual_scale).view(3, 1, 1)
levels = torch.linspace(-3.0, 3.8, options.steps, dtype=torch.float64).sigmoid()


def scored(image: torch.Tensor, sharp: torch.Tensor) -> torch.Tensor:
    """PSNR and LPIPS of an image in [-1, 1]."""
    squared = ((image.clamp(-1, 1) - sharp) / 2).square().mean()
    return torch.stack([-10 * squared.log10(), lpips(((image + 1) / 2).clamp(0, 1), (sharp + 1) / 2)[0]])


for root in options.sets:
    stored, scores = Predictions.of(root, "train", "blur"), []
    generator = torch.Generator().manual_seed(0)
    for pair in paired(list_pairs(root, "train", "blur"), root):
        files = stored.files(pair.name)
        sharp, blurry, x_init = (2 * images.read(file)[None] - 1 for file in (pair.sharp, pair.blurry, files["x_init"]))
        log_size = to_log_size(images.read(files["log_size"])[None, :1])
        s = scales * residual_size("learned", blurry, x_init, log_size)
        with torch.autocast("cpu", torch.bfloat16):
            r_0 = sample(
                Estimator(pipeline.denoiser), blurry, x_init, s, levels, partial(ddim_step, eta=0.0),
                lambda shape, generator=generator: torch.randn(shape, generator=generator),
            ).float()  # fmt: skip
        drawn = [add_residual(x_init, blend * r_0, s) for blend in options.blends]
        scores.append(torch.stack([scored(image, sharp) for image in (x_init, *drawn)]))
    before, *after = torch.stack(scores).mean(0).tolist()
    changes = [f"blend {b}: {p - before[0]:+.3f} dB, {100 * (d / before[1] - 1):+.1f} %" for b, (p, d) in
               zip(options.blends, after, strict=True)]  # fmt: skip
    print(f"{Path(root).name}: {before[0]:.2f} dB / {before[1]:.4f}; {'; '.join(changes)}")
