"""Check within seconds whether a refiner works: its errors in flat regions and at edges, and its samples' power.

A denoiser whose estimates in flat regions are worse than zero adds noise there; one whose estimates at edges are too
small adds nothing there. The loss shows neither, since it averages over both.

    python -m tools.benchmarks.refiner_gates pretrained/lite PAIRS

PAIRS is a dataset in any layout of docs/data.md. The centre of each image is used. Prints a table; with --output FILE
it is also written as JSON, with the command's arguments, the checkpoint's hash and the commit.

A pixel is flat if the true residual's root mean square over 9 x 9 pixels is below 0.2 times its value over all images,
an edge above 0.6 times. Wanted are

    flat_error/SIGMA         at most 1: squared error of the estimated r_0 over that of an estimate of zero, at a sigma
    edge_error/SIGMA         below 1
    edge_slope/SIGMA         near 1: regression slope of the true residual on the estimate
    flat_power, edge_power   near 1: power of the sampled residual over that of the true one
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jsonargparse import auto_cli
from torch import Tensor

from deblur.checkpoints import checkpoint_hash, load_pipeline
from deblur.cli import run_command
from deblur.data.layouts import find_pairs
from deblur.data.pairs import centre_crop, read_pair
from deblur.image_processor import to_network, to_world
from deblur.models.diffusion import add_noise, add_residual, estimate_r_0, residual
from deblur.models.samplers import noise_generator
from deblur.models.schedules import level_of
from deblur.pipeline import Area, DeblurPipeline
from deblur.settings import SamplingSettings
from deblur.tools.benchmarks.record import machine, write_json

SIGMAS = (0.1, 0.3, 1.0, 3.0, 10.0)  # ratio of noise to signal in r_t, from nearly clean to nearly pure noise
FLAT, EDGE = 0.2, 0.6  # local size of the true residual, relative to its size over all images


@dataclass
class _Sums:
    """Sums over a region's pixels of true^2, (estimate - true)^2, estimate^2 and true * estimate."""

    true: float = 0.0
    error: float = 0.0
    estimate: float = 0.0
    product: float = 0.0

    def add(self, true: Tensor, estimate: Tensor, mask: Tensor) -> None:
        self.true += (true.square() * mask).sum().item()
        self.error += ((estimate - true).square() * mask).sum().item()
        self.estimate += (estimate.square() * mask).sum().item()
        self.product += (estimate * true * mask).sum().item()


