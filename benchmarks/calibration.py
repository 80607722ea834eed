"""Compare the error that a predictor expects of its own estimate with the error that it makes.

    python -m benchmarks.calibration pretrained/lite PAIRS

PAIRS is a dataset in any layout of docs/data.md. All pixels are sorted by the expected error and split into fifths of
equal size. For each fifth the table has the mean expected and the mean actual |x - x_init|, in 8-bit levels, and their
ratio, which is 1 for a calibrated map.
"""

import sys
from collections.abc import Iterable
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


def fifths(pipeline: DeblurPipeline, pairs: Iterable[tuple[Tensor, Tensor]]) -> list[dict[str, float]]:
    """The rows of the table, lowest expected error first; pairs are (blurry, sharp), (3, H, W) in [0, 1].

    Raises:
        ValueError: the predictor has no size head.
    """
    expected, actual = [], []
    for blurry, sharp in pairs:
        found = pipeline(blurry[None], SamplingSettings(blend=0.0), output_type="pt")
        if found.expected_error is None:
            raise ValueError("the checkpoint's predictor has no size head, so it expects no error")
        expected.append(found.expected_error.cpu().flatten())
        actual.append((found.predictions.cpu() - sharp).abs().mean(1).flatten())
    expected, actual = (255 * torch.cat(own) for own in (expected, actual))
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
    rows = fifths(load_pipeline(checkpoint, precision=precision), map(read_pair, tqdm(pairs, "images")))
    print(f"{'fifth':>8}{'expected':>12}{'actual':>12}{'ratio':>12}")
    for number, row in enumerate(rows, start=1):
        print(f"{number:8}{row['expected']:12.2f}{row['actual']:12.2f}{row['ratio']:12.2f}")
    if output is not None:
        facts = {"checkpoint": checkpoint_hash(checkpoint), "data": data, "images": len(pairs)}
        write_json(output, facts | {"precision": precision, "fifths": rows, "machine": machine()})


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    command = partial(auto_cli, main, as_positional=True, description=__doc__)
    sys.exit(run_command("benchmarks.calibration", command, "stopped"))
