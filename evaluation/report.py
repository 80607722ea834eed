"""Write the report of an evaluation: images that are restored again, the curve, and an HTML page that works offline."""

import base64
import io
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jinja2
from PIL import Image
from torch import Tensor

from deblur.cli import escaped
from deblur.data.files import images
from deblur.draft import Blurry
from deblur.evaluation import controls
from deblur.evaluation.grid import BLURRY, PREDICTOR, Row
from deblur.evaluation.plots import curve, panel
from deblur.evaluation.results import Change, signed
from deblur.evaluation.scoring import ImagePair, Plan, steps_of
from deblur.evaluation.summary import Summary, choose_examples
from deblur.hub import name_of
from deblur.pipeline import Area
from deblur.progress import ProgressBar, counted
from deblur.storage import replacing

PANEL_SAMPLES = 4
PANEL_IMAGES = 2


def keep_examples(plan: Plan, summary: Summary, typical: Iterable[str]) -> None:
    """Write the images of `choose_examples` into the folder examples: restored, blurry, predicted and sharp.

    They become the summary's examples.
    """
    shutil.rmtree(plan.folder / "examples", ignore_errors=True)
    images_by_name = {escaped(image.name): image for image in plan.images}
    examples = choose_examples(summary, typical)
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
                images.write(plan.folder / files[kind], image)
            for at, example in enumerate(own):
                example.files.update(files | {"restored": f"examples/{number}_{at}.png"})
                images.write(plan.folder / example.files["restored"], restored[example.row.label])
    summary.examples.extend(examples)


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
            given = blurry[None].to(plan.device), setting, plan.seed, [image.name], "pt", steps
            out = plan.pipeline(*given, area=Area(scale=1.0))
            rows.append((blurry, out.predictions[0], out.images[0], out.images.mean(0), out.std[0], sharp))
    names = ("blurry", "prediction", "sample", "mean of samples", "std", "sharp")
    panel(dict(zip(names, zip(*rows, strict=True), strict=True)), path)


def write_report(
    folder: Path, summaries: Mapping[str, Summary], changes: Mapping[str, Mapping[str, Change]] | None = None
) -> None:
    """Write pareto.png and report.html about one evaluation, or about two that are compared.

    report.html loads nothing from elsewhere: the typical image by the best rows, the curve, a sortable table, a slider
    between two images, the recipe of every metric and what the numbers depend on. Its images are JPEG; the original
    images stay in the folder.

    Args:
        folder: of the page.
        summaries: of one evaluation, under an empty name; or of A and of B, whose folders within `folder` have these
            names.
        changes: setting -> metric -> change from A to B, which the table shows; None: there is one evaluation.
    """
    with replacing(folder / "pareto.png") as part:
        curve(summaries).savefig(part)
    summary = next(iter(summaries.values()))
    facts, entries = dict(summary.facts), _entries(summaries)
    shown = {"examples": entries, "first": None, "left": "A, restored", "right": "B, restored"}
    shown["images"] = {file: _jpeg(folder / file) for entry in entries for file in entry["files"].values()}
    if changes is None:
        title = "Evaluation of " + (name_of(facts["checkpoint"]["name"]) if facts.get("checkpoint") else "images")
        preset = summary.presets.get("balanced")
        shown |= {"first": preset and preset.label, "left": "blurry", "right": "restored"}
    else:
        title = "A and B compared"
        facts["checkpoint"] = {letter: name_of(own.facts["checkpoint"]["name"]) for letter, own in summaries.items()}
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["signed"] = signed
    page = templates.get_template("report.html").render(
        title=title,
        facts=facts,
        summary=summary,
        changes=changes,
        curve=base64.b64encode((folder / "pareto.png").read_bytes()).decode(),
        shown=shown,
        infinity=math.inf,
        overview=_overview(summaries),
        worsened=list(summary.worsened.itertuples(name=None)) if changes is None else [],
        recipes=controls.RECIPES | {"perceptual": controls.VERDICT_RECIPE},
    )
    with replacing(folder / "report.html") as part:
        part.write_text(page, encoding="utf-8")


def _overview(summaries: Mapping[str, Summary]) -> list[dict]:
    """The typical image of the first in columns: blurry, by the best rows of each and sharp, with files and scores."""
    first, summary = next(iter(summaries.items()))
    own = [example for example in summary.examples if example.image == summary.typical]
    if not own:
        return []
    axes = [(name, summary.metrics[name].column) for name in ("psnr", summary.perception)]
    names = {name: column.short_title for name, column in axes}

    def column(title: str, file: str, scores: Mapping[str, float]) -> dict:
        words = [f"{names[name]} {scores[name]:.{axis.digits}f}" for name, axis in axes if name in scores]
        return {"title": title, "file": file, "scores": ", ".join(words)}

    columns = [column("Blurry", _place(first, own[0].files["blurry"]), summary.scores_of(BLURRY, summary.typical))]
    for letter, each in summaries.items():
        typical = [example for example in each.examples if example.image == summary.typical]
        files = {example.row.label: example.files["restored"] for example in typical}
        for label in dict.fromkeys(row.label for row in each.best.values()):
            best = " and ".join(names[name] for name, row in each.best.items() if row.label == label)
            title = f"{letter}, best by {best}: {label}" if letter else f"Best by {best}: {label}"
            columns.append(column(title, _place(letter, files[label]), each.scores_of(label, summary.typical)))
    return [*columns, column("Sharp", _place(first, own[0].files["sharp"]), {})]


def _place(letter: str, file: str) -> str:
    """A file of an evaluation as it lies below the page's folder."""
    return f"{letter}/{file}" if letter else file


def _entries(summaries: Mapping[str, Summary]) -> list[dict]:
    """What the slider shows of each setting and image: files by kind, and what is said about them."""
    entries: dict[tuple[str, str], dict] = {}
    for letter, summary in summaries.items():
        within = f" in {letter}" if letter else ""
        for example in summary.examples:
            setting, image = example.row.label, example.image
            new = {"setting": setting, "image": image, "ranks": [], "about": [], "files": {}}
            entry = entries.setdefault((setting, image), new)
            scores = [(summary.metrics[name].column, value) for name, value in example.scores.items()]
            words = ", ".join(f"{column.title} {value:.{column.digits}f}" for column, value in scores)
            entry["ranks"].append(f"{example.rank}{within}")
            entry["about"].append(f"the {example.rank} of {setting}{within}: {words}")
            for kind, file in example.files.items():
                is_same = not letter or kind in ("blurry", "sharp")  # in both evaluations
                entry["files"].setdefault(kind if is_same else f"{letter}, {kind}", _place(letter, file))
    return list(entries.values())


def _jpeg(path: Path) -> str:
    buffer = io.BytesIO()
    with Image.open(path, formats=["PNG"]) as image:
        image.convert("RGB").save(buffer, "JPEG", quality=90, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
