"""Compare the error that a predictor expects of its own estimate with the error that it makes.

    python -m benchmarks.calibration pretrained/lite PAIRS

PAIRS is a dataset in any layout of docs/data.md. All pixels are sorted by the expected error and split into fifths of
equal size. For each fifth the table has the mean expected and the mean actual |x - x_init|, in 8-bit levels, and their
ratio, which is 1 for a calibrated map. Below it is the range of the images' mean expected errors.
"""

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal

import torch
from jsonargparse import auto_cli
from torch import Tensor
from tqdm import tqdm

from base.stop import run_command
from benchmarks.record import machine, write_json
from data.layouts import find_pairs
from data.pairs import read_pair
from models.checkpoints import checkpoint_hash, load_pipeline
from models.pipeline import DeblurPipeline
from models.settings import SamplingSettings


def errors(pipeline: DeblurPipeline, pairs: Iterable[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The expected and the actual error of each pixel, in 8-bit levels, for each pair (blurry, sharp), (3, H, W).

    Raises:
        ValueError: the predictor has no size head.
    """
    found = []
    for blurry, sharp in pairs:
        output = pipeline(blurry[None], SamplingSettings(blend=0.0), output_type="pt")
        if output.expected_error is None:
            raise ValueError("the checkpoint's predictor has no size head, so it expects no error")
        actual = (output.predictions.cpu() - sharp).abs().mean(1)
        found.append((255 * output.expected_error.cpu().flatten(), 255 * actual.flatten()))
    return found


def fifths(images: Sequence[tuple[Tensor, Tensor]]) -> list[dict[str, float]]:
    """The rows of the table, lowest expected error first, from `errors`."""
    expected, actual = (torch.cat(own) for own in zip(*images, strict=True))
    parts = expected.argsort().tensor_split(5)
    means = [(expected[part].mean().item(), actual[part].mean().item()) for part in parts]
    return [{"expected": one, "actual": other, "ratio": other / one} for one, other in means]


def main(
    checkpoint: str,
    data: str,
    split: str = "test",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    output: str | None = None,
) -> None:
    """Print the table.

    Args:
        checkpoint: as sample.py's --checkpoint; its predictor has a size head.
        data: blurry and sharp pairs.
        split: of the dataset.
        precision: of the networks.
        output: JSON file to write to.
    """
    pairs = find_pairs(data, split)
    images = errors(load_pipeline(checkpoint, precision=precision), map(read_pair, tqdm(pairs, "images")))
    rows, means = fifths(images), [expected.mean().item() for expected, _ in images]
    print(f"{'fifth':>8}{'expected':>12}{'actual':>12}{'ratio':>12}")
    for number, row in enumerate(rows, start=1):
        print(f"{number:8}{row['expected']:12.2f}{row['actual']:12.2f}{row['ratio']:12.2f}")
    print(f"mean expected error of an image (for keep_sharp): {min(means):.1f} to {max(means):.1f}")
    if output is not None:
        facts = {"checkpoint": checkpoint_hash(checkpoint), "data": data, "images": len(pairs)}
        write_json(output, facts | {"precision": precision, "fifths": rows, "means": means, "machine": machine()})


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    command = partial(auto_cli, main, as_positional=True, description=__doc__)
    sys.exit(run_command("benchmarks.calibration", command, "stopped"))
