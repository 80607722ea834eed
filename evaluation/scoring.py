"""Restore and score images with every setting of a grid; existing scores are not computed again."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from deblur.cli import Stopped
from deblur.data.files import images
from deblur.draft import Blurry, Draft
from deblur.evaluation.controls import control_images
from deblur.evaluation.grid import BLURRY, CONTROLS, PREDICTOR, SHARP, Row
from deblur.evaluation.journal import Facts, Journal, Processes, Score
from deblur.evaluation.metrics import Metric
from deblur.evaluation.pixels import MetricError, whole_numbers
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
KEPT_BYTES = 2**28  # of images in memory for the report, such as 1000 of 300 x 300


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
        folder: of the results.
        images: in the order of the results.
        settings: the rows of the grid, in the order of the results.
        pipeline: None if only rows without a pipeline are scored.
        metrics: all requested metrics.
        journal: where scores are stored and read.
        seed: of the noise of samples and controls, and of the bootstrap.
        outputs: row label -> name of an image -> the file that another program restored.
        batch_size: images per batch of the networks; None: as many as suit the device and the images' size.
        device: where images are restored and scored.
        processes: that share the images.
        facts: what else the numbers depend on, for results.json.
        with_controls: whether the controls are rows, too; without them no setting is judged.
        keeps_images: whether the image of every row but the controls is written, to `folder`/images.
        kept: (key of a row, image) -> what was scored, (3, H, W) in 8 bits, for the report: of all rows but the
            controls, as long as there is room.
    """

    folder: Path
    images: Sequence[ImagePair]
    settings: Sequence[Row]
    pipeline: DeblurPipeline | None
    metrics: Mapping[str, Metric]
    journal: Journal
    seed: int
    outputs: Mapping[str, Mapping[str, Path]]
    batch_size: int | None
    device: torch.device
    processes: Processes
    facts: Facts
    with_controls: bool = True
    keeps_images: bool = False
    kept: dict[tuple[str, str], Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def computed(self) -> dict[str, Metric]:
        """The metrics that can be computed."""
        return {name: metric for name, metric in self.metrics.items() if metric.reason is None}

    @cached_property
    def rows(self) -> list[Row]:
        """All rows, in the order of the results."""
        controls = CONTROLS if self.with_controls else []
        fixed = [PREDICTOR, SHARP, *controls] if self.pipeline else [SHARP]
        return [*map(Row, [BLURRY, *fixed, *self.outputs]), *self.settings]

    @property
    def steps(self) -> int:
        """Denoising steps of all settings on all images."""
        groups = sharing_samples([row.settings for row in self.settings])
        return len(self.images) * sum(map(steps_of, groups))

    def file(self, row: Row, image: str) -> Path | None:
        """The file for a row's image; None if none is written."""
        if not self.keeps_images or row.label in CONTROLS:
            return None
        return self.folder / "images" / row.file_name / f"{image}.png"

    def keep(self, row: Row, image: str, restored: Tensor) -> None:
        """Keep a restored image (3, H, W) for the report, and write it if that is wanted."""
        is_shown = row.label not in (BLURRY, SHARP, *CONTROLS)
        if is_shown and sum(kept.numel() for kept in self.kept.values()) < KEPT_BYTES:
            self.kept[row.key, image] = whole_numbers(restored).byte().cpu()
        if file := self.file(row, image):
            images.write(file, restored.nan_to_num())  # one that breaks has no score, and stops no other

    def scored(self) -> set[tuple[str, str]]:
        """(key of a row, image) for each score that is there, with its file."""
        done = set(self.journal.scores())
        if self.keeps_images:
            files = {(row.key, image.name): self.file(row, image.name) for row in self.rows for image in self.images}
            done -= {place for place, file in files.items() if file and not file.is_file()}
        return done


@dataclass(frozen=True)
class _Batch:
    """Images of one size that are restored together, and the (key of a row, image) that have no score yet.

    `drafts` are by the predictor's stages.
    """

    plan: Plan
    images: Sequence[ImagePair]
    lacking: set[tuple[str, str]]
    drafts: dict[int | None, tuple[Draft, float]] = field(default_factory=dict)

    @cached_property
    def names(self) -> list[str]:
        return [image.name for image in self.images]

    @cached_property
    def groups(self) -> list[list[Row]]:
        """The settings that lack a score, grouped by the samples that they share."""
        wanted = {key for key, _ in self.lacking}
        rows = {row.settings: row for row in self.plan.settings if row.key in wanted}
        return [[rows[setting] for setting in group] for group in sharing_samples(list(rows))]

    @cached_property
    def sides(self) -> tuple[Tensor, Tensor]:
        """Blurry and sharp (N, 3, H, W), on the device."""
        sides = zip(*(image.read() for image in self.images), strict=True)
        blurry, sharp = (torch.stack(side).to(self.plan.device) for side in sides)
        return blurry, sharp

    @cached_property
    def truths(self) -> Sequence[Tensor]:
        """Sharp images (1, 3, H, W): the same tensors for every row, so that LPIPS computes their features once."""
        return self.sides[1].split(1)

    def drafted(self, stages: int | None) -> tuple[Draft, float]:
        """The pipeline's draft, with its prediction, and its seconds for each image."""
        if stages not in self.drafts:
            start = _now(self.plan.device)
            draft = self.plan.pipeline.draft(Blurry(self.sides[0]), stages)
            self.drafts[stages] = draft, (_now(self.plan.device) - start) / len(self.images)
        return self.drafts[stages]

    def score(self, images: Tensor, row: Row, seconds: float = 0.0) -> None:
        """Add a row's missing scores to the journal; first write its images, if they are to be kept.

        Args:
            images: (N * K, 3, H, W), with the K samples of one image in a row, whose mean score is used.
            row: whose images they are.
            seconds: that an image took.
        """
        samples = images.split(len(images) // len(self.images))
        for name, restored, sharp in zip(self.names, samples, self.truths, strict=True):
            if (row.key, name) in self.lacking:
                self.plan.keep(row, name, restored[0])
                self.plan.journal.add(_score(self.plan.computed, row, name, restored, sharp, seconds))


def score_images(plan: Plan) -> None:
    """Compute the scores missing in the journal, of every row on every image.

    Images of one size are restored in batches. The batches do not depend on what was done before or on the number of
    processes, so neither affects a score. The predictor runs once per batch, and settings that share their samples run
    once. A stop by a signal says how much is done.
    """
    batches = _batches(plan)
    steps = sum(len(b.images) * steps_of([row.settings for row in group]) for b in batches for group in b.groups)
    total, unit = (steps, "step") if steps else (sum(len(batch.images) for batch in batches), "image")
    text, hidden = f"{len(plan.settings)} settings", plan.processes.global_rank > 0
    try:
        with ProgressBar(total=total, desc=text, unit=unit, disable=hidden) as bar:
            for batch in batches:
                _score_fixed_rows(batch)
                for group in batch.groups:
                    settings = [row.settings for row in group]
                    draft, before = batch.drafted(settings[0].stages)
                    start = _now(plan.device)
                    longest = max(settings, key=lambda setting: setting.num_samples)
                    progress = counted(bar, len(batch.images))
                    samples = plan.pipeline.sample(draft, longest, plan.seed, batch.names, progress)
                    outputs = draft.restored(samples, settings)
                    seconds = (_now(plan.device) - start) / (longest.num_samples * len(batch.images))
                    for row, output in zip(group, outputs, strict=True):
                        batch.score(output.images, row, before + seconds * row.settings.num_samples)
                if not steps:
                    bar.update(len(batch.images))
    except Stopped as stopped:
        done, wanted = len(plan.scored()), len(plan.rows) * len(plan.images)
        raise Stopped(stopped.signal, f"stopped, {done} of {wanted} done; run again to resume") from None
    plan.processes.barrier()


def _score_fixed_rows(batch: _Batch) -> None:
    plan, (blurry, sharp) = batch.plan, batch.sides
    rows = {row.label: row for row in plan.rows}
    batch.score(blurry, rows[BLURRY])
    batch.score(sharp, rows[SHARP])
    for label, files in plan.outputs.items():
        restored = [images.read(files[name]) for name in batch.names]
        batch.score(torch.stack(restored).to(plan.device), rows[label])
    if plan.pipeline is None:
        return
    draft, seconds = batch.drafted(None)
    prediction = draft.predictions
    batch.score(prediction, rows[PREDICTOR], seconds)
    if plan.with_controls:
        for label, controlled in control_images(prediction.clamp(0, 1), blurry, plan.seed, batch.names):
            batch.score(controlled, rows[label], seconds)


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
    for together in groups[plan.processes.global_rank :: plan.processes.world_size]:
        places = {(row.key, image.name) for row in plan.rows for image in together}
        if places - done:
            batches.append(_Batch(plan, together, places - done))
    return batches


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
            samples = [metric(sample, sharp, [name]).item() for sample in restored.split(1)]
            values[column] = fmean(samples)
        except MetricError as error:
            values[column], missing[column] = None, str(error)
    return Score(row.key, name, seconds, values, missing)
