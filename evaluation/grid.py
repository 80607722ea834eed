"""A grid of sampling settings: read it, score every setting on every picture, average, find the Pareto front.

Nothing here knows how pictures are restored: a setting is a dataclass with `sampler`, `steps` and `num_samples`, and
the predictor and the sampler come in as functions.
"""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from tqdm import tqdm

from evaluation.metrics import MetricError

METRICS = ("psnr", "ssim", "lpips")
BLURRY, PREDICTOR = "blurry", "predictor"  # labels of the two rows that every grid has
SECONDS_RECIPE = (
    "Wall-clock seconds an image, the predictor's pass included, metrics and disk excluded; mean over the images, "
    "with the slower first image of a run; 0 for the row blurry."
)

Metric = Callable[[Tensor, Tensor], Tensor]


class GridError(ValueError):
    """A grid file is wrong; the text is one sentence that names the file and the field or value."""


@dataclass(frozen=True)
class Score:
    """One picture restored at one setting. `missing` says for each metric that is None why it is."""

    label: str
    image: str
    seconds: float
    metrics: dict[str, float | None]
    missing: dict[str, str]


@dataclass(frozen=True)
class Row:
    """The mean over the pictures of one setting; `settings` is empty for the rows blurry and predictor."""

    label: str
    settings: dict[str, Any]
    images: int
    seconds: float
    metrics: dict[str, float | None]
    missing: dict[str, str] = field(default_factory=dict)


