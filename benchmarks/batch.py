"""Measure Ray's overhead over plain sample.py, and the gain of a second worker: python -m benchmarks.batch

overhead: photographs through the identity network, so that only reading, writing and scheduling take time: sample.py in
this process and python -m batch with one worker, alternating, on a local folder; milliseconds per photograph. Start-up
is excluded: python -m batch is timed from its first rows, sample.py from its first line.
scaling: the same with pretrained/lite, by one worker on one core, one worker on two cores, and two workers on two
cores, which they share with Ray's own processes; photographs per second.
Results are merged into runs/benchmarks/batch.json, with the machine they were measured on.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import ray
import torch

import sample
from base.command_line import call
from batch import command
from batch.store import ManifestTable, Place, plain
from batch.worker import Job
from benchmarks.record import machine, stored_cases, write_json
from data import images
from models.index import pretrained
from models.parts import DDPMScheduler
from models.pipeline import DeblurPipeline
from models.schedules import linear
from models.untrained import IdentityPredictor
from restoration.options import Options

# Of each case: names, workers (0: sample.py) and cores.
RUNS = {
    "overhead": (("sample", 0, 2), ("one", 1, 2)),
    "scaling": (("one_core", 1, 1), ("one", 1, 2), ("two", 2, 2)),
}


def draw(folder: Path, count: int, side: int) -> None:
    """Write smooth random photographs with a little noise, as PNG."""
    generator = torch.Generator().manual_seed(0)
    for i in range(count):
        coarse = torch.rand(1, 3, 16, 16, generator=generator)
        soft = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic")[0]
        images.write(folder / f"{i:04}.png", soft + 0.01 * torch.randn(3, side, side, generator=generator))


@contextmanager
def cluster(cores: int) -> Iterator[None]:
    """A local Ray whose processes, and this one, run on so many cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:cores])
    try:
        ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.CRITICAL, log_to_driver=False)
        with command.connected(None):
            yield
    finally:
        ray.shutdown()
        os.sched_setaffinity(0, allowed)


def by_sample(source: Path, target: Path, checkpoint: str) -> float:
    """Seconds per photograph of sample.py, in this process."""
    flags = ["--checkpoint", checkpoint, "--device", "cpu"]
    start = time.perf_counter()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        assert sample.main([str(source), "--output", str(target), *flags]) == 0
    return (time.perf_counter() - start) / len(list(source.iterdir()))


def by_ray(source: Path, target: Path, checkpoint: str, workers: int) -> float:
    """Seconds per photograph of python -m batch with all workers, timed from its first rows."""
    options = Options(str(target), checkpoint, device="cpu")
    place, rows = command.images_of(str(source), options)
    job = Job(options, {}, place, Place(str(target)))
    manifest, times, counts = ManifestTable(job.target), [], []
    for made in command.results(rows, job, workers, {"num_cpus": 1}):
        manifest.add([row | plain(manifest_facts(job)) for row in made])
        times.append(time.perf_counter())
        counts.append(len(made))
    first = workers  # the time of each worker's first chunk may include waiting for the worker
    return (times[-1] - times[first - 1]) / sum(counts[first:])


def manifest_facts(job: Job) -> dict:
    """Facts of the same size as those of a run; their content does not matter here."""
    return {"checkpoint_sha256": "0" * 64, "seed": job.options.seed, "settings": {"blend": 0.0}}


def main(
    cases: str = "overhead,scaling",
    photographs: int = 128,
    side: int = 512,
    repeats: int = 3,
    quick: bool = False,
    output: str = "runs/benchmarks/batch.json",
) -> None:
    """Measure and write.

    Args:
        cases: overhead, scaling or both, separated by a comma.
        photographs: number of photographs per run.
        side: of the photographs in pixels.
        repeats: measurements of each; the median counts.
        quick: few and small photographs, to try the program.
        output: JSON file; its other cases are kept.
    """
    photographs, side, repeats = (24, 64, 1) if quick else (photographs, side, repeats)
    found = stored_cases(output)
    os.environ.update(command.QUIET)
    torch.set_num_threads(1)
    with TemporaryDirectory() as place:
        folder = Path(place)
        draw(folder / "photographs", photographs, side)
        scheduler = DDPMScheduler(num_train_timesteps=10, trained_betas=linear(10).tolist())
        presets = {"balanced": {"blend": 0.0}}
        DeblurPipeline(IdentityPredictor(), None, scheduler, presets=presets).save_pretrained(folder / "identity")
        for case in cases.split(","):
            times = {}
            for turn in range(repeats):
                for name, workers, cores in RUNS[case]:
                    checkpoint = str(folder / "identity") if case == "overhead" else pretrained()
                    given = folder / "photographs", folder / f"{case}{name}{turn}", checkpoint
                    with cluster(cores):
                        took = by_ray(*given, workers) if workers else by_sample(*given)
                    times.setdefault(name, []).append(took)
                    print(f"{case} {name}: {1e3 * took:.1f} ms per photograph", flush=True)
            middle = {name: median(all_of) for name, all_of in times.items()}
            if case == "overhead":
                own = {f"{name}_ms": round(1e3 * value, 2) for name, value in middle.items()}
                own |= {"overhead_ms": round(1e3 * (middle["one"] - middle["sample"]), 2)}
            else:
                own = {f"{name}_per_second": round(1 / value, 3) for name, value in middle.items()}
                own |= {"ratio": round(middle["one_core"] / middle["two"], 3)}
                own |= {"ratio_two_cores": round(middle["one"] / middle["two"], 3)}
            seconds = {name: [round(value, 5) for value in all_of] for name, all_of in times.items()}
            found["cases"][case] = (
                own | {"photographs": photographs, "side": side, "seconds": seconds} | machine("cpu", 1)
            )
            write_json(output, found)


if __name__ == "__main__":
    call(main, None, "-m benchmarks.batch", positional=0)
