"""Means of a checkpoint's weights and of others trained from them, on pairs: python -m tools.benchmarks.shares BEFORE

For the first and for all stages of the cascade `first`, without and with the corrector: PSNR and LPIPS of each set.
"""

import argparse
from pathlib import Path

import torch

from deblur.data.files import images
from deblur.data.layouts import list_pairs, paired
from deblur.evaluation.perceptual import Lpips
from deblur.evaluation.pixels import psnr
from deblur.pipeline import load_pipeline

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("before")
parser.add_argument("--trained", nargs="+", default=[], help="checkpoints, of which the mean is taken")
parser.add_argument("--share", type=float, default=0.0, help="of that mean")
parser.add_argument("--sets", nargs="+", required=True)
parser.add_argument("--limit", type=int)
options = parser.parse_args()

network = load_pipeline(options.before, "cpu", precision="fp32").predictor.eval()
trained = [load_pipeline(one, "cpu", precision="fp32").predictor.state_dict() for one in options.trained]
mixed = network.state_dict()
for name, value in mixed.items() if trained else ():
    mean = torch.stack([weights[name].float() for weights in trained]).mean(0)
    mixed[name] = torch.lerp(value, mean, options.share)
network.load_state_dict(mixed)
lpips = Lpips()
ROWS = ("1 stage", "1 stage and corrector", "all stages", "all stages and corrector")
for root in options.sets:
    scores = []
    for pair in paired(list_pairs(root, "train", "blur"), root)[: options.limit]:
        sharp, blurry = images.read(pair.sharp)[None], 2 * images.read(pair.blurry)[None] - 1
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            stages = network.first.estimates(blurry)[0]
            made = []
            for estimate in (stages[-1].float().clamp(-1, 1), stages[0].float().clamp(-1, 1)):
                made += [estimate, network.second(blurry, estimate)[0].float()]
        restored = [((image + 1) / 2).clamp(0, 1) for image in made]
        scores.append([[psnr(image, sharp).item(), lpips(image, sharp).item()] for image in restored])
    for row, (decibels, distance) in zip(ROWS, torch.tensor(scores).mean(0).tolist(), strict=True):
        print(f"{Path(root).name}, {row}: {decibels:.2f} dB / {distance:.4f}")
