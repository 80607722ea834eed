"""Write the report of an evaluation: the curve, and an HTML page that works offline."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
from PIL import Image

from deblur.evaluation import controls
from deblur.evaluation.comparison import Change
from deblur.evaluation.examples import Example
from deblur.evaluation.journal import Facts
from deblur.evaluation.plots import curve
from deblur.evaluation.summary import NOTHING, Summary
from deblur.storage import replacing

_QUALITY = 90  # of the page's JPEG images


def write_report(folder: Path, summary: Summary, examples: Sequence[Example]) -> None:
    """Write pareto.png and report.html; the examples' images are in the folder.

    report.html loads nothing from elsewhere: a sortable table, the curve, a slider between two images, the recipe of
    every metric and what the numbers depend on. Its images are JPEG; the original images stay in the folder.
    """
    with replacing(folder / "pareto.png") as part:
        curve({"": summary}).savefig(part)
    entries = [_entry(example, summary, example.files) for example in examples]
    chosen = summary.presets.get("balanced")
    shown = _shown(entries, folder, chosen and chosen.label)
    checkpoint = summary.facts.get("checkpoint")
    title = "Evaluation of " + (checkpoint["name"] if checkpoint else "images")
    _write(folder, summary, shown, title=title, facts=summary.facts)


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
) -> None:
    """Write the page about pareto.png; with `changes` its table has B - A in place of the summary's rows."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"number": _number, "listed": _listed}
    templates.tests["finite"] = lambda value: value is not None and math.isfinite(value)
    sides = ("A, restored", "B, restored") if changes else ("blurry", "restored")
    page = templates.get_template("report.html").render(
        title=title,
        facts=facts,
        summary=summary,
        changes=changes,
        curve=base64.b64encode((folder / "pareto.png").read_bytes()).decode(),
        shown=shown | dict(zip(("left", "right"), sides, strict=True)),
        nothing=NOTHING,
        recipes=controls.RECIPES | {"perceptual": controls.VERDICT_RECIPE},
    )
    with replacing(folder / "report.html") as part:
        part.write_text(page, encoding="utf-8")


def _number(value: float, digits: int, sign: str = "") -> str:
    return "∞" if math.isinf(value) else f"{value:{sign}.{digits}f}"


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
    return {"images": uris, "examples": examples, "first": first, "quality": _QUALITY}


def _jpeg(path: Path) -> bytes:
    buffer = io.BytesIO()
    with Image.open(path, formats=["PNG"]) as image:
        image.convert("RGB").save(buffer, "JPEG", quality=_QUALITY, subsampling=0)
    return buffer.getvalue()
