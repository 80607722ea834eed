"""A grid of sampling settings: read it, score every setting on every picture, average, find the Pareto front.

Nothing here knows how pictures are restored: a setting is a dataclass with `sampler`, `steps` and `num_samples`, and
the predictor and the sampler come in as functions.
"""

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser
from torch import Tensor
from tqdm import tqdm

from evaluation import race
from evaluation.controls import LABELS, Verdict, control_images, judge
from evaluation.journal import Journal, Score
from evaluation.metrics import Metric, MetricError
from evaluation.statistics import Estimate, estimates

BLURRY, PREDICTOR, SHARP = "blurry", "predictor", "sharp"  # labels of the rows that every grid has
CONTROLS = [label for labels in LABELS.values() for label in labels]  # and these where there is a predictor
SECONDS_RECIPE = (
    "wall-clock seconds an image, the predictor's pass included, metrics and disk excluded; of a batch that several "
    "settings shared, an equal part for each of its samples; mean over the images; 0 for rows that restore nothing"
)
NO_INTERVAL = "no interval: a bootstrap would draw pictures twice, which raises a distance between sets"


class GridError(ValueError):
    """A grid file is wrong; the text is one sentence that names the file and the field or value."""


def read_grid(path: str | Path, settings_type: type) -> list[Any]:
    """The settings that a YAML file asks for, in its order, each once.

    The file holds `product`, a mapping of fields to a value, a list of values or a range (or a list of such mappings),
    and `settings`, a list of mappings of fields to values; one of them or both. Omitted fields keep their defaults.
    A range is {from, to, step} or {from, to, count}, both ends included, the latter with `spacing: log` if wanted.

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
    products = [products] if isinstance(products, dict) else products
    entries = []
    for section, blocks in (("product", products), ("settings", document.get("settings") or [])):
        if not isinstance(blocks, list) or not all(isinstance(block, dict) and block for block in blocks):
            raise GridError(f"Grid file {path}: '{section}' must hold fields with their values.")
        for block in blocks:
            values = [[v] if section == "settings" else _values(name, v, path) for name, v in block.items()]
            entries += [dict(zip(block, point, strict=True)) for point in itertools.product(*values)]
    if not entries:
        raise GridError(f"Grid file {path} holds no settings.")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(settings_type)
    return list(dict.fromkeys(_setting(entry, settings_type, parser, path) for entry in entries))


def _setting(entry: dict[str, Any], settings_type: type, parser: ArgumentParser, path: str | Path) -> Any:
    known = [field.name for field in dataclasses.fields(settings_type)]
    if unknown := [name for name in entry if name not in known]:
        raise GridError(f"Grid file {path}: unknown field {unknown[0]!r}; known are {', '.join(known)}.")
    try:
        return settings_type(**parser.parse_object(entry).as_dict())
    except (ArgumentError, ValueError) as error:
        said = " ".join(str(error).replace("Parser key ", "").split())
        raise GridError(f"Grid file {path}: {said}.") from None


def _values(name: str, value: Any, path: str | Path) -> list[Any]:
    """What a field of a product takes: the value, the list, or the numbers of a range."""
    if not isinstance(value, dict):
        return value if isinstance(value, list) else [value]
    text = f"Grid file {path}: the range of {name} must be {{from, to, step}} or {{from, to, count, spacing}}"
    spacing = value.get("spacing", "linear")
    try:
        numbers = {part: float(given) for part, given in value.items() if part != "spacing"}  # YAML reads 1e-4 as text
    except (TypeError, ValueError):
        numbers = {}
    if (
        numbers.keys() not in ({"from", "to", "step"}, {"from", "to", "count"})
        or not np.isfinite([*numbers.values()]).all()
    ):
        raise GridError(f"{text}, all numbers, got {value}.")
    if spacing not in ("linear", "log") or ("step" in numbers and "spacing" in value):
        raise GridError(f"{text}, with spacing linear or log, got {value}.")
    first, last = numbers["from"], numbers["to"]
    if "step" in numbers:
        if numbers["step"] <= 0 or last < first:
            raise GridError(f"{text}, rising, got {value}.")
        found = np.arange(first, last + 1e-9 * numbers["step"], numbers["step"])
    else:
        count = numbers["count"]
        if count < 2 or count % 1 or (spacing == "log" and min(first, last) <= 0):
            raise GridError(f"{text}, with a count of 2 or more and, for log, ends above 0, got {value}.")
        found = (np.linspace if spacing == "linear" else np.geomspace)(first, last, int(count))
    # A range of whole numbers is one: 5 .. 50 in 4 log steps are 5, 11, 23, 50.
    whole = all(isinstance(given, int) for part, given in value.items() if part != "spacing")
    return list(dict.fromkeys(round(number) if whole else float(f"{number:.12g}") for number in found.tolist()))


@dataclass(frozen=True)
class Picture:
    """One pair to score. `read` returns blurry and sharp, (3, H, W) in [0, 1]; `size` is (H, W)."""

    name: str
    size: tuple[int, int]
    read: Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Restorer:
    """What restores pictures.

    Args:
        predict: blurry (1, 3, H, W) in [0, 1] -> a prediction of the same shape; beyond the first three, channels for
            `refine` alone.
        refine: cases of one size (name, blurry (3, H, W), prediction, settings), slots, a function told the steps
            of each call of the denoiser -> (name, setting, pictures (K, 3, H, W), seconds), as they are ready.
        cost: settings -> (samples, denoising steps) that `refine` takes for one picture.
        slots: (H, W) -> the most pictures that the denoiser sees at a time.
        device: where the pictures are scored.
    """

    predict: Callable[[Tensor], Tensor]
    refine: Callable[[Iterable, int, Callable[[int], object]], Iterator[tuple[str, Any, Tensor, float]]]
    cost: Callable[[Sequence[Any]], tuple[int, int]]
    slots: Callable[[tuple[int, int]], int]
    device: torch.device | str = "cpu"


@dataclass(frozen=True)
class Row:
    """The means over the pictures of one setting; `settings` is empty for the rows that are no setting.

    `metrics` are the means alone; `estimates` have their intervals and `differences` those of the paired differences to
    the predictor. `dropped` says why a race did not run the setting on all pictures. `verdict` compares a setting with
    the controls.
    """

    label: str
    settings: dict[str, Any]
    images: int
    seconds: float
    metrics: dict[str, float | None]
    missing: dict[str, str] = field(default_factory=dict)
    estimates: dict[str, Estimate] = field(default_factory=dict)
    differences: dict[str, Estimate] = field(default_factory=dict)
    dropped: str | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Outcome:
    """What `run_grid` returns: all scores, why a setting was dropped, denoising steps of the grid run and in full."""

    scores: dict[tuple[str, str], Score]
    dropped: dict[Any, str]
    steps: int
    steps_in_full: int


def key(setting: Any) -> str:
    """A setting's name in a journal: all of its fields."""
    return json.dumps(dataclasses.asdict(setting))


