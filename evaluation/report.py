"""Write the report of an evaluation: images that are restored again, the curve, and an HTML page that works offline."""

import base64
import io
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jinja2
from PIL import Image
from torch import Tensor

from deblur.cli import escaped
from deblur.data.files import images
from deblur.draft import Blurry
from deblur.evaluation import controls, statistics
from deblur.evaluation.grid import BLURRY, PREDICTOR, SHARP, Row
from deblur.evaluation.journal import Facts
from deblur.evaluation.metrics import Metric
from deblur.evaluation.pixels import write_png
from deblur.evaluation.plots import curve, panel
from deblur.evaluation.results import Change, signed
from deblur.evaluation.scoring import ImagePair, Plan, steps_of
from deblur.evaluation.statistics import Verdict
from deblur.evaluation.summary import Example, RowSummary, Summary, choose_examples
from deblur.pipeline import Area
from deblur.progress import ProgressBar, counted
from deblur.storage import replacing

PANEL_SAMPLES = 4
PANEL_IMAGES = 2
JPEG_QUALITY = 90  # of the page's images


def keep_examples(plan: Plan, summary: Summary) -> list[Example]:
    """Write the images of `choose_examples` into the folder examples: restored, blurry, predicted and sharp."""
    shutil.rmtree(plan.folder / "examples", ignore_errors=True)
    images_by_name = {escaped(image.name): image for image in plan.images}
    examples = choose_examples(summary)
    again = [e.row.settings for e in examples if (e.row.key, images_by_name[e.image].name) not in plan.kept]
    steps = sum(steps_of([settings]) for settings in again if settings)
    with ProgressBar(total=steps, desc="examples of the front", unit="step", disable=not steps) as bar:
        for number, name in enumerate(sorted({example.image for example in examples})):
            own = [example for example in examples if example.image == name]
            blurry, sharp = images_by_name[name].read()
            predictor = [Row(PREDICTOR)] if plan.pipeline else []
            restored = _restored(plan, images_by_name[name], blurry, [*predictor, *(e.row for e in own)], bar)
            shown = {"blurry": blurry, "sharp": sharp} | {row.label: restored[row.label] for row in predictor}
            files = {kind: f"examples/{number}_{kind}.png" for kind in shown}
            for kind, image in shown.items():
                write_png(plan.folder / files[kind], image)
            for at, example in enumerate(own):
                example.files.update(files | {"restored": f"examples/{number}_{at}.png"})
                write_png(plan.folder / example.files["restored"], restored[example.row.label])
    return examples


def _restored(plan: Plan, image: ImagePair, blurry: Tensor, rows: Sequence[Row], bar: ProgressBar) -> dict[str, Tensor]:
    """The image (3, H, W) of rows by their labels: as it was scored if that was kept, else restored again."""
    kept = {row.label: plan.kept[row.key, image.name] / 255 for row in rows if (row.key, image.name) in plan.kept}
    blurry, drafts = Blurry(blurry[None].to(plan.device)), {}
    for row in (row for row in rows if row.label not in kept):
        if row.label in plan.outputs:
            kept[row.label] = images.read(plan.outputs[row.label][image.name])
            continue
        stages = row.settings and row.settings.stages
        if stages not in drafts:
            drafts[stages] = plan.pipeline.draft(blurry, stages)
        kept[row.label] = drafts[stages].predictions[0]
        if row.settings:
            samples = plan.pipeline.sample(drafts[stages], row.settings, plan.seed, [image.name], counted(bar, 1))
            [output] = drafts[stages].restored(samples, [row.settings])
            kept[row.label] = output.images[0]
    return kept


