"""Restore and score images with every setting of a grid; existing scores are not computed again.

This module does not depend on how images are restored. The pipeline needs `predict` and `refine_shared` as in
`models.pipeline.DeblurPipeline`, and a setting is a dataclass with `sampler`, `steps`, `num_samples` and `blend`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from base.progress import counted
from evaluation.controls import LABELS, RECIPES, control_images
from evaluation.grid import key, label_settings
from evaluation.journal import Journal, Score
from evaluation.metrics import Metric, MetricError

BLURRY, PREDICTOR, SHARP = "blurry", "predictor", "sharp"  # labels of the rows that every grid has
CONTROLS = [label for labels in LABELS.values() for label in labels]  # further rows if there is a predictor
SECONDS_RECIPE = (
    "wall-clock seconds per image, the predictor's pass included, metrics and disk excluded; each image of a batch "
    "counts equally, and samples that several settings share count for each of them; mean over the images; 0 for rows "
    "that restore nothing"
)

# Pixels per batch of the networks: a GPU must be filled, a CPU is fastest while the data fit into its caches.
BATCH_PIXELS = {"cpu": 2**16, "gpu": 2**22}
LARGEST_BATCH = 32


@dataclass(frozen=True)
class ImagePair:
    """One image to score. `read` returns blurry and sharp, (3, H, W) in [0, 1]; `size` is (H, W)."""

    name: str
    size: tuple[int, int]
    read: Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Plan:
    """What to score, and how.

    Args:
        images: in the order of the results.
        groups: the settings of the grid, grouped by shared samples.
        settings: the same settings in the order of the results.
        pipeline: see the module's docstring; None if only rows without a pipeline are scored.
        metrics: all requested metrics.
        journal: where scores are stored and read.
        seed: of the noise of samples and controls, and of the bootstrap.
        baselines: label -> function of an image's name that returns the image (3, H, W) restored by another program.
        batch_size: images per batch of the networks; None: as many as suit the device and the images' size.
        device: where images are restored and scored.
        processes: with `global_rank`, `world_size`, `is_global_zero` and `barrier`, such as lightning's Fabric.
        facts: what else the numbers depend on, for results.json.
    """

    images: Sequence[ImagePair]
    groups: Sequence[Sequence[Any]]
    settings: Sequence[Any]
    pipeline: Any
    metrics: Mapping[str, Metric]
    journal: Journal
    seed: int
    baselines: Mapping[str, Callable[[str], Tensor]]
    batch_size: int | None
    device: torch.device
    processes: Any
    facts: Mapping[str, Any]

    @property
    def computed(self) -> dict[str, Metric]:
        """The metrics that can be computed."""
        return {name: metric for name, metric in self.metrics.items() if metric.reason is None}

    @property
    def by_label(self) -> dict[str, Any]:
        """The settings by their labels, in the order of the results."""
        return dict(zip(label_settings(self.settings), self.settings, strict=True))

    @property
    def fixed_rows(self) -> list[str]:
        """The rows that are not settings, in the order of the results."""
        of_pipeline = [PREDICTOR, SHARP, *CONTROLS] if self.pipeline else [SHARP]
        return [BLURRY, *of_pipeline, *self.baselines]


def recipes(metrics: Mapping[str, Metric]) -> dict[str, str]:
    """The recipes of the metrics and of the controls."""
    return {name: metric.recipe or "missing" for name, metric in metrics.items()} | RECIPES


def depends_on(
    facts: Mapping[str, Any],
    metrics: Mapping[str, Metric],
    batch_size: int | None,
    images: Mapping[str, str],
    outputs: Mapping[str, str],
) -> dict[str, Any]:
    """What a score depends on besides row and image, for the journal; `images` and `outputs` are hashes by name."""
    return {
        "checkpoint": facts["checkpoint"] and facts["checkpoint"]["sha256"],
        "seed": facts["seed"],
        "precision": facts["precision"],
        "device": facts["device"].partition(":")[0],
        "batch_size": batch_size or "auto",
        "recipe": recipes(metrics),
        "image": images,
        "outputs": outputs,
    }


def score_images(plan: Plan, images: Sequence[ImagePair], settings: Sequence[Any], text: str) -> None:
    """Compute the scores missing in the journal: of blurry, predictor, sharp, controls, baselines and `settings`.

    Images of one size are restored in batches. The batches do not depend on what was done before or on the number of
    processes, so neither affects a score. The predictor runs once per batch, and settings that share their samples run
    once. If a setting returns several samples of an image, their mean score is used. `images` and `settings` are the
    part of the plan to score now, and `text` is shown beside the progress bar.
    """
    work = _work(plan, images, settings)
    steps = sum(len(batch) * steps_of(group) for batch, _, groups in work for group in groups)
    total, unit = (steps, "step") if steps else (sum(len(batch) for batch, _, _ in work), "image")
    hidden = plan.processes.global_rank > 0
    with tqdm(total=total, desc=text, unit=unit, dynamic_ncols=True, disable=hidden) as bar:
        for batch, lacking, groups in work:
            names = [image.name for image in batch]
            sides = zip(*(image.read() for image in batch), strict=True)
            blurry, sharp = (torch.stack(side).to(plan.device) for side in sides)
            add = partial(_add_scores, plan, names, sharp, lacking)
            add(BLURRY, blurry)
            add(SHARP, sharp)
            for label, read in plan.baselines.items():
                add(label, torch.stack([read(name) for name in names]).to(plan.device))
            if plan.pipeline is not None:
                prediction, seconds = _timed(plan.device, plan.pipeline.predict, blurry)
                x_init, before = prediction[:, :3], seconds / len(batch)
                add(PREDICTOR, x_init, before)
                for label, controls in _controls(plan, x_init, blurry, names):
                    add(label, controls, before)
            for group in groups:
                arguments = blurry, prediction, group, plan.seed, names, counted(bar, len(batch))
                outputs, seconds = _timed(plan.device, plan.pipeline.refine_shared, *arguments)
                drawn = max(setting.num_samples for setting in group) * len(batch)
                for setting, output in zip(group, outputs, strict=True):
                    add(key(setting), output.images, before + seconds * setting.num_samples / drawn)
            if not steps:
                bar.update(len(batch))


def count_scores(plan: Plan) -> tuple[int, int]:
    """(scores in the journal, scores in total), where a score is one image in one row."""
    done, rows = plan.journal.scores(), [*plan.fixed_rows, *map(key, plan.settings)]
    return sum((row, image.name) in done for row in rows for image in plan.images), len(rows) * len(plan.images)


def batch_size_for(device: str, size: tuple[int, int]) -> int:
    """Images of size (H, W) per batch of the networks on this kind of device."""
    pixels = BATCH_PIXELS["cpu" if device == "cpu" else "gpu"]
    return max(1, min(LARGEST_BATCH, pixels // (size[0] * size[1])))


def steps_of(group: Sequence[Any]) -> int:
    """Denoising steps per image for settings that share their samples."""
    return max((setting.steps * setting.num_samples if setting.blend > 0 else 0 for setting in group), default=0)


def _work(
    plan: Plan, images: Sequence[ImagePair], settings: Sequence[Any]
) -> list[tuple[list[ImagePair], set[tuple[str, str]], list[list[Any]]]]:
    """This process's batches: their images, the (row, image) pairs without scores, and the settings to restore with."""
    done, rows, work = plan.journal.scores(), [*plan.fixed_rows, *map(key, settings)], []
    batches = _batches(plan, images)
    for batch in batches[plan.processes.global_rank :: plan.processes.world_size]:
        lacking = {(row, image.name) for image in batch for row in rows if (row, image.name) not in done}
        wanted = {row for row, _ in lacking}
        groups = [[setting for setting in group if key(setting) in wanted] for group in plan.groups]
        if lacking:
            work.append((batch, lacking, [group for group in groups if group]))
    return work