def label_settings(settings: Sequence[Any]) -> list[str]:
    """A short name for each setting: sampler, steps, and what else differs within the grid and from the defaults."""
    if not settings:
        return []
    rows = [dataclasses.asdict(setting) for setting in settings]
    defaults = {f.name: f.default for f in dataclasses.fields(settings[0]) if not isinstance(f.default, str)}
    varying = [name for name in rows[0] if len({row[name] for row in rows}) > 1 and name not in ("sampler", "steps")]
    labels = []
    for row in rows:
        told = [name for name in varying if row[name] != defaults.get(name)]
        extra = [row[name] if isinstance(row[name], str) else f"{name}={row[name]}" for name in told]
        labels.append(" ".join([row["sampler"], str(row["steps"]), *extra]).replace("average=True", "average"))
    return labels


def run_grid(
    pictures: Sequence[Picture],
    settings: Sequence[Any],
    restorer: Restorer | None,
    metrics: Mapping[str, Metric],
    journal: Journal,
    outputs: Mapping[str, Callable[[str], Tensor]] | None = None,
    racing: bool = False,
    share: tuple[int, int] = (0, 1),
    barrier: Callable[[], object] = lambda: None,
    seed: int = 0,
) -> Outcome:
    """Score blurry, predictor, sharp, the controls and every setting on every picture, but for what the journal holds.

    The predictor runs once a picture, and settings run together in the batches of `restorer.refine`. Batches have a
    size that depends on the plan alone, and metrics too are computed in batches of that size, so a score does not
    depend on where an earlier run stopped or on the number of processes. A setting that returns several samples of a
    picture gets the mean of their scores.

    Args:
        pictures: in the order of the results.
        settings: the grid; empty without a restorer.
        restorer: None to score only what needs none.
        metrics: those that can be computed; one that raises MetricError for a picture is missing there.
        journal: where scores go to and come from.
        outputs: label -> function of a picture's name that returns it (3, H, W) as another program restored it.
        racing: run the race of `evaluation.race`, on PSNR and LPIPS, or SSIM where LPIPS is missing.
        share: rank of this process, and number of processes.
        barrier: waits for the other processes.
        seed: of the controls' noise.
    """
    labels = dict(zip(map(key, settings), label_settings(settings), strict=True))
    labels |= {row: row for row in (BLURRY, PREDICTOR)}
    alive, dropped, unseen, steps, before = list(settings), {}, set(), 0, 0
    order = np.random.default_rng(0).permutation(len(pictures)) if racing else range(len(pictures))
    ends = race.stages(len(pictures)) if racing else [len(pictures)]
    for number, end in enumerate(ends, start=1):
        stage = [pictures[at] for at in order[before:end]]
        text = f"stage {number}/{len(ends)}, {len(alive)} settings" if racing else f"{len(alive)} settings"
        _run_stage(stage, alive, restorer, metrics, journal, outputs or {}, share, text, seed)
        barrier()
        steps += len(stage) * (restorer.cost(alive)[1] if restorer else 0)
        scores, before = journal.scores(), end
        if end < len(pictures):
            names = [pictures[at].name for at in order]
            losers = _losers([BLURRY, PREDICTOR, *map(key, alive)], names[:end], len(names), scores, metrics)
            for loser, winner in losers.items():
                dropped[labels[loser]] = f"after {end} of {len(names)} images: beaten by {labels[winner]}"
                unseen |= {(loser, name) for name in names[end:]}  # a journal of a full grid has them
            alive = [setting for setting in alive if labels[key(setting)] not in dropped]
    in_full = len(pictures) * (restorer.cost(settings)[1] if restorer else 0)
    return Outcome({at: score for at, score in scores.items() if at not in unseen}, dropped, steps, in_full)