def read_grid(path: str | Path, settings_type: type) -> list[Any]:
    """The settings that a YAML file asks for, in its order, each once.

    The file holds `product`, a mapping of fields to a value or a list of values (or a list of such mappings), and
    `settings`, a list of mappings of fields to values; one of them or both. Fields left out keep their defaults.

    Args:
        path: the file.
        settings_type: the dataclass of one setting, every field with a default.

    Raises:
        GridError: the file cannot be read, or a field or value in it is unknown.
    """
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise GridError(f"Grid file {path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise GridError(f"Grid file {path} is not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(document, dict) or not document or not document.keys() <= {"product", "settings"}:
        raise GridError(f"Grid file {path} must hold the keys 'product' or 'settings' and no others.")

    products = document.get("product") or []
    listed = document.get("settings") or []
    products = [products] if isinstance(products, dict) else products
    entries = []
    for key, blocks in (("product", products), ("settings", listed)):
        if not isinstance(blocks, list) or not all(isinstance(block, dict) and block for block in blocks):
            raise GridError(f"Grid file {path}: '{key}' must hold fields with their values.")
        for block in blocks:
            values = [v if isinstance(v, list) and key == "product" else [v] for v in block.values()]
            entries += [dict(zip(block, point, strict=True)) for point in itertools.product(*values)]
    if not entries:
        raise GridError(f"Grid file {path} holds no settings.")
    return list(dict.fromkeys(_setting(entry, settings_type, path) for entry in entries))


def _setting(entry: dict[str, Any], settings_type: type, path: str | Path) -> Any:
    defaults = {f.name: f.default for f in dataclasses.fields(settings_type)}
    arguments = {}
    for name, value in entry.items():
        if name not in defaults:
            raise GridError(f"Grid file {path}: unknown field {name!r}; known are {', '.join(defaults)}.")
        kind = type(defaults[name])
        if kind is float and type(value) in (int, str):  # YAML reads 1e-4 as text
            with contextlib.suppress(ValueError):
                value = float(value)
        if type(value) is not kind or (kind is float and not math.isfinite(value)):
            raise GridError(f"Grid file {path}: {name} must be of type {kind.__name__}, got {value!r}.")
        arguments[name] = value
    try:
        return settings_type(**arguments)
    except ValueError as error:
        raise GridError(f"Grid file {path}: {error}.") from error


def label_settings(settings: Sequence[Any]) -> list[str]:
    """A short name for each setting: sampler, steps, and what else differs within the grid."""
    rows = [dataclasses.asdict(setting) for setting in settings]
    varying = [name for name in rows[0] if len({row[name] for row in rows}) > 1 and name not in ("sampler", "steps")]
    labels = []
    for row in rows:
        extra = [row[name] if isinstance(row[name], str) else f"{name}={row[name]}" for name in varying]
        labels.append(" ".join([row["sampler"], str(row["steps"]), *extra]))
    return labels


def run_grid(
    cases: Iterable[tuple[str, Tensor, Tensor]],
    count: int,
    settings: Sequence[Any],
    predict: Callable[[Tensor], Tensor],
    refine: Callable[[Tensor, Tensor, Any, str, Callable[[Iterable], Iterable]], Tensor],
    metrics: Mapping[str, Metric],
) -> list[Score]:
    """Score the blurry picture, the prediction and every setting on every case.

    The predictor runs once a picture, and one picture is held at a time. A setting that returns several samples of a
    picture gets the mean of their scores.

    Args:
        cases: (name, blurry, sharp), the pictures (3, H, W) in [0, 1] and on the device that restores them.
        count: how many cases there are.
        settings: the grid.
        predict: blurry (1, 3, H, W) -> x_init of the same shape.
        refine: blurry, x_init, setting, name, and a wrapper for its steps that counts them -> (K, 3, H, W) in [0, 1].
        metrics: name -> metric; one that raises MetricError for a picture is missing there.

    Returns:
        Case by case: blurry, predictor, then the settings in order.
    """
    labels = label_settings(settings)
    costs = [setting.steps * setting.num_samples for setting in settings]
    scores = []
    with tqdm(total=count * sum(costs), unit="step", dynamic_ncols=True) as bar:

        def counted(steps: Iterable) -> Iterable:
            for step in steps:
                yield step
                bar.update()

        done = 0
        for index, (name, blurry, sharp) in enumerate(cases, start=1):
            blurry, sharp = blurry[None], sharp[None]
            scores.append(_score(BLURRY, name, 0.0, blurry, sharp, metrics))
            bar.set_description(f"image {index}/{count}, {PREDICTOR}")
            x_init, predictor_seconds = _timed(predict, blurry)
            scores.append(_score(PREDICTOR, name, predictor_seconds, x_init, sharp, metrics))
            for label, setting, cost in zip(labels, settings, costs, strict=True):
                bar.set_description(f"image {index}/{count}, {label}")
                restored, seconds = _timed(refine, blurry, x_init, setting, name, counted)
                scores.append(_score(label, name, predictor_seconds + seconds, restored, sharp, metrics))
                done += cost
                bar.update(done - bar.n)  # a setting may take fewer steps than it announces
    return scores


def _timed(function: Callable[..., Tensor], blurry: Tensor, *arguments: Any) -> tuple[Tensor, float]:
    def now() -> float:
        if blurry.is_cuda:
            torch.cuda.synchronize(blurry.device)
        return time.perf_counter()

    start = now()
    result = function(blurry, *arguments)
    return result, now() - start


def _score(
    label: str, name: str, seconds: float, restored: Tensor, sharp: Tensor, metrics: Mapping[str, Metric]
) -> Score:
    values, missing = {}, {}
    for metric, function in metrics.items():
        try:
            values[metric] = function(restored, sharp.expand_as(restored)).mean().item()
        except MetricError as error:
            values[metric], missing[metric] = None, str(error)
    return Score(label, name, seconds, values, missing)


def average(scores: Sequence[Score], settings: Sequence[Any]) -> list[Row]:
    """One row a setting, after the rows blurry and predictor: means over the pictures.

    A metric's mean is over the pictures that the metric can score at all, which are those where it scored the blurry
    picture. A setting that lacks one of them has no mean, since a mean over fewer pictures cannot be compared.
    """
    kinds = [{}, {}, *(dataclasses.asdict(setting) for setting in settings)]
    metrics = list(scores[0].metrics)
    scored = {m: {s.image for s in scores if s.label == BLURRY and s.metrics[m] is not None} for m in metrics}
    rows = []
    for label, kind in zip([BLURRY, PREDICTOR, *label_settings(settings)], kinds, strict=True):
        own = [score for score in scores if score.label == label]
        values, missing = {}, {}
        for metric in metrics:
            numbers = [score.metrics[metric] for score in own if score.image in scored[metric]]
            lacking = [score for score in own if score.metrics[metric] is None]
            whole = bool(numbers) and None not in numbers
            values[metric] = sum(numbers) / len(numbers) if whole else None
            if lacking:
                missing[metric] = (
                    f"{len(lacking)} of {len(own)} images, first {lacking[0].image}: {lacking[0].missing[metric]}"
                )
        seconds = sum(score.seconds for score in own) / len(own)
        rows.append(Row(label, kind, len(own), seconds, values, missing))
    return rows


def perception_metric(rows: Sequence[Row]) -> str:
    """The metric of the perception axis: lpips, or ssim where LPIPS is missing."""
    return "lpips" if any(row.metrics.get("lpips") is not None for row in rows) else "ssim"


def pareto_front(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other row beats on both axes, by rising PSNR.

    The axes are PSNR, higher is better, and the perception metric (LPIPS, lower is better, or SSIM, higher is better).
    """
    metric = perception_metric(rows)
    sign = 1 if metric == "ssim" else -1
    points = [
        (row.metrics["psnr"], sign * row.metrics[metric], row)
        for row in rows
        if row.metrics["psnr"] is not None and row.metrics[metric] is not None
    ]
    front = [
        (x, y, row) for x, y, row in points if not any(a >= x and b >= y and (a, b) != (x, y) for a, b, _ in points)
    ]
    return [row for _, _, row in sorted(front, key=lambda point: (point[0], -point[1]))]


def best_sample(rows: Sequence[Row]) -> Row | None:
    """The setting with the best LPIPS, or the best PSNR where LPIPS is missing; None if no setting was scored."""
    lpips = [row for row in rows if row.settings and row.metrics.get("lpips") is not None]
    if lpips:
        return min(lpips, key=lambda row: row.metrics["lpips"])
    psnr = [row for row in rows if row.settings and row.metrics["psnr"] is not None]
    return max(psnr, key=lambda row: row.metrics["psnr"], default=None)
