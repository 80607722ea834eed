"""Restore and score images with every setting of a grid; existing scores are not computed again."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from deblur.draft import Blurry, Draft
from deblur.evaluation.controls import RECIPES, control_images
from deblur.evaluation.journal import Facts, Journal, Processes, Score
from deblur.evaluation.metrics import Metric
from deblur.evaluation.pixels import MetricError, write_png
from deblur.evaluation.rows import BLURRY, CONTROLS, PREDICTOR, SHARP, Row
from deblur.pipeline import DeblurPipeline
from deblur.progress import ProgressBar, counted
from deblur.settings import SamplingSettings, sharing_samples

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
        settings: the rows of the grid, in the order of the results.
        pipeline: None if only rows without a pipeline are scored.
        metrics: all requested metrics.
        journal: where scores are stored and read.
        seed: of the noise of samples and controls, and of the bootstrap.
        baselines: label -> function of an image's name that returns the image (3, H, W) restored by another program.
        batch_size: images per batch of the networks; None: as many as suit the device and the images' size.
        device: where images are restored and scored.
        processes: that share the images.
        facts: what else the numbers depend on, for results.json.
        restored: folder for the image of every row but the controls; None: none is written.
    """

    images: Sequence[ImagePair]
    settings: Sequence[Row]
    pipeline: DeblurPipeline | None
    metrics: Mapping[str, Metric]
    journal: Journal
    seed: int
    baselines: Mapping[str, Callable[[str], Tensor]]
    batch_size: int | None
    device: torch.device
    processes: Processes
    facts: Facts
    restored: Path | None = None

    @cached_property
    def computed(self) -> dict[str, Metric]:
        """The metrics that can be computed."""
        return {name: metric for name, metric in self.metrics.items() if metric.reason is None}

    @cached_property
    def rows(self) -> list[Row]:
        """All rows, in the order of the results."""
        fixed = [PREDICTOR, SHARP, *CONTROLS] if self.pipeline else [SHARP]
        return [*map(Row, [BLURRY, *fixed, *self.baselines]), *self.settings]

    @property
    def steps(self) -> int:
        """Denoising steps of all settings on all images."""
        groups = sharing_samples([row.settings for row in self.settings])
        return len(self.images) * sum(map(steps_of, groups))

    def file(self, row: Row, image: str) -> Path | None:
        """The file for a row's image; None if none is written."""
        return self.restored / row.file_name / f"{image}.png" if self.restored and row.label not in CONTROLS else None

    def scored(self) -> set[tuple[str, str]]:
        """(key of a row, image) for each score that is there, with its file."""
        done = self.journal.scores()
        files = {(row.key, image.name): self.file(row, image.name) for row in self.rows for image in self.images}
        return {place for place, file in files.items() if place in done and (file is None or file.is_file())}


