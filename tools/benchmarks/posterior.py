"""Check a sampler against what exact samples from the posterior would do, and draw its reliability.

    python -m tools.benchmarks.posterior pretrained/text PAIRS --settings '{steps: 10, eta: 1.0}'

If the prediction were the posterior's mean and the samples were drawn from the posterior, the squared error of a
sample would be twice the prediction's, and that of the mean of n samples 1 + 1/n times it. The table has both. For the
reliability plot the pixels are sorted by the standard deviation of the samples: in each bin that should be the root
mean squared error of the samples' mean, but for a factor sqrt(1 + 1/n).

PAIRS is a dataset in any layout of docs/data.md. The centre of each image is used.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jsonargparse import auto_cli
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from deblur.checkpoints import checkpoint_hash, load_pipeline
from deblur.cli import run_command
from deblur.data.layouts import find_pairs
from deblur.data.pairs import centre_crop, read_pair
from deblur.settings import SamplingSettings
from deblur.storage import replacing
from deblur.tools.benchmarks.record import machine, markdown_table, write_json

BINS = 12


def ratios(predictions: Tensor, samples: Tensor, sharp: Tensor) -> dict[int, float]:
    """{n: squared error of the mean of n samples over the prediction's}, n a power of 2.

    Args:
        predictions, sharp: (N, 3, H, W).
        samples: (N, K, 3, H, W).
    """
    base, count, measured = (predictions - sharp).square().mean(), 1, {}
    while count <= samples.shape[1]:
        # All means of n of the K samples that share none: less chance in the number than in one mean alone.
        means = samples[:, : samples.shape[1] // count * count].unflatten(1, (-1, count)).mean(2)
        measured[count] = ((means - sharp[:, None]).square().mean() / base).item()
        count *= 2
    return measured


def reliability(samples: Tensor, sharp: Tensor) -> list[dict[str, float]]:
    """The samples' deviation and the error of their mean, both in 8-bit levels, in bins of equal numbers of pixels."""
    deviation = samples.std(1).flatten()
    error = (samples.mean(1) - sharp).flatten()
    exact = (1 + 1 / samples.shape[1]) ** 0.5
    return [
        {
            "deviation": 255 * deviation[part].square().mean().sqrt().item(),
            "error": 255 * error[part].square().mean().sqrt().item() / exact,
        }
        for part in deviation.argsort().tensor_split(BINS)
    ]


def draw(path: Path, bins: list[dict[str, float]]) -> None:
    """Plot the error against the deviation, and the diagonal of an exact sampler."""
    figure = Figure((5, 5), layout="constrained")
    axes = figure.subplots()
    deviation, error = ([one[name] for one in bins] for name in ("deviation", "error"))
    top = max(deviation + error)
    axes.plot([0, top], [0, top], "--", color="grey", label="exact sampler")
    axes.plot(deviation, error, "o-", label="measured")
    axes.set(xlabel="standard deviation of the samples (8-bit levels)", ylabel="error of their mean (8-bit levels)")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        figure.savefig(part, dpi=120)


def main(
    checkpoint: str,
    data: str,
    settings: SamplingSettings | None = None,
    samples: int = 16,
    size: int = 256,
    seed: int = 0,
    split: str = "test",
    output: str = "runs/benchmarks/posterior.json",
) -> None:
    """Print the table; write it and the plot, which gets the suffix .png.

    Args:
        checkpoint: as sample.py's --checkpoint.
        data: blurry and sharp pairs.
        settings: how a sample is drawn; none: 10 steps of ddim with eta 1.
        samples: of each image.
        size: side of the centre crop in pixels.
        seed: of the samples' noise.
        split: of the dataset.
        output: JSON file to write to.
    """
    settings = settings or SamplingSettings(steps=10, eta=1.0)
    drawn: dict[str, Any] = vars(settings) | {"num_samples": samples, "average": False, "blend": 1.0}
    pipeline, pairs = load_pipeline(checkpoint), find_pairs(data, split)
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    for pair in tqdm(pairs, unit="image", dynamic_ncols=True):
        blurry, sharp = (centre_crop(image, size)[None] for image in read_pair(pair))
        restored = pipeline(blurry, SamplingSettings(**drawn), seed, [pair.name], "pt")
        kept.append((restored.predictions, restored.images[None], sharp))
    predictions, images, sharp = (torch.cat(column) for column in zip(*kept, strict=True))
    measured, bins = ratios(predictions, images, sharp), reliability(images, sharp)
    rows = [[str(n), f"{ratio:.3f}", f"{1 + 1 / n:.3f}"] for n, ratio in measured.items()]
    print("\n".join(markdown_table(["samples in the mean", "squared error over the prediction's", "exact"], *rows)))
    facts = {"checkpoint": checkpoint_hash(checkpoint), "data": data, "images": len(pairs), "settings": drawn}
    write_json(output, facts | {"seed": seed, "ratios": measured, "reliability": bins, "machine": machine()})
    draw(Path(output).with_suffix(".png"), bins)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    command = partial(auto_cli, main, as_positional=True, description=__doc__)
    sys.exit(run_command("tools.benchmarks.posterior", command, "stopped"))
