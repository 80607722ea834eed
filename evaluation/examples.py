"""Restore some images of an evaluation again and write them for the report and the panel."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from base.files import replacing
from base.progress import counted
from evaluation.panels import eight_bits, panel
from evaluation.results import Results, json_number
from evaluation.scoring import ImagePair, Plan, steps_of
from evaluation.summary import best_sample, pareto_front, perception_metric

PANEL_SAMPLES = 4
PANEL_IMAGES = 2


def keep_examples(folder: Path, plan: Plan, results: Results) -> list[dict[str, Any]]:
    """Write the best, median and worst image of each setting on the front into `folder`/examples.

    If no setting is on the front, because blurry or the prediction beats them all, the front among the settings is
    used. Images are ranked by LPIPS, or by SSIM if LPIPS is missing.

    Returns:
        The entries for results.json: setting, image, rank, scores, and files (kind of image -> path in `folder`).
    """
    shutil.rmtree(folder / "examples", ignore_errors=True)
    settings, images = plan.by_label, {image.name: image for image in plan.images}
    entries = _choose(results)
    names = sorted({entry["image"] for entry in entries})
    steps = sum(steps_of([settings[entry["setting"]]]) for entry in entries)
    with tqdm(total=steps, desc="examples of the front", unit="step", dynamic_ncols=True, disable=not steps) as bar:
        for number, name in enumerate(names):
            blurry, sharp, prediction = _predict(plan, images[name])
            shown = {"blurry": blurry[0], "predictor": prediction[0, :3], "sharp": sharp}
            of_image = {what: f"examples/{number}_{what}.png" for what in shown}
            for what, image in shown.items():
                _write(folder / of_image[what], image)
            for at, entry in enumerate(entry for entry in entries if entry["image"] == name):
                given = [settings[entry["setting"]]], plan.seed, [name], counted(bar, 1)
                [output] = plan.pipeline.refine_shared(blurry, prediction, *given)
                entry["files"] = of_image | {"restored": f"examples/{number}_{at}.png"}
                _write(folder / entry["files"]["restored"], output.images[0])
    return entries


def write_panel(plan: Plan, results: Results, path: Path) -> bool:
    """Write a panel of a few images at the best setting: samples, their mean and standard deviation.

    Returns False if there is no setting to show.
    """
    best = best_sample(results.rows)
    if best is None:
        return False
    settings = plan.by_label
    setting = dataclasses.replace(settings[best.label], num_samples=PANEL_SAMPLES, average=False)
    count = min(PANEL_IMAGES, len(plan.images))
    images = [plan.images[k * len(plan.images) // PANEL_IMAGES] for k in range(count)]
    columns = {name: [] for name in ("blurry", "prediction", "sample", "mean of samples", "std", "sharp")}
    steps = count * steps_of([setting])
    with tqdm(total=steps, desc="panel", unit="step", dynamic_ncols=True) as bar:
        for image in images:
            blurry, sharp, prediction = _predict(plan, image)
            [out] = plan.pipeline.refine_shared(blurry, prediction, [setting], plan.seed, [image.name], counted(bar, 1))
            shown = (blurry[0], out.predictions[0], out.images[0], out.images.mean(0), out.std[0], sharp)
            for column, tensor in zip(columns.values(), shown, strict=True):
                column.append(tensor.cpu())
    panel(columns, path)
    return True


def _choose(results: Results) -> list[dict[str, Any]]:
    """The entries of `keep_examples` without their files."""
    metric = perception_metric(results.rows)
    front = [row for row in pareto_front(results.rows) if row.settings]
    front = front or pareto_front([row for row in results.rows if row.settings])
    scores = [name for name in results.table if name not in ("setting", "image", "seconds", "missing")]
    entries = []
    for row in front:
        own = results.table[results.table["setting"] == row.label].dropna(subset=[metric])
        own = own.sort_values(metric, ascending=metric == "lpips", kind="stable")
        ranks = {"best": 0, "median": (len(own) - 1) // 2, "worst": len(own) - 1}
        for rank, at in ranks.items():
            line = own.iloc[at]
            if line["image"] not in [entry["image"] for entry in entries if entry["setting"] == row.label]:
                values = {name: json_number(value) for name, value in line[scores].dropna().items()}
                entries.append({"setting": row.label, "image": line["image"], "rank": rank, "scores": values})
    return entries


def _predict(plan: Plan, image: ImagePair) -> tuple[Tensor, Tensor, Tensor]:
    """Blurry (1, 3, H, W), sharp (3, H, W), and the pipeline's prediction."""
    blurry, sharp = image.read()
    blurry = blurry[None].to(plan.device)
    return blurry, sharp, plan.pipeline.predict(blurry)


def _write(path: Path, image: Tensor) -> None:
    """Write (3, H, W), about [0, 1], as an 8-bit PNG."""
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as part:
        eight_bits(image).save(part)
