"""Cost of a grid relative to its settings one by one: python -m benchmarks.evaluation --checkpoint pretrained/lite

Both are run in this process, with everything loaded, on the same random images in the same batches: first each setting
alone (a predictor pass, then `DeblurPipeline.refine`), then as in evaluate.py, where the predictor runs once and
settings that differ only in num_samples, average, blend and keep_sharp share their samples. Metrics, disk and start-up
are excluded in both. Prints the ratio and writes runs/benchmarks/evaluation.json, or with --publish
benchmarks/results/evaluation.json.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median

import torch
from tqdm import tqdm

from base.command_line import call
from benchmarks.record import destination, machine, write_json
from benchmarks.timing import seconds_of
from evaluation.grid import read_grid
from evaluation.scoring import batch_size_for, counted, steps_of
from models.checkpoints import load_pipeline
from models.devices import choose_device
from models.pipeline import DeblurPipeline
from models.settings import SamplingSettings, sharing_samples

Progress = Callable[[Iterable], Iterable]


def one_by_one(
    pipeline: DeblurPipeline, blurry: torch.Tensor, settings: Sequence[SamplingSettings], progress: Progress
) -> None:
    """Restore a batch with each setting separately."""
    for setting in settings:
        pipeline.refine_shared(blurry, pipeline.predict(blurry), [setting], progress=progress)


def together(
    pipeline: DeblurPipeline, blurry: torch.Tensor, settings: Sequence[SamplingSettings], progress: Progress
) -> None:
    """Restore a batch with all settings, as evaluate.py does."""
    prediction = pipeline.predict(blurry)
    for group in sharing_samples(settings):
        pipeline.refine_shared(blurry, prediction, group, progress=progress)


def main(
    checkpoint: str,
    grid: str = "configs/grid/paper.yaml",
    size: int = 256,
    images: int = 1,
    rounds: int = 1,
    device: str = "auto",
    batch_size: int | None = None,
    output: str = "runs/benchmarks/evaluation.json",
    publish: bool = False,
) -> None:
    """Measure and write.

    Args:
        checkpoint: as for evaluate.py.
        grid: as for evaluate.py.
        size: side of the images.
        images: number of images.
        rounds: of each measurement, alternating; the medians count.
        device: device to run on.
        batch_size: images per batch of the networks; none: as evaluate.py chooses.
        output: JSON file for the numbers.
        publish: write into benchmarks/results, under the name of the output.
    """
    output = destination(output, publish)
    place = choose_device(device)
    pipeline = load_pipeline(checkpoint, place)
    blurry = torch.rand(images, 3, size, size, generator=torch.Generator().manual_seed(0)).to(place)
    settings = read_grid(grid)
    count = min(images, batch_size or batch_size_for(place.type, (size, size)))
    one_by_one(pipeline, blurry[:count], [SamplingSettings(steps=2)], iter)
    steps = [sum(steps_of([setting]) for setting in settings), sum(map(steps_of, sharing_samples(settings)))]
    times = {one_by_one: [], together: []}
    with tqdm(total=rounds * images * sum(steps), unit="step", dynamic_ncols=True) as bar:
        for _ in range(rounds):
            for way, found in times.items():
                calls = (partial(way, pipeline, own, settings, counted(bar, len(own))) for own in blurry.split(count))
                found.append(sum(seconds_of(timed, str(place)) for timed in calls))
    alone, shared = map(median, times.values())
    result = {
        "settings": len(settings),
        "steps_one_by_one": steps[0],
        "steps_together": steps[1],
        "seconds_one_by_one": round(alone, 2),
        "seconds_together": round(shared, 2),
        "ratio": round(shared / alone, 3),
    }
    print(f"{alone:.1f} s one by one, {shared:.1f} s together, ratio {shared / alone:.3f}")
    asked = {"grid": grid, "checkpoint": checkpoint, "size": size, "images": images, "batch_size": count}
    write_json(output, result | asked | {"rounds": rounds} | machine(str(place)))
    print(f"wrote {output}")


if __name__ == "__main__":
    call(main, None, "-m benchmarks.evaluation", positional=0)
