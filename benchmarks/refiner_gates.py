"""Check within seconds whether a refiner works: its errors in flat regions and at edges, and its samples' power.

    python -m benchmarks.refiner_gates pretrained/lite PAIRS

PAIRS is a dataset in any layout of docs/data.md. The centre of each image is used. Prints a table; with --output FILE
it is also written as JSON, with the command's arguments, the checkpoint's hash and the commit.
"""

import sys
from dataclasses import asdict
from functools import partial
from typing import Literal

import torch
from jsonargparse import auto_cli

from base.stop import run_command
from benchmarks.record import machine, write_json
from data.layouts import find_pairs
from data.pairs import centre_crop, read_pair
from models.checkpoints import checkpoint_hash, load_pipeline
from models.settings import SamplingSettings
from training.gates import SIGMAS, refiner_gates


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
    sys.exit(run_command("benchmarks.refiner_gates", command, "stopped"))