def _batches(plan: Plan, images: Sequence[ImagePair]) -> list[list[ImagePair]]:
    found = []
    for size, group in groupby(sorted(images, key=lambda image: image.size), key=lambda image: image.size):
        own, count = list(group), plan.batch_size or batch_size_for(plan.device.type, size)
        found += [own[at : at + count] for at in range(0, len(own), count)]
    return found


def _controls(plan: Plan, x_init: Tensor, blurry: Tensor, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield (label, images (N, 3, H, W)) for each control."""
    images = zip(x_init.clamp(0, 1), blurry, names, strict=True)
    controls = [control_images(image, own, plan.seed, name) for image, own, name in images]
    for of_images in zip(*controls, strict=True):
        labels, images = zip(*of_images, strict=True)
        yield labels[0], torch.stack(images)


def _add_scores(
    plan: Plan,
    names: Sequence[str],
    sharp: Tensor,
    lacking: set[tuple[str, str]],
    row: str,
    restored: Tensor,
    seconds: float = 0.0,
) -> None:
    """Score (N * K, 3, H, W), with the samples of one image in a row, and add missing scores to the journal."""
    samples = restored.split(len(restored) // len(names))
    for name, own, truth in zip(names, samples, sharp, strict=True):
        if (row, name) in lacking:
            plan.journal.add(_score(plan.computed, row, name, own, truth, seconds))


def _timed(device: torch.device, function: Callable, *arguments: Any) -> tuple[Any, float]:
    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    start = now()
    result = function(*arguments)
    return result, now() - start


def _score(
    metrics: Mapping[str, Metric], row: str, name: str, restored: Tensor, sharp: Tensor, seconds: float
) -> Score:
    """The scores of one image, averaged over its samples (K, 3, H, W)."""
    values, missing = {}, {}
    for column, metric in metrics.items():
        try:
            if row == SHARP and "sharp" in metric.inputs:
                raise MetricError("it is the ground truth itself")
            samples = metric(restored, sharp.expand_as(restored), [name] * len(restored))
            values[column] = samples.double().mean().item()
        except MetricError as error:
            values[column], missing[column] = None, str(error)
    return Score(row, name, seconds, values, missing)
