"""Restore some images of an evaluation again and write them for the report and the panel."""

import dataclasses
import shutil
from pathlib import Path

from torch import Tensor

from deblur.cli import escaped
from deblur.draft import Blurry
from deblur.evaluation.panels import panel
from deblur.evaluation.pixels import write_png
from deblur.evaluation.rows import Row
from deblur.evaluation.scoring import ImagePair, Plan, steps_of
from deblur.evaluation.summary import Summary
from deblur.pipeline import Area
from deblur.progress import ProgressBar, counted

PANEL_SAMPLES = 4
PANEL_IMAGES = 2


@dataclasses.dataclass(frozen=True)
class Example:
    """An image restored by a setting, with its scores.

    Attributes:
        row: the setting.
        image: its name.
        rank: best, median or worst among the images of the setting.
        scores: metric -> score, without those that are missing.
        files: kind of image (blurry, predictor, sharp, restored) -> path within the evaluation's folder.
    """

    row: Row
    image: str
    rank: str
    scores: dict[str, float]
    files: dict[str, str] = dataclasses.field(default_factory=dict)


def keep_examples(folder: Path, plan: Plan, summary: Summary) -> list[Example]:
    """Write the best, median and worst image of each setting on the front into `folder`/examples.

    If no setting is on the front, because blurry or the prediction beats them all, the front among the settings is
    used. Images are ranked by LPIPS, or by SSIM if LPIPS is missing.
    """
    shutil.rmtree(folder / "examples", ignore_errors=True)
    images = {escaped(image.name): image for image in plan.images}
    examples = _choose(summary)
    names = sorted({example.image for example in examples})
    steps = sum(steps_of([example.row.settings]) for example in examples)
    with ProgressBar(total=steps, desc="examples of the front", unit="step", disable=not steps) as bar:
        for number, name in enumerate(names):
            blurry, sharp = _read(plan, images[name])
            chosen = [example for example in examples if example.image == name]
            stages = {None, *(example.row.settings.stages for example in chosen)}
            drafts = {count: plan.pipeline.draft(Blurry(blurry), count) for count in stages}
            shown = {"blurry": blurry[0], "predictor": drafts[None].prediction.images[0], "sharp": sharp}
            of_image = {kind: f"examples/{number}_{kind}.png" for kind in shown}
            for kind, image in shown.items():
                write_png(folder / of_image[kind], image)
            for at, example in enumerate(chosen):
                settings = example.row.settings
                draft = drafts[settings.stages]
                samples = plan.pipeline.sample(draft, settings, plan.seed, [images[name].name], counted(bar, 1))
                [output] = draft.restored(samples, [settings])
                example.files.update(of_image | {"restored": f"examples/{number}_{at}.png"})
                write_png(folder / example.files["restored"], output.images[0])
    return examples


def write_panel(plan: Plan, summary: Summary, path: Path) -> None:
    """Write a panel of a few images at the most perceptual setting: samples, their mean and standard deviation."""
    best = summary.presets.get("perceptual")
    if best is None:
        return
    setting = dataclasses.replace(best.row.settings, num_samples=PANEL_SAMPLES, average=False)
    count = min(PANEL_IMAGES, len(plan.images))
    images = [plan.images[k * len(plan.images) // PANEL_IMAGES] for k in range(count)]
    rows = []
    with ProgressBar(total=count * steps_of([setting]), desc="panel", unit="step") as bar:
        for image in images:
            blurry, sharp = _read(plan, image)
            out = plan.pipeline.restore(blurry, setting, plan.seed, [image.name], counted(bar, 1), area=Area(scale=1.0))
            rows.append((blurry[0], out.predictions[0], out.images[0], out.images.mean(0), out.std[0], sharp))
    names = ("blurry", "prediction", "sample", "mean of samples", "std", "sharp")
    panel(dict(zip(names, zip(*rows, strict=True), strict=True)), path)


def _choose(summary: Summary) -> list[Example]:
    """The examples without their files."""
    metric = summary.perception
    front = [row for row in summary.front if row.row.settings] or summary.settings_front
    examples = []
    for row in front:
        scores = summary.scores[summary.scores["setting"] == row.label].dropna(subset=[metric])
        scores = scores.sort_values(metric, ascending=metric == "lpips", kind="stable")
        ranks = {"best": 0, "median": (len(scores) - 1) // 2, "worst": len(scores) - 1}
        for rank, at in ranks.items():
            line = scores.iloc[at]
            if line["image"] not in [example.image for example in examples if example.row == row.row]:
                examples.append(Example(row.row, line["image"], rank, line[list(summary.metrics)].dropna().to_dict()))
    return examples


def _read(plan: Plan, image: ImagePair) -> tuple[Tensor, Tensor]:
    """Blurry (1, 3, H, W) and sharp (3, H, W)."""
    blurry, sharp = image.read()
    return blurry[None].to(plan.device), sharp
