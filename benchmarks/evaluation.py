"""What a grid costs against its settings one by one: python -m benchmarks.evaluation --checkpoint runs/demo/checkpoint

Both in this process, with everything loaded, on the same random pictures: first each setting by itself (one predictor
pass, then `DeblurPipeline.refine`), then the grid as evaluate.py runs it. Metrics, disk and start-up are left out on
both sides. Prints the ratio and writes benchmarks/results/evaluation.json.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch
from jsonargparse import auto_cli
from tqdm import tqdm

from benchmarks.record import machine, write_json
from evaluate import slots_for
from evaluation.grid import read_grid
from models.checkpoints import load_pipeline
from models.devices import choose_device
from models.pipeline import DeblurPipeline, cost_of
from models.settings import SamplingSettings


def one_by_one(
    pipeline: DeblurPipeline,
    pictures: torch.Tensor,
    progress: Callable[[int], object],
    settings: Sequence[SamplingSettings],
) -> None:
    for setting in settings:
        for number, picture in enumerate(pictures):
            blurry = picture[None]
            pipeline.refine(blurry, pipeline.predict(blurry), setting, 0, [str(number)])
            progress(steps_alone(setting))


def steps_alone(setting: SamplingSettings) -> int:
    return setting.steps * setting.num_samples if setting.blend > 0 else 0


def together(
    pipeline: DeblurPipeline,
    pictures: torch.Tensor,
    progress: Callable[[int], object],
    settings: Sequence[SamplingSettings],
    slots: int,
) -> None:
    cases = (
        (str(number), picture, pipeline.predict(picture[None])[0], settings) for number, picture in enumerate(pictures)
    )
    for _ in pipeline.refine_all(cases, 0, slots, progress):
        pass


def seconds(function: Callable[..., None], **arguments) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    function(**arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main(
    checkpoint: str,
    grid: str = "configs/grid/paper.yaml",
    size: int = 256,
    images: int = 1,
    rounds: int = 1,
    device: str = "auto",
    batch_size: int | None = None,
    output: str = "benchmarks/results/evaluation.json",
) -> None:
    """Measure and write.

    Args:
        checkpoint: what evaluate.py takes.
        grid: its settings; measured whole, and without those that share samples with others.
        size: side of the pictures.
        images: number of pictures.
        rounds: of each measurement, in turns; the medians count.
        device: where.
        batch_size: pictures that the denoiser sees at a time; none: as evaluate.py chooses.
        output: where the numbers go.
    """
    place = choose_device(device)
    pipeline = load_pipeline(checkpoint, place)
    pictures = torch.rand(images, 3, size, size, generator=torch.Generator().manual_seed(0)).to(place)
    settings = read_grid(grid, SamplingSettings)
    slots = batch_size or slots_for(place.type, (size, size))
    plain = [setting for setting in settings if setting.num_samples == 1 and setting.blend == 1]
    warm_up = [SamplingSettings(steps=2)]
    one_by_one(pipeline, pictures, int, warm_up)
    together(pipeline, pictures, int, warm_up * slots, slots)
    rows = {}
    for name, chosen in {"whole grid": settings, "without shared samples": plain}.items():
        steps = sum(map(steps_alone, chosen)), cost_of(chosen)[1]
        with tqdm(total=rounds * images * sum(steps), desc=name, unit="step", dynamic_ncols=True) as bar:
            work = partial(seconds, pipeline=pipeline, pictures=pictures, progress=bar.update, settings=chosen)
            times = [
                (work(one_by_one), work(together, slots=min(slots, images * cost_of(chosen)[0]))) for _ in range(rounds)
            ]
        alone, shared = (median(column) for column in zip(*times, strict=True))
        rows[name] = {
            "settings": len(chosen),
            "steps_one_by_one": steps[0],
            "steps_together": steps[1],
            "seconds_one_by_one": round(alone, 2),
            "seconds_together": round(shared, 2),
            "ratio": round(shared / alone, 3),
        }
        print(f"{name}: {alone:.1f} s one by one, {shared:.1f} s together, ratio {shared / alone:.3f}")
    result = rows | {
        "grid": grid,
        "checkpoint": checkpoint,
        "size": size,
        "images": images,
        "slots": slots,
        "rounds": rounds,
    }
    write_json(output, result | machine(str(place)))
    print(f"wrote {output}")


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
