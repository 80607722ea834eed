"""Training crops per second by input format: python -m benchmarks.data [--source FOLDER] [--seconds 4]

Both on the same 1280x720 PNG pairs in one run: (a) one decode per crop, (b) several crops per decode. Prints
a table and writes runs/benchmarks/data.json, or with --publish benchmarks/results/data.json. Blur is measured
separately, in benchmarks/blur.py.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from torch.utils.data import DataLoader

from base.command_line import call
from benchmarks.record import destination, machine, write_json
from data import images
from data.blur import SyntheticBlur
from data.camera import CameraShake
from data.layouts import find_pairs
from data.pairs import TrainPairs, flatten, generator_of

PATCH = 128


def make_pairs(root: Path, count: int) -> None:
    """Write 1280x720 pairs that compress about as well as photographs: smooth structure with some noise."""
    blur = SyntheticBlur([CameraShake()], shot_noise=(1e-4, 1e-4))
    size = 720 + 2 * blur.margin, 1280 + 2 * blur.margin
    for number in range(count):
        generator = generator_of("benchmark", number)
        wide = torch.zeros(1, 3, *size)
        for cells in (4, 16, 64, 256):
            noise = torch.rand(1, 3, cells, cells, generator=generator)
            wide += torch.nn.functional.interpolate(noise, size, mode="bilinear") / cells**0.5
        wide = (wide / wide.max() + 0.01 * torch.randn(1, 3, *size, generator=generator)).clamp(0, 1)
        (blurry,), (sharp,) = blur(wide, [generator])
        images.write(root / "sharp" / f"{number:03}.png", sharp)
        images.write(root / "blur" / f"{number:03}.png", blurry)


def rate(batches: Iterator, seconds: float) -> float:
    """Crops per second from an endless iterator, after the batches that its workers had prefetched."""
    for _ in range(8):
        next(batches)
    crops, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        crops += len(next(batches)["name"])
    return crops / (time.perf_counter() - start)


def loader(dataset: TrainPairs, decodes: int, workers: int) -> Iterator[dict]:
    options = {"num_workers": workers, "collate_fn": flatten, "sampler": range(10**6)}
    return iter(DataLoader(dataset, decodes, **options))


def main(
    source: str | None = None,
    output: str = "runs/benchmarks/data.json",
    publish: bool = False,
    seconds: float = 4.0,
    workers: int = 2,
    crops_per_image: int = 16,
) -> None:
    """Measure and write.

    Args:
        source: a dataset of 1280x720 pairs; none: eight are made.
        output: JSON file for the numbers.
        publish: write into benchmarks/results, under the name of the output.
        seconds: length of each of three measurements.
        workers: processes that read.
        crops_per_image: crops per decoded pair in (b).
    """
    output = destination(output, publish)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if source is None:
            make_pairs(Path(folder) / "pairs", 8)
        pairs = find_pairs(source or Path(folder) / "pairs", "test" if source else "train")
        several = {"crops_per_image": crops_per_image}
        ways = {
            "a: one crop a decode": lambda: loader(TrainPairs(pairs, PATCH), 2, workers),
            f"b: {crops_per_image} crops a decode": lambda: loader(TrainPairs(pairs, PATCH, **several), 2, workers),
        }
        # Alternating, so that other load on the machine affects all alike; the medians count.
        rounds = [{name: rate(way(), seconds) for name, way in ways.items()} for _ in range(3)]
    rows = {name: median(one[name] for one in rounds) for name in ways}
    first = next(iter(rows.values()))
    for name, value in rows.items():
        print(f"{name:<45} {value:9.1f} crops/s {value / first:7.1f} x")
    result = {
        "crops_per_second": {name: round(value, 1) for name, value in rows.items()},
        "ratio_to_a": {name: round(value / first, 2) for name, value in rows.items()},
        "workers": workers,
        "patch": PATCH,
        "frames": "1280x720 PNG pairs" + (f" of {Path(source).name}" if source else ", made"),
    }
    write_json(output, result | machine())
    print(f"wrote {output}")


if __name__ == "__main__":
    call(main, None, "-m benchmarks.data", positional=0)
