"""A pipeline with known scores, and the plans that run it."""

import math
import time
from functools import partial
from types import SimpleNamespace

import torch

from deblur.evaluation.grid import rows_of
from deblur.evaluation.journal import Journal, Processes, Score
from deblur.evaluation.metrics import make_metrics
from deblur.evaluation.scoring import ImagePair, Plan, score_images, steps_of
from deblur.evaluation.summary import RowSummary, Summary, summarise

METRICS = make_metrics(["psnr", "ssim"])


class Toy:
    """Restored images are off by `steps` levels everywhere (sample k by k more), predictions by 20, blurry ones by 40.

    Of one stage, predictions and what is made of them are off by 5 levels more.

    Sharp images are grey. A denoising step takes `pause` seconds.
    """

    def __init__(self, sizes: list[tuple[int, int]], batch_size: int = 1, pause: float = 0.0):
        self.log, self.batch_size, self.pause = [], batch_size, pause
        self.images = [ImagePair(f"image{at}", size, partial(self.read, size)) for at, size in enumerate(sizes)]

    def read(self, size):
        self.log.append("read")
        sharp = torch.full((3, *size), 100 / 255)
        return sharp + 40 / 255, sharp

    def draft(self, blurry, stages=None):
        self.log.append("predict")
        assert blurry.given.ndim == 4
        assert len(blurry.given) <= self.batch_size
        images = blurry.given - (15 if stages == 1 else 20) / 255
        return SimpleNamespace(predictions=images, restored=partial(self.restored, images))

    def sample(self, draft, setting, seed, names, progress):
        self.names = names
        self.log.append(f"refine {' '.join(names)}")
        for _ in progress(range(steps_of([setting]))):
            time.sleep(self.pause)

    def restored(self, prediction, samples, settings):
        return [SimpleNamespace(images=self.images_of(prediction, setting)) for setting in settings]

    def images_of(self, prediction, setting):
        """(N * num_samples, 3, H, W)."""
        offsets = (torch.arange(setting.num_samples) + setting.steps).view(1, -1, 1, 1, 1) / 255
        return ((prediction - 20 / 255)[:, None] + offsets).flatten(0, 1)

    def plan(self, folder, settings, metrics=METRICS) -> Plan:
        journal = Journal(folder, {"recipe": {name: metric.recipe for name, metric in metrics.items()}}, Processes())
        made = {"settings": rows_of(settings), "metrics": metrics, "journal": journal, "facts": {}}
        made |= {"seed": 0, "outputs": {}, "batch_size": self.batch_size, "device": torch.device("cpu")}
        return Plan(folder, images=self.images, pipeline=self, processes=Processes(), **made)

    def summary(self, folder, settings, metrics=METRICS) -> Summary:
        return summary(self.plan(folder, settings, metrics))

    def rows(self, folder, settings, metrics=METRICS) -> list[RowSummary]:
        return self.summary(folder, settings, metrics).rows


def summary(plan: Plan) -> Summary:
    """What evaluate.py makes of a plan."""
    score_images(plan)
    return summarise(plan)


def score_of(plan: Plan, label: str, image: str) -> Score:
    """The score of one image in a row."""
    [row] = [row for row in plan.rows if row.label == label]
    return plan.journal.scores()[row.key, image]


def decibels(offset: float) -> float:
    """PSNR of an error that is everywhere the same, in levels of 255."""
    return 20 * math.log10(255 / offset)
