"""PSNR, PSNR after the best shift, and LPIPS of a weighted mean of predictors, on the first pairs of five sets, bf16.

python -m tools.benchmarks.means_of_swift SETS CHECKPOINT:SHARE ...    # SETS/goprotest/blur, SETS/goprotest/sharp, ...
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from deblur.data.files import images
from deblur.evaluation.perceptual import Lpips
from deblur.pipeline import load_pipeline

PAIRS = {"goprotest": 8, "gopro": 18, "straight": 10, "shake_m": 10, "raw_m": 10}
BORDER = 8  # pixels that the shifted image is not compared in


def shifted(image: Tensor, dx: float, dy: float) -> Tensor:
    height, width = image.shape[-2:]
    phase = torch.fft.fftfreq(height)[:, None] * dy + torch.fft.rfftfreq(width) * dx
    return torch.fft.irfft2(torch.fft.rfft2(image) * torch.exp(-2j * torch.pi * phase), (height, width))


def inner_psnr(image: Tensor, sharp: Tensor) -> float:
    error = (image - sharp)[..., BORDER:-BORDER, BORDER:-BORDER]
    return -10 * error.square().mean().log10().item()


def aligned_psnr(image: Tensor, sharp: Tensor) -> float:
    """Climb to the best shift by steps of 1, 1/2 and 1/4 pixel."""
    best, x, y = inner_psnr(image, sharp), 0.0, 0.0
    for step in (1.0, 0.5, 0.25):
        better = True
        while better:
            better = False
            for dx, dy in ((step, 0), (-step, 0), (0, step), (0, -step)):
                psnr = inner_psnr(shifted(image, x + dx, y + dy), sharp)
                if psnr > best + 0.005:
                    best, x, y, better = psnr, x + dx, y + dy, True
    return best


@torch.no_grad()
def main(sets: str, *checkpoints: str) -> None:
    mean: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        folder, share = checkpoint.rsplit(":", 1)
        network = load_pipeline(folder, "cpu", precision="fp32").predictor
        for name, values in network.state_dict().items():
            mean[name] = mean.get(name, 0) + float(share) * values.double()
    network.load_state_dict({name: values.float() for name, values in mean.items()})
    lpips = Lpips("alex")
    for kind, count in PAIRS.items():
        rows = []
        for file in sorted((Path(sets) / kind / "blur").iterdir())[:count]:
            blurry = images.read(file)[None]
            sharp = images.read(next((Path(sets) / kind / "sharp").glob(f"{file.stem}.*")))[None]
            with torch.autocast("cpu", torch.bfloat16):
                estimate = network.eval()(2 * blurry - 1)[0]
            restored = ((estimate.float() + 1) / 2).clamp(0, 1)
            psnr = -10 * (restored - sharp).square().mean().log10().item()
            rows.append([psnr, aligned_psnr(restored, sharp), lpips(restored, sharp).item()])
        psnr, aligned, distance = torch.tensor(rows).mean(0).tolist()
        print(f"{kind}: {psnr:.2f}; {aligned:.2f} dB / {distance:.4f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