def _losers(rows: Sequence[str], names: Sequence[str], images: int, scores: Mapping, metrics: Mapping) -> dict:
    """Setting -> row that certainly beats it. The first two rows are no settings, and stay.

    The settings that are the best so far on an axis stay too, so that where the prediction beats all of them there are
    settings left to choose presets from.
    """
    axes = []
    for metric in ("psnr", "lpips" if "lpips" in metrics else "ssim"):
        table = [[scores[row, name].metrics[metric] for row in rows] for name in names]
        axes.append((1 if metrics[metric].higher_is_better else -1) * np.array(table, dtype=float))  # None becomes nan
    scored = np.isfinite(np.stack(axes)).all(axis=(0, 2))
    if scored.sum() < race.FEWEST:
        return {}
    axes = [axis[scored] for axis in axes]
    stay = {0, 1, *(2 + int(axis[:, 2:].mean(axis=0).argmax()) for axis in axes)}
    winners = race.beaten_by(axes, images)
    return {rows[at]: rows[winner] for at, winner in enumerate(winners) if winner is not None and at not in stay}


def _run_stage(pictures, settings, restorer, metrics, journal, outputs, share, text, seed) -> None:
    """`run_grid` for its pictures and settings: the share of this process."""
    rank, processes = share
    fixed = [BLURRY, SHARP, *outputs] + ([PREDICTOR] if restorer else [])
    by_key = {key(setting): setting for setting in settings}
    controls = CONTROLS if restorer else []
    done = journal.scores()
    # Each process has the same pictures whenever it starts, so that none is done twice and none is left.
    own = sorted(pictures, key=lambda p: p.size)[rank::processes]
    lacking = {p: [row for row in [*fixed, *controls, *by_key] if (row, p.name) not in done] for p in own}
    mine = [p for p in own if lacking[p]]
    wanted = {p: [by_key[row] for row in lacking[p] if row in by_key] for p in mine}
    samples, _ = restorer.cost(settings) if restorer else (0, 0)
    steps = sum(restorer.cost(wanted[p])[1] for p in mine) if restorer else 0
    with tqdm(total=steps or len(mine), desc=text, unit="step", dynamic_ncols=True, disable=rank > 0) as bar:

        def cases(group: Iterable[Picture], scorer: _Scorer) -> Iterator[tuple[str, Tensor, Tensor, list]]:
            for picture in group:
                blurry, sharp = (x.to(scorer.device) for x in picture.read())
                prediction, seconds = _timed(restorer.predict, blurry[None]) if restorer else (blurry[None], 0.0)
                x_init = prediction[0, :3]
                scorer.open(picture.name, blurry, sharp, seconds, len(lacking[picture]))
                shown = {BLURRY: blurry, SHARP: sharp, PREDICTOR: x_init}
                for row in fixed:
                    if row in lacking[picture]:
                        image = shown[row] if row in shown else outputs[row](picture.name).to(scorer.device)
                        scorer.add(row, picture.name, image[None], seconds if row == PREDICTOR else 0.0)
                if controls:
                    for row, image in control_images(x_init.clamp(0, 1), blurry, seed, picture.name):
                        if row in lacking[picture]:
                            scorer.add(row, picture.name, image[None], seconds)
                if not steps:
                    bar.update()
                if wanted[picture]:
                    yield picture.name, blurry, prediction[0], wanted[picture]

        for size, group in itertools.groupby(mine, key=lambda p: p.size):
            planned = max(1, samples * sum(p.size == size for p in pictures))
            slots = min(planned, restorer.slots(size)) if restorer else 1
            scorer = _Scorer(metrics, journal, slots, restorer.device if restorer else "cpu")
            waiting = cases(group, scorer)
            for name, setting, images, seconds in restorer.refine(waiting, slots, bar.update) if restorer else waiting:
                scorer.add(key(setting), name, images, scorer.predictor_seconds(name) + seconds)
            scorer.flush()