@dataclass(frozen=True)
class _Batch:
    """Images of one size that are restored together, and the (key of a row, image) that have no score yet."""

    plan: Plan
    images: Sequence[ImagePair]
    lacking: set[tuple[str, str]]

    @cached_property
    def names(self) -> list[str]:
        return [image.name for image in self.images]

    @cached_property
    def groups(self) -> list[list[Row]]:
        """The settings that lack a score, grouped by the samples that they share."""
        wanted = {key for key, _ in self.lacking}
        rows = {row.settings: row for row in self.plan.settings}
        groups = [[rows[s] for s in group if rows[s].key in wanted] for group in sharing_samples(list(rows))]
        return [group for group in groups if group]

    def read(self) -> tuple[Tensor, Tensor]:
        """Blurry and sharp (N, 3, H, W), on the device."""
        sides = zip(*(image.read() for image in self.images), strict=True)
        blurry, sharp = (torch.stack(side).to(self.plan.device) for side in sides)
        return blurry, sharp

    def score(self, sharp: Tensor, images: Tensor, row: Row, seconds: float = 0.0) -> None:
        """Add a row's missing scores to the journal; first write its images, if they are to be kept.

        Args:
            sharp: the ground truths (N, 3, H, W).
            images: (N * K, 3, H, W), with the K samples of one image in a row, whose mean score is used.
            row: whose images they are.
            seconds: that an image took.
        """
        samples = images.split(len(images) // len(sharp))
        for name, restored, truth in zip(self.names, samples, sharp, strict=True):
            if (row.key, name) in self.lacking:
                if file := self.plan.file(row, name):
                    write_png(file, restored[0])
                self.plan.journal.add(_score(self.plan.computed, row, name, restored, truth, seconds))


def depends_on(
    facts: Facts, metrics: Mapping[str, Metric], batch_size: int | None, images: Facts, outputs: Facts
) -> Facts:
    """What a score depends on besides row and image, for the journal; `images` and `outputs` are hashes by name."""
    return {
        "checkpoint": facts["checkpoint"] and facts["checkpoint"]["sha256"],
        "seed": facts["seed"],
        "precision": facts["precision"],
        "device": facts["device"].partition(":")[0],
        "batch_size": batch_size or "auto",
        "recipe": {name: metric.recipe or "missing" for name, metric in metrics.items()} | RECIPES,
        "image": images,
        "outputs": outputs,
    }


def score_images(plan: Plan) -> None:
    """Compute the scores missing in the journal, of every row on every image.

    Images of one size are restored in batches. The batches do not depend on what was done before or on the number of
    processes, so neither affects a score. The predictor runs once per batch, and settings that share their samples run
    once.
    """
    batches = _batches(plan)
    steps = sum(len(b.images) * steps_of([row.settings for row in group]) for b in batches for group in b.groups)
    total, unit = (steps, "step") if steps else (sum(len(batch.images) for batch in batches), "image")
    text, hidden = f"{len(plan.settings)} settings", plan.processes.global_rank > 0
    with ProgressBar(total=total, desc=text, unit=unit, disable=hidden) as bar:
        for batch in batches:
            blurry, sharp = batch.read()
            score = partial(batch.score, sharp)
            score(blurry, Row(BLURRY))
            score(sharp, Row(SHARP))
            for label, read in plan.baselines.items():
                score(torch.stack([read(name) for name in batch.names]).to(plan.device), Row(label))
            if plan.pipeline is not None:
                draft, before = _drafted(plan, blurry)
                drafts = {None: (draft, before)}  # by the predictor's stages
                score(draft.prediction.images, Row(PREDICTOR), before)
                for label, images in _controls(batch, blurry, draft.prediction.images):
                    score(images, Row(label), before)
            for group in batch.groups:
                settings = [row.settings for row in group]
                stages = settings[0].stages
                if stages not in drafts:
                    drafts[stages] = _drafted(plan, blurry, stages)
                draft, before = drafts[stages]
                start = _now(plan.device)
                longest = max(settings, key=lambda setting: setting.num_samples)
                samples = plan.pipeline.sample(draft, longest, plan.seed, batch.names, counted(bar, len(blurry)))
                outputs = draft.restored(samples, settings)
                drawn = max(setting.num_samples for setting in settings) * len(blurry)
                seconds = (_now(plan.device) - start) / drawn
                for row, output in zip(group, outputs, strict=True):
                    score(output.images, row, before + seconds * row.settings.num_samples)
            if not steps:
                bar.update(len(blurry))
    plan.processes.barrier()


def _drafted(plan: Plan, blurry: Tensor, stages: int | None = None) -> tuple[Draft, float]:
    """The pipeline's draft, with its prediction, and its seconds for each image."""
    start = _now(plan.device)
    draft = plan.pipeline.draft(Blurry(blurry), stages)
    return draft, (_now(plan.device) - start) / len(blurry)


def batch_size_for(device: str, size: tuple[int, int]) -> int:
    """Images of size (H, W) per batch of the networks on this kind of device."""
    pixels = BATCH_PIXELS["cpu" if device == "cpu" else "gpu"]
    return max(1, min(LARGEST_BATCH, pixels // (size[0] * size[1])))


def steps_of(group: Sequence[SamplingSettings]) -> int:
    """Denoising steps per image for settings that share their samples."""
    return max((setting.steps * setting.num_samples if setting.blend > 0 else 0 for setting in group), default=0)


def _batches(plan: Plan) -> list[_Batch]:
    """This process's batches in which a score is missing."""
    done, groups = plan.scored(), []
    for size, alike in groupby(sorted(plan.images, key=lambda image: image.size), key=lambda image: image.size):
        alike_images, count = list(alike), plan.batch_size or batch_size_for(plan.device.type, size)
        groups += [alike_images[at : at + count] for at in range(0, len(alike_images), count)]
    batches = []
    for images in groups[plan.processes.global_rank :: plan.processes.world_size]:
        places = {(row.key, image.name) for row in plan.rows for image in images}
        if places - done:
            batches.append(_Batch(plan, images, places - done))
    return batches


def _controls(batch: _Batch, blurry: Tensor, x_init: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield (label, images (N, 3, H, W)) for each control."""
    images = zip(x_init.clamp(0, 1), blurry, batch.names, strict=True)
    controls = [control_images(image, of_image, batch.plan.seed, name) for image, of_image, name in images]
    for of_images in zip(*controls, strict=True):
        labels, images = zip(*of_images, strict=True)
        yield labels[0], torch.stack(images)


def _now(device: torch.device) -> float:
    """The time in seconds, after all work that was started on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _score(
    metrics: Mapping[str, Metric], row: Row, name: str, restored: Tensor, sharp: Tensor, seconds: float
) -> Score:
    """The scores of one image, averaged over its samples (K, 3, H, W)."""
    values, missing = {}, {}
    for column, metric in metrics.items():
        try:
            if row.label == SHARP and "sharp" in metric.inputs:
                raise MetricError("it is the ground truth itself")
            samples = metric(restored, sharp.expand_as(restored), [name] * len(restored))
            values[column] = samples.double().mean().item()
        except MetricError as error:
            values[column], missing[column] = None, str(error)
    return Score(row.key, name, seconds, values, missing)