def write_panel(plan: Plan, summary: Summary, path: Path) -> None:
    """Write a panel of a few images at the most perceptual setting: samples, their mean and standard deviation."""
    best = summary.presets.get("perceptual")
    if best is None:
        return
    setting = replace(best.settings, num_samples=PANEL_SAMPLES, average=False)
    count = min(PANEL_IMAGES, len(plan.images))
    rows = []
    with ProgressBar(total=count * steps_of([setting]), desc="panel", unit="step") as bar:
        for image in (plan.images[k * len(plan.images) // PANEL_IMAGES] for k in range(count)):
            blurry, sharp = image.read()
            steps = counted(bar, 1)
            out = plan.pipeline.restore(
                blurry[None].to(plan.device), setting, plan.seed, [image.name], steps, area=Area(scale=1.0)
            )
            rows.append((blurry, out.predictions[0], out.images[0], out.images.mean(0), out.std[0], sharp))
    names = ("blurry", "prediction", "sample", "mean of samples", "std", "sharp")
    panel(dict(zip(names, zip(*rows, strict=True), strict=True)), path)


def write_report(folder: Path, summary: Summary, examples: Sequence[Example]) -> None:
    """Write pareto.png and report.html; the examples' images are in the folder.

    report.html loads nothing from elsewhere: the typical image by the best rows, the curve, a sortable table, a slider
    between two images, the recipe of every metric and what the numbers depend on. Its images are JPEG; the original
    images stay in the folder.
    """
    with replacing(folder / "pareto.png") as part:
        curve({"": summary}).savefig(part)
    entries = [_entry(example, summary, example.files) for example in examples]
    chosen = summary.presets.get("balanced")
    shown = _shown(entries, folder, chosen and chosen.label)
    checkpoint = summary.facts.get("checkpoint")
    title = "Evaluation of " + (checkpoint["name"] if checkpoint else "images")
    _write(folder, summary, shown, title=title, facts=summary.facts, overview=_overview(summary, examples))


def _overview(summary: Summary, examples: Sequence[Example]) -> list[dict]:
    """The typical image in columns: blurry, by the best rows and sharp, each with its file and scores."""
    own = [example for example in examples if example.image == summary.typical]
    if not own:
        return []
    files = {example.row.label: example.files["restored"] for example in own} | own[0].files
    titles: dict[str, list[str]] = {}
    for name, row in summary.best.items():
        titles.setdefault(row.label, []).append(summary.metrics[name].column.title.partition(" (")[0])
    columns = [(BLURRY, "Blurry")]
    columns += [(label, f"Best by {' and '.join(names)}: {label}") for label, names in titles.items()]
    columns += [(SHARP, "Sharp")]
    rows = {row.label: row for row in summary.rows}
    overview = []
    for label, title in columns:
        scores = summary.scores_of(rows[label], summary.typical) if label != SHARP else {}
        words = []
        for name in ("psnr", summary.perception):
            column = summary.metrics[name].column
            if name in scores:
                words.append(f"{column.title.partition(' (')[0]} {scores[name]:.{column.digits}f}")
        overview.append({"title": title, "file": files[label], "scores": ", ".join(words)})
    return overview


def write_joint_report(
    folder: Path,
    evaluations: Mapping[str, tuple[Summary, Sequence[Example]]],
    changes: Mapping[str, Mapping[str, Change]],
) -> None:
    """Write pareto.png, with both curves, and one report.html about two evaluations.

    The page has the curves, B - A, and a slider between the images of A and B.

    Args:
        folder: of the page.
        evaluations: the results of A and of B and their examples, by the names of their folders within `folder`.
        changes: setting -> metric -> change.
    """
    entries: dict[tuple[str, str], dict] = {}
    for letter, (summary, examples) in evaluations.items():
        for example in examples:
            files = {kind: f"{letter}/{file}" for kind, file in example.files.items()}
            files |= {f"{letter}, {kind}": files.pop(kind) for kind in ("predictor", "restored")}
            new = _entry(example, summary, files, f" in {letter}")
            entry = entries.setdefault((example.row.label, example.image), new)
            if entry is not new:
                entry["rank"] += f", {new['rank']}"
                entry["about"] += f"; {new['about']}"
                entry["files"] |= files
    names = {letter: summary.facts["checkpoint"]["name"] for letter, (summary, _) in evaluations.items()}
    summary, shown = evaluations["A"][0], _shown(list(entries.values()), folder, None)
    facts = dict(summary.facts) | {"checkpoint": names}
    with replacing(folder / "pareto.png") as part:
        curve({letter: summary for letter, (summary, _) in evaluations.items()}).savefig(part)
    _write(folder, summary, shown, title="A and B compared", facts=facts, changes=changes)


def _entry(example: Example, summary: Summary, files: dict[str, str], where: str = "") -> dict:
    """A group of images that the slider shows, as files by kind, and what is said about it."""
    scores = [(summary.metrics[name].column, value) for name, value in example.scores.items()]
    words = ", ".join(f"{column.title} {value:.{column.digits}f}" for column, value in scores)
    setting, image = example.row.label, example.image
    about = f"{image}, the {example.rank} of {setting}{where}: {words}"
    return {"setting": setting, "image": image, "rank": example.rank + where, "about": about, "files": files}


def _write(
    folder: Path,
    summary: Summary,
    shown: dict,
    title: str,
    facts: Facts,
    changes: Mapping[str, Mapping[str, Change]] | None = None,
    overview: Sequence[dict] = (),
) -> None:
    """Write the page about pareto.png; with `changes` its table has B - A in place of the summary's rows."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["listed"] = _listed
    sides = ("A, restored", "B, restored") if changes else ("blurry", "restored")
    page = templates.get_template("report.html").render(
        title=title,
        facts=facts,
        summary=summary,
        changes=changes,
        curve=base64.b64encode((folder / "pareto.png").read_bytes()).decode(),
        shown=shown | dict(zip(("left", "right"), sides, strict=True)),
        rows=_score_rows(summary) if changes is None else _change_rows(summary, changes),
        overview=overview,
        worsened=list(summary.worsened.itertuples(name=None)) if changes is None else [],
        recipes=controls.RECIPES | {"perceptual": statistics.VERDICT_RECIPE},
    )
    with replacing(folder / "report.html") as part:
        part.write_text(page, encoding="utf-8")


class Cell(NamedTuple):
    """A cell of the page's table.

    Attributes:
        value: what its column is sorted by; empty: it comes last.
        text: its content.
        notes: in small print beneath it, each with its class.
        hint: shown where the pointer rests.
    """

    value: float | str
    text: str
    notes: Sequence[tuple[str, str]] = ()
    hint: str = ""


def _score_rows(summary: Summary) -> list[dict]:
    """The table's rows of an evaluation; those that are no settings keep their order, before all settings."""
    rows = []
    for at, row in enumerate(summary.rows):
        cells = [Cell(row.images, str(row.images))]
        cells += [_score_cell(row, name, metric) for name, metric in summary.metrics.items()]
        cells += [_verdict_cell(row.verdict)] if summary.has_verdicts else []
        badges = summary.preset_names.get(row.label)
        rows.append(
            {
                "label": row.label,
                "value": row.label if row.settings else f" {at:03d}",
                "badges": badges.split(", ") if badges else [],
                "is_on_front": row in summary.front,
                "cells": [*cells, Cell(row.seconds, f"{row.seconds:.3f}")],
            }
        )
    return rows


def _score_cell(row: RowSummary, name: str, metric: Metric) -> Cell:
    """A mean with its interval, and the paired difference with its own."""
    entry, gap, digits = row.estimates.get(name), row.differences.get(name), metric.column.digits
    missing = row.missing.get(name)
    if entry is None:
        return Cell("", "–", hint=missing or metric.reason or "no value for this row")
    if math.isinf(entry.mean):
        return Cell("Infinity", "∞", [("", missing)] if missing else [])
    notes = []
    if entry.low is not None:
        notes.append(("interval", f"{entry.low:.{digits}f} to {entry.high:.{digits}f}"))
    if gap is not None and math.isfinite(gap.mean):
        notes.append(("difference", signed(gap, digits)))
    if missing:
        notes.append(("", missing))
    return Cell(entry.mean, f"{entry.mean:.{digits}f}", notes)


def _verdict_cell(verdict: Verdict | None) -> Cell:
    """Whether a setting is perceptual, and its LPIPS minus that of each control."""
    if verdict is None:
        return Cell("", "")
    notes = [("", verdict.missing)] if verdict.missing else []
    notes += [("", f"{control} {signed(gap, 4)}") for control, gap in verdict.differences.items()]
    order = {"yes": 0, "unclear": 1, "no": 2, "unknown": ""}
    return Cell(order[verdict.perceptual], verdict.perceptual, notes)


def _change_rows(summary: Summary, changes: Mapping[str, Mapping[str, Change]]) -> list[dict]:
    """The table's rows of two evaluations."""
    rows = []
    for setting, own in changes.items():
        images = max(change.estimate.n for change in own.values())
        cells = [Cell(images, str(images))]
        for name, metric in summary.metrics.items():
            change, digits = own.get(name), metric.column.digits
            if change is None:
                cells.append(Cell("", ""))
                continue
            means = f"{change.a:.{digits}f} to {change.b:.{digits}f}"
            cells.append(Cell(change.estimate.mean, signed(change.estimate, digits), [("", means)]))
        rows.append({"label": setting, "value": setting, "badges": [], "is_on_front": False, "cells": cells})
    return rows


def _listed(value: Facts) -> str:
    """Several facts as text."""
    return ", ".join(f"{key} {fact}" for key, fact in value.items() if fact is not None)


def _shown(entries: Sequence[dict], folder: Path, first: str | None) -> dict:
    """Data for the page's script: the images as JPEG, the entries that use them, and the setting to show first."""
    files = list(dict.fromkeys(file for entry in entries for file in entry["files"].values()))
    examples = []
    for entry in entries:
        with Image.open(folder / next(iter(entry["files"].values())), formats=["PNG"]) as image:
            size = {"width": image.width, "height": image.height}
        examples.append(entry | size | {"files": {kind: files.index(f) for kind, f in entry["files"].items()}})
    uris = ["data:image/jpeg;base64," + base64.b64encode(_jpeg(folder / file)).decode() for file in files]
    settings = [entry["setting"] for entry in entries]
    if first not in settings:
        first = next(iter(settings), None)
    return {"images": uris, "files": files, "examples": examples, "first": first, "quality": JPEG_QUALITY}


def _jpeg(path: Path) -> bytes:
    buffer = io.BytesIO()
    with Image.open(path, formats=["PNG"]) as image:
        image.convert("RGB").save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()