def _timed(function: Callable[[Tensor], Tensor], blurry: Tensor) -> tuple[Tensor, float]:
    def now() -> float:
        if blurry.is_cuda:
            torch.cuda.synchronize(blurry.device)
        return time.perf_counter()

    start = now()
    result = function(blurry)
    return result, now() - start


@dataclass
class _Open:
    """A picture whose rows are being restored and scored; `rows` is how many are still to come."""

    blurry: Tensor
    sharp: Tensor
    seconds: float
    rows: int


class _Scorer:
    """Scores restored pictures of one size in batches of `slots` and writes the scores into the journal."""

    def __init__(self, metrics: Mapping[str, Metric], journal: Journal, slots: int, device: torch.device | str):
        self.metrics = {name: metric for name, metric in metrics.items() if not metric.is_set}
        self.kinds = _feature_kinds(metrics)
        self.journal, self.slots, self.device = journal, slots, device
        self._open: dict[str, _Open] = {}
        self._queue: list[tuple[str, str, Tensor, float]] = []

    def open(self, name: str, blurry: Tensor, sharp: Tensor, seconds: float, rows: int) -> None:
        """Make a picture known, with the predictor's seconds and the number of rows that `add` will bring."""
        self._open[name] = _Open(blurry, sharp, seconds, rows)

    def predictor_seconds(self, name: str) -> float:
        return self._open[name].seconds

    def add(self, row: str, name: str, images: Tensor, seconds: float) -> None:
        """One row of a picture: its samples (K, 3, H, W)."""
        self._queue.append((row, name, images, seconds))
        if sum(len(images) for _, _, images, _ in self._queue) >= self.slots:
            self.flush()

    def flush(self) -> None:
        """Score what waits."""
        queue, self._queue = self._queue, []
        flat = [(entry, image) for entry in queue for image in entry[2]]
        results = []
        for start in range(0, len(flat), self.slots):
            results += self._score(flat[start : start + self.slots])
        for row, name, images, seconds in queue:
            own, results = results[: len(images)], results[len(images) :]
            values, missing = {}, {}
            for metric in self.metrics:
                reasons = [reason for _, reason in (one[metric] for one in own) if reason is not None]
                values[metric] = None if reasons else sum(one[metric][0] for one in own) / len(own)
                if reasons:
                    missing[metric] = reasons[0]
            features = {}
            for kind, function in self.kinds.items():
                try:
                    features[kind] = function(images[:1])[0].cpu().numpy()
                except MetricError as error:
                    missing[kind] = str(error)
            self.journal.add(Score(row, name, seconds, values, missing), features)
            self._open[name].rows -= 1
            if not self._open[name].rows:
                del self._open[name]

    def _score(self, flat: list) -> list[dict[str, tuple[float | None, str | None]]]:
        """metric -> (value, None) or (None, reason), for at most `slots` pictures."""
        filled = flat + flat[:1] * (self.slots - len(flat))
        names = [entry[1] for entry, _ in filled]
        opened = [self._open[name] for name in names]
        batch = [torch.stack(pictures) for pictures in ([x for _, x in filled], [o.sharp for o in opened])]
        blurry = torch.stack([o.blurry for o in opened])
        scored = [{} for _ in flat]
        for name, metric in self.metrics.items():
            results = _call(metric, batch[0], batch[1], blurry, names)
            for at, ((row, *_), _) in enumerate(flat):
                truth = row == SHARP and metric.reference
                scored[at][name] = (None, "it is the truth itself") if truth else results[at]
        return scored


