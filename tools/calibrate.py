"""Compare the error that a predictor expects with the error that it makes, and calibrate it.

    python -m tools.calibrate pretrained/lite PAIRS
    python -m tools.calibrate CHECKPOINT VALIDATION_PAIRS --save true

PAIRS is a dataset in any layout of docs/data.md. All pixels are sorted by the expected error and split into fifths of
equal size. For each fifth the table has the mean expected and the mean actual |x - x_init|, in 8-bit levels, their
ratio, which is 1 for a calibrated map, and the share of pixels whose error is below the bound, which should be 0.9.
With --save a monotone curve is fitted to these pairs, which must not be those that it is tested on, and stored in the
checkpoint; the table is then that of the curve.
"""

import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from deblur.calibration import ErrorCurve
from deblur.checkpoints import update_index
from deblur.cli import call, run_command
from deblur.data.layouts import find_pairs
from deblur.data.pairs import read_pair
from deblur.hub import locate
from deblur.pipeline import DeblurPipeline, load_pipeline

TABLE_ROW = "{:>8}{:>12}{:>12}{:>12}{:>12}"


class Fifth(NamedTuple):
    """A row of the table."""

    expected: float
    actual: float
    ratio: float
    covered: float | None


def errors(pipeline: DeblurPipeline, pairs: Iterable[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The estimated and the actual error of an image's pixels (P,) in 8-bit levels, for each of the images.

    The pairs are (blurry, sharp), (3, H, W) in [0, 1].

    Raises:
        ValueError: the predictor has no size head.
    """
    per_image = []
    for blurry, sharp in pairs:
        prediction = replace(pipeline.predict(blurry[None].to(pipeline.device)), error_curve=None)
        if prediction.expected_error is None:
            raise ValueError("the checkpoint's predictor has no size head, so it expects no error")
        actual = (prediction.images.cpu() - sharp).abs().mean(1)
        per_image.append((255 * prediction.expected_error.cpu().flatten(), 255 * actual.flatten()))
    return per_image


def fifths(estimate: Tensor, actual: Tensor, curve: ErrorCurve | None) -> list[Fifth]:
    """The rows of the table of pixels (P,), lowest expected error first."""
    expected = estimate if curve is None else 255 * curve.expected(estimate / 255)
    rows = []
    for part in expected.argsort().tensor_split(5):
        means = expected[part].mean().item(), actual[part].mean().item()
        below = None if curve is None else actual[part] <= 255 * curve.bounding(expected[part] / 255)
        rows.append(Fifth(*means, means[1] / means[0], None if below is None else below.float().mean().item()))
    return rows


def calibrate(
    checkpoint: str,
    data: str,
    split: str = "test",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    save: bool = False,
) -> None:
    """Print the table.

    Args:
        checkpoint: as sample.py's --checkpoint; its predictor has a size head.
        data: blurry and sharp pairs.
        split: of the dataset.
        precision: of the networks.
        save: fit the curve to these pairs and store it in the checkpoint, an exported folder.

    Raises:
        ValueError: the predictor has no size head, or the checkpoint is no folder to store the curve in.
    """
    folder = Path(locate(checkpoint))
    if save and not folder.is_dir():
        raise ValueError(f"{checkpoint} is no exported folder, in which a curve can be stored")
    pairs, pipeline = find_pairs(data, split), load_pipeline(checkpoint, precision=precision)
    images = errors(pipeline, map(read_pair, tqdm(pairs, unit="image", dynamic_ncols=True)))
    estimate, actual = map(torch.cat, zip(*images, strict=True))
    curve = pipeline.error_curve
    if save:
        curve = ErrorCurve.fit(estimate, actual)
        update_index(folder, error_curve=asdict(curve))
    print(TABLE_ROW.format("fifth", "expected", "actual", "ratio", "covered"))
    for number, row in enumerate(fifths(estimate, actual, curve), start=1):
        covered = "" if row.covered is None else f"{row.covered:.3f}"
        print(TABLE_ROW.format(number, *(f"{value:.2f}" for value in (row.expected, row.actual, row.ratio)), covered))
    if save:
        print(f"the curve of {len(curve.mean)} points is stored in {folder}")


def main(args: list[str] | None = None) -> None:
    """The command line."""
    call(calibrate, args, "-m tools.calibrate", positional=2)


if __name__ == "__main__":
    sys.exit(run_command("tools.calibrate", main, "stopped"))