@torch.no_grad()
def refiner_gates(
    pipeline: DeblurPipeline,
    images: Sequence[tuple[str, Tensor, Tensor]],
    sigmas: Sequence[float] = SIGMAS,
    settings: SamplingSettings | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Compute the gates of a refiner on some images, in image units, so that no pixel is weighted by the scale map.

    A pixel is flat if the true residual's root mean square over 9 x 9 pixels is below FLAT times that over all images,
    and at an edge if it is above EDGE times that.

    Args:
        pipeline: with a denoiser.
        images: (name, blurry, sharp), both (3, H, W) in [0, 1].
        sigmas: noise levels, sigma^2 = (1 - alpha_bar) / alpha_bar.
        settings: how to sample; None: the pipeline's default. With blend 0 nothing is sampled.
        seed: of the noise.

    Returns:
        For each sigma `flat_error/sigma` and `edge_error/sigma`, the squared error of the estimated r_0 over that of an
        estimate of zero (below 1 the estimate helps), and `edge_slope/sigma`, the regression slope of the true residual
        on the estimate (1 is unbiased, above 1 the estimate is too small). For one sample per image `flat_power` and
        `edge_power`, the power of the sampled residual over that of the true one.
    """
    crops = [(name, *_known(pipeline, blurry, sharp)) for name, blurry, sharp in images]
    overall = torch.stack([true.square().mean() for _, _, _, _, true in crops]).mean().sqrt()
    levels = {sigma: {"flat": _Sums(), "edge": _Sums()} for sigma in sigmas}
    sampled = {"flat": _Sums(), "edge": _Sums()}
    settings = settings or pipeline.preset()
    for name, blurry, x_init, s, true in crops:
        local = F.avg_pool2d(true.square().mean(1, keepdim=True), 9, 1, 4, count_include_pad=False).sqrt()
        masks = {"flat": (local < FLAT * overall).float(), "edge": (local > EDGE * overall).float()}
        r_0 = residual(true, 0.0, s)
        eps = torch.randn(r_0.shape, generator=noise_generator(seed, name, 0)).to(r_0)
        for sigma, regions in levels.items():
            alpha_bar = r_0.new_full((1,), level_of(sigma))
            r_t = add_noise(r_0, eps, alpha_bar)
            output = pipeline.denoiser(r_t, blurry, alpha_bar, x_init, s)
            r_0_estimate = estimate_r_0(output, r_t, alpha_bar, pipeline.denoiser.prediction_type)
            estimate = add_residual(0.0, r_0_estimate, s)
            for region, sums in regions.items():
                sums.add(true, estimate, masks[region])
        if settings.blend > 0:
            area = Area(scale=1.0)
            restored = pipeline.restore(to_world(blurry), settings, seed, [name], area=area).images[:1]
            for region, sums in sampled.items():
                sums.add(true, to_network(restored) - x_init.clamp(-1, 1), masks[region])
    gates = {}
    for sigma, regions in levels.items():
        for region, sums in regions.items():
            gates[f"{region}_error/{sigma:g}"] = sums.error / max(sums.true, 1e-12)
        gates[f"edge_slope/{sigma:g}"] = regions["edge"].product / max(regions["edge"].estimate, 1e-12)
    if settings.blend > 0:
        gates |= {f"{region}_power": sums.estimate / max(sums.true, 1e-12) for region, sums in sampled.items()}
    return gates


def _known(pipeline: DeblurPipeline, blurry: Tensor, sharp: Tensor) -> tuple[Tensor, ...]:
    """blurry, x_init, s(p), x - x_init less what s keeps, all (1, C, H, W) in [-1, 1]."""
    blurry, sharp = blurry[None].to(pipeline.device), sharp[None].to(pipeline.device)
    prediction = pipeline.predict(blurry)
    x_init, s = prediction.x_init, pipeline.scale(prediction, blurry)
    true = add_residual(0.0, residual(to_network(sharp), x_init, s), s)
    return to_network(blurry), x_init, s, true


def main(
    checkpoint: str,
    data: str,
    split: str = "test",
    images: int = 12,
    crop: int = 160,
    settings: SamplingSettings | None = None,
    sigmas: list[float] = list(SIGMAS),  # noqa: B006 (never changed)
    precision: Literal["auto", "fp32", "bf16"] = "fp32",
    seed: int = 0,
    output: str | None = None,
) -> None:
    """Print the gates of a checkpoint's refiner.

    Args:
        checkpoint: as sample.py's --checkpoint.
        data: blurry and sharp pairs.
        split: of the dataset.
        images: number of images, starting with the first.
        crop: side in pixels of the centre crops.
        settings: sampling settings for the power of samples; none: ddim in 8 steps with eta 1.
        sigmas: noise levels.
        precision: of the networks.
        seed: of the noise.
        output: JSON file to write to.
    """
    pipeline = load_pipeline(checkpoint, precision=precision)
    if pipeline.denoiser is None:
        raise ValueError(f"{checkpoint} has no denoiser, so there is nothing to judge")
    settings = settings or SamplingSettings(steps=8, eta=1.0)
    pairs = find_pairs(data, split)[:images]
    crops = [(pair.name, *(centre_crop(side, crop) for side in read_pair(pair))) for pair in pairs]
    gates = refiner_gates(pipeline, crops, sigmas, settings, seed)
    columns = ("flat_error", "edge_error", "edge_slope")
    print(f"{'sigma':>8}" + "".join(f"{column:>12}" for column in columns))
    for sigma in sigmas:
        print(f"{sigma:8g}" + "".join(f"{gates[f'{column}/{sigma:g}']:12.3f}" for column in columns))
    power = f"flat {gates['flat_power']:.3f}, edge {gates['edge_power']:.3f}"
    print(f"power of the sampled residual over the true one: {power}")
    if output is not None:
        facts = {"checkpoint": checkpoint_hash(checkpoint), "data": data, "images": len(crops), "crop": crop}
        facts |= {"settings": asdict(settings), "seed": seed, "gates": gates, "machine": machine()}
        write_json(output, facts)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    command = partial(auto_cli, main, as_positional=True, description=__doc__)
    sys.exit(run_command("tools.benchmarks.refiner_gates", command, "stopped"))