def _call(metric: Metric, restored: Tensor, sharp: Tensor, blurry: Tensor, names: list[str]) -> list[tuple]:
    """(value, None) or (None, reason) for each picture, always in batches of the same size."""

    def values(parts: Sequence[Tensor], names: list[str]) -> list[float]:
        extra = {"blurry": parts[2], "names": names} if metric.extra else {}
        return metric(parts[0], parts[1], **extra).tolist()

    parts = [restored, sharp, blurry]
    try:
        return [(value, None) for value in values(parts, names)]
    except MetricError:  # of one of the pictures; which one?
        found = []
        for at in range(len(names)):
            try:
                copies = [part[at].expand_as(part) for part in parts]
                found.append((values(copies, names[at : at + 1] * len(names))[0], None))
            except MetricError as error:
                found.append((None, str(error)))
        return found


def _feature_kinds(metrics: Mapping[str, Metric]) -> dict[str, Callable[[Tensor], Tensor]]:
    """The different feature extractors of the set metrics, each under the name of the first metric that uses it."""
    kinds = {}
    for name, metric in metrics.items():
        if metric.is_set and metric.features not in kinds.values():
            kinds[name] = metric.features
    return kinds


def summarise(
    outcome: Outcome,
    names: Sequence[str],
    settings: Sequence[Any],
    metrics: Mapping[str, Metric],
    journal: Journal,
    seed: int = 0,
    outputs: Sequence[str] = (),
) -> list[Row]:
    """One row a setting, after those of blurry, predictor, sharp, controls and `outputs`: means and intervals.

    A metric's mean is over the pictures that the metric can score at all, which are those where it scored the blurry
    picture. A setting that lacks one of them has no mean, since a mean over fewer pictures cannot be compared.

    Args:
        outcome: from `run_grid`, which was given `settings`, `metrics`, `journal` and `outputs`.
        names: of the pictures.
        seed: of the bootstrap.
    """
    scores = outcome.scores
    kinds = {label: {} for label in (BLURRY, PREDICTOR, SHARP, *CONTROLS, *outputs)}
    rows = {label: (label, fields) for label, fields in kinds.items() if (label, names[0]) in scores}
    for label, setting in zip(label_settings(settings), settings, strict=True):
        rows[label] = key(setting), dataclasses.asdict(setting)
    images = {label: [name for name in names if (row, name) in scores] for label, (row, _) in rows.items()}
    columns: dict[str, dict[str, Estimate]] = {label: {} for label in rows}
    differences: dict[str, dict[str, Estimate]] = {label: {} for label in rows}
    missing: dict[str, dict[str, str]] = {label: {} for label in rows}
    for metric in metrics:
        if metrics[metric].is_set:
            _set_metric(metric, metrics, scores, rows, images, journal, columns, differences, missing)
            continue
        scored = {name for name in images[BLURRY] if scores[BLURRY, name].metrics[metric] is not None}
        tables: dict[tuple[str, ...], dict[str, list[float]]] = {}
        for label, (row, _) in rows.items():
            own = [scores[row, name] for name in images[label]]
            lacking = [score for score in own if score.metrics[metric] is None]
            values = [score.metrics[metric] for score in own if score.image in scored]
            if lacking:
                reason = lacking[0].missing[metric]
                missing[label][metric] = f"{len(lacking)} of {len(own)} images, first {lacking[0].image}: {reason}"
            if values and None not in values:
                chosen = tuple(score.image for score in own if score.image in scored)
                tables.setdefault(chosen, {})[label] = values
        for chosen, own in tables.items():
            whole = np.array(list(own.values())).T
            columns_of = dict(zip(own, estimates(whole, seed), strict=True))
            for label, estimate in columns_of.items():
                columns[label][metric] = estimate
            base = [scores[PREDICTOR, name].metrics[metric] for name in chosen] if PREDICTOR in rows else [None]
            compared = [label for label in own if label not in (PREDICTOR, SHARP)]
            if None not in base and compared:
                pairs = whole[:, [list(own).index(label) for label in compared]] - np.array(base)[:, None]
                for label, estimate in zip(compared, estimates(pairs, seed), strict=True):
                    differences[label][metric] = estimate
    return [
        Row(
            label,
            fields,
            len(images[label]),
            sum(scores[row, name].seconds for name in images[label]) / len(images[label]),
            {metric: columns[label][metric].mean if metric in columns[label] else None for metric in metrics},
            missing[label],
            columns[label],
            differences[label],
            outcome.dropped.get(label),
            _verdict(row, images[label], scores, seed) if fields else None,
        )
        for label, (row, fields) in rows.items()
    ]


