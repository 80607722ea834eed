"""Processor time of synthetic blur per training crop: python -m benchmarks.blur [--before COMMIT]

The mixture of docs/data.md, kind by kind, each half in linear light and half in file values, six in ten with noise and
JPEG, in batches of 16 crops of 128 pixels. --before also measures the package `data` of another commit, alternating
with this one. Prints a table and writes runs/benchmarks/blur.json, or with --publish benchmarks/results/blur.json.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median

import torch

from base.command_line import call
from benchmarks.record import destination, machine, write_json

ROOT = Path(__file__).parents[1]
PATCH, BATCH = 128, 16
DIRTY = {"shot_noise": (0, 5e-5), "read_noise": (0, 1e-3), "jpeg": (88, 100)}
MIX = {  # share, class, arguments, whether some have a moving object
    "shake": (0.40, "CameraShake", {"length": (0, 28)}, True),
    "straight shake": (0.05, "CameraShake", {"length": (2, 28), "curvature": (0, 0.3)}, True),
    "defocus": (0.07, "Defocus", {"radius": (0, 2.5)}, True),
    "six degrees": (0.25, "SixDegrees", {"length": (0, 20), "frame": 1280}, False),
    "measured kernels": (0.13, "MeasuredKernels", {"largest": 101}, False),
    "nearly sharp": (0.10, "CameraShake", {"length": (0, 1.5)}, False),
}


def milliseconds(blur: Callable) -> float:
    """Median processor time of one thread per crop."""
    side = PATCH + 2 * blur.margin
    sharp = torch.rand(BATCH, 3, side, side, generator=torch.Generator().manual_seed(0))
    times = []
    for number in range(4):
        generators = [torch.Generator().manual_seed(BATCH * number + i) for i in range(BATCH)]
        start = time.process_time()
        blur(sharp, generators)
        times.append(1000 * (time.process_time() - start) / BATCH)
    return median(times[1:])  # the first call prepares FFTs


def measure(kernels: str | None) -> dict[str, float]:
    """Milliseconds per crop of each kind, with the first package `data` on Python's path."""
    from data import blur as package

    before = hasattr(package, "UniformShake")  # names used up to commit 3366663
    found = {}
    for name, (_, kind, arguments, moves) in MIX.items():
        if kind == "MeasuredKernels":
            if kernels is None:
                continue
            arguments = {"file": kernels} | arguments
        if before:
            kind = kind.replace("CameraShake", "UniformShake")
            arguments = arguments | ({"instants": 24} if kind == "SixDegrees" else {})
        part = getattr(package, kind)(**arguments)
        moving = package.ObjectMotion(0.2, (2, 24)) if moves else None
        costs = {
            (response, dirty): milliseconds(
                package.SyntheticBlur(
                    [part], moving=moving, response=response, saturation=(0, 0.2), **(DIRTY if dirty else {})
                )
            )
            for response, dirty in product(("srgb", "linear"), (False, True))
        }
        found[name] = sum(cost * (0.3 if dirty else 0.2) for (_, dirty), cost in costs.items())
    return found


def mean(kinds: dict[str, float]) -> float:
    """The mixture's cost from the costs of its kinds."""
    shares = {name: MIX[name][0] for name in kinds}
    return sum(cost * shares[name] for name, cost in kinds.items()) / sum(shares.values())


def run(tree: Path, kernels: str | None) -> dict[str, float]:
    """Run `measure` in its own process, with the packages of a tree."""
    code = f"import json; from benchmarks.blur import measure; print(json.dumps(measure({kernels!r})))"
    environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=environment, stdout=subprocess.PIPE, check=True
    )
    return json.loads(process.stdout)


def main(
    kernels: str | None = None,
    before: str | None = None,
    rounds: int = 3,
    output: str = "runs/benchmarks/blur.json",
    publish: bool = False,
) -> None:
    """Measure and write.

    Args:
        kernels: an .npz file of measured kernels; none: the mixture without them.
        before: a commit whose package `data` is measured too.
        rounds: measurements of each, alternating; the medians count.
        output: JSON file for the numbers.
        publish: write into benchmarks/results, under the name of the output.
    """
    output = destination(output, publish)
    kernels = str(Path(kernels).resolve()) if kernels else None
    with tempfile.TemporaryDirectory() as folder:
        trees = {"now": ROOT}
        if before is not None:
            archive = subprocess.run(["git", "archive", before, "data"], cwd=ROOT, capture_output=True, check=True)
            with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
                tar.extractall(folder, filter="data")
            trees = {"before": Path(folder), "now": ROOT}
        found = [{name: run(tree, kernels) for name, tree in trees.items()} for _ in range(rounds)]
    kinds = {name: {kind: median(one[name][kind] for one in found) for kind in found[0][name]} for name in trees}
    rows = {name: values | {"mixture": mean(values)} for name, values in kinds.items()}
    for kind in rows["now"]:
        print(f"{kind:<20}" + "".join(f"{name:>10} {values[kind]:7.2f} ms" for name, values in rows.items()))
    result = {"milliseconds_per_crop": {n: {k: round(v, 3) for k, v in one.items()} for n, one in rows.items()}}
    if before is not None:
        result["times_as_fast"] = {kind: round(rows["before"][kind] / rows["now"][kind], 2) for kind in rows["now"]}
        result["commit_before"] = before
    write_json(output, result | {"patch": PATCH, "batch": BATCH} | machine(threads=1))
    print(f"wrote {output}")


if __name__ == "__main__":
    call(main, None, "-m benchmarks.blur", positional=0)