def _verdict(row: str, images: Sequence[str], scores: Mapping[tuple[str, str], Score], seed: int) -> Verdict:
    """The setting `row` beside the controls, on the images whose prediction has an LPIPS."""

    def place(row: str, image: str) -> tuple[float | None, float | None]:
        found = scores[row, image].metrics
        return found.get("psnr"), found.get("lpips")

    scored = [image for image in images if None not in place(PREDICTOR, image)]
    if not scored:
        return Verdict(None, {}, "LPIPS is missing")
    own = [place(row, image) for image in scored]
    if any(None in point for point in own):
        return Verdict(None, {}, "its LPIPS is missing for an image")
    curves = {
        control: [[place(label, image) for label in (PREDICTOR, *labels)] for image in scored]
        for control, labels in LABELS.items()
    }
    return judge(own, curves, seed)


def _set_metric(name, metrics, scores, rows, images, journal, columns, differences, missing) -> None:
    """Fill in a metric of all pictures together."""
    metric = metrics[name]
    kind = next(kind for kind, function in _feature_kinds(metrics).items() if function == metric.features)
    for label, (row, _) in rows.items():
        lacking = [scores[row, image] for image in images[label] if kind in scores[row, image].missing]
        if lacking:
            missing[label][name] = f"{len(lacking)} images, first {lacking[0].image}: {lacking[0].missing[kind]}"
        elif label != SHARP:
            ours, truth = (
                torch.from_numpy(np.stack([journal.features(kind, which, image) for image in images[label]]))
                for which in (row, SHARP)
            )
            try:
                columns[label][name] = Estimate(metric.distance(ours, truth), None, None, len(images[label]))
                missing[label][name] = NO_INTERVAL
            except MetricError as error:
                missing[label][name] = str(error)
    for label in rows:
        if label not in (PREDICTOR, SHARP) and name in columns[label] and name in columns.get(PREDICTOR, {}):
            difference = columns[label][name].mean - columns[PREDICTOR][name].mean
            differences[label][name] = Estimate(difference, None, None, columns[label][name].n)


def perception_metric(rows: Sequence[Row]) -> str:
    """The metric of the perception axis: lpips, or ssim where LPIPS is missing."""
    return "lpips" if any(row.metrics.get("lpips") is not None for row in rows) else "ssim"


def pareto_front(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other row beats on both axes, by rising PSNR; controls and dropped rows are on no front.

    The axes are PSNR, higher is better, and the perception metric (LPIPS, lower is better, or SSIM, higher is better).
    """
    metric = perception_metric(rows)
    sign = 1 if metric == "ssim" else -1
    points = [
        (row.metrics["psnr"], sign * row.metrics[metric], row)
        for row in rows
        if row.metrics["psnr"] is not None
        and row.metrics[metric] is not None
        and row.dropped is None
        and row.label not in CONTROLS
    ]
    front = [
        (x, y, row) for x, y, row in points if not any(a >= x and b >= y and (a, b) != (x, y) for a, b, _ in points)
    ]
    return [row for _, _, row in sorted(front, key=lambda point: (point[0], -point[1]))]


def best_sample(rows: Sequence[Row]) -> Row | None:
    """The setting with the best LPIPS, or the best PSNR where LPIPS is missing; None if no setting was scored."""
    rows = [row for row in rows if row.dropped is None]
    lpips = [row for row in rows if row.settings and row.metrics.get("lpips") is not None]
    if lpips:
        return min(lpips, key=lambda row: row.metrics["lpips"])
    psnr = [row for row in rows if row.settings and row.metrics["psnr"] is not None]
    return max(psnr, key=lambda row: row.metrics["psnr"], default=None)


def choose_presets(rows: Sequence[Row]) -> dict[str, Row]:
    """faithful: the setting with the best PSNR; vivid: the best perception; balanced: the knee between them.

    The knee is the setting on the settings' own front that lies farthest beyond the straight line from faithful to
    vivid, both axes scaled so that these two are one apart. Empty where no setting has both scores.
    """
    front = pareto_front([row for row in rows if row.settings])
    if not front:
        return {}
    vivid, faithful = front[0], front[-1]
    metric = perception_metric(rows)

    def beyond(row: Row) -> float:
        def part(name: str) -> float:  # 0 at the worse end, 1 at the better one
            worst, best = (vivid, faithful) if name == "psnr" else (faithful, vivid)
            gap = best.metrics[name] - worst.metrics[name]
            return (row.metrics[name] - worst.metrics[name]) / gap if gap else 1.0

        return part("psnr") + part(metric)

    return {"faithful": faithful, "balanced": max(front, key=beyond), "vivid": vivid}
