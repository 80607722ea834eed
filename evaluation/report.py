"""Write the report of an evaluation: the curve, the panels, and an HTML page that works offline."""

import base64
import io
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from PIL import Image

from base.files import replacing
from evaluation.panels import panel_of_files
from evaluation.plots import curve

_QUALITY = 90  # of the page's JPEG images


def write_report(folder: str | Path) -> list[Path]:
    """Write pareto.png, panels/*.png and report.html from the results in a folder.

    report.html loads nothing from elsewhere: a sortable table, the curve, a slider between two images, the recipe of
    every metric and what the numbers depend on. Its images are JPEG; the original images stay in the folder.

    Raises:
        ValueError: the folder has no results.json, or it was not written by evaluate.py.
    """
    folder = Path(folder)
    document = read_results(folder)
    paths = [folder / "pareto.png"]
    with replacing(paths[0]) as part:
        curve(document).savefig(part)
    for number, setting in enumerate(dict.fromkeys(entry["setting"] for entry in document["examples"])):
        own = [entry for entry in document["examples"] if entry["setting"] == setting]
        (folder / "panels").mkdir(exist_ok=True)
        paths.append(folder / "panels" / f"{number}_{re.sub(r'[^A-Za-z0-9.=+-]+', '_', setting)}.png")
        panel_of_files(own, folder, paths[-1])
    paths.append(folder / "report.html")
    with replacing(paths[-1]) as part:
        part.write_text(_page(document, folder, {"": paths[0]}), encoding="utf-8")
    return paths


def write_joint_report(
    folder: Path, documents: Mapping[str, Mapping[str, Any]], changes: Mapping[str, Mapping[str, Any]]
) -> Path:
    """Write one report.html about two evaluations: both curves, B - A, and a slider between the images of A and B.

    Args:
        folder: of the page, which is returned.
        documents: the contents of results.json of A and of B, by the names of their folders within `folder`.
        changes: setting -> metric -> `evaluation.comparison.Change`.
    """
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for letter, document in documents.items():
        for entry in document["examples"]:
            own = entries.setdefault(
                (entry["setting"], entry["image"]),
                {"setting": entry["setting"], "image": entry["image"], "rank": "", "about": "", "files": {}},
            )
            files = {kind: f"{letter}/{file}" for kind, file in entry["files"].items()}
            own["rank"] += f"{own['rank'] and ', '}{entry['rank']} of {letter}"
            scores = _scores(entry["scores"], document["metrics"])
            own["about"] += f"{own['about'] and '; '}{entry['image']}, the {entry['rank']} of {letter}: {scores}"
            own["files"] = {kind: files[kind] for kind in ("blurry", "sharp")} | own["files"]
            own["files"] |= {f"{letter}, {kind}": files[kind] for kind in ("predictor", "restored")}
    document = dict(next(iter(documents.values()))) | {
        "checkpoint": {letter: document["checkpoint"]["name"] for letter, document in documents.items()},
        "examples": list(entries.values()),
        "changes": changes,
    }
    path = folder / "report.html"
    with replacing(path) as part:
        curves = {letter: folder / letter / "pareto.png" for letter in documents}
        part.write_text(_page(document, folder, curves), encoding="utf-8")
    return path


def read_results(folder: Path) -> dict[str, Any]:
    """The contents of results.json in a folder; ValueError if it is missing or was not written by evaluate.py."""
    path = folder / "results.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not all(document[key] for key in ("rows", "metrics", "axes", "controls")) or "examples" not in document:
            raise KeyError("rows")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; run evaluate.py first.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not hold the results of evaluate.py.") from error
    return document


def _page(document: Mapping[str, Any], folder: Path, curves: Mapping[str, Path]) -> str:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"number": _number, "digits": _digits, "plain": _plain}
    templates.tests["finite"] = lambda value: isinstance(value, int | float) and math.isfinite(value)
    drawn = {name: base64.b64encode(path.read_bytes()).decode() for name, path in curves.items()}
    page = {"changes": None} | dict(document) | {"curves": drawn, "shown": _examples(document, folder)}
    return templates.get_template("report.html").render(page)


def _number(value: float | str, digits: int, sign: str = "") -> str:
    """Format a number of results.json, which holds infinity as a string."""
    return "∞" if value == "inf" else f"{value:{sign}.{digits}f}"


def _digits(metric: Mapping[str, Any]) -> int:
    return 2 if "dB" in metric["title"] else 4


def _plain(value: Any) -> str:
    """A fact of results.json as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {own}" for key, own in value.items() if own is not None)
    return str(value)


def _examples(document: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Data for the page's script: the images as JPEG, and the entries that use them."""
    entries, metrics = document["examples"], document["metrics"]
    files = list(dict.fromkeys(file for entry in entries for file in entry["files"].values()))
    shown = []
    for entry in entries:
        with Image.open(folder / next(iter(entry["files"].values())), formats=["PNG"]) as image:
            width, height = image.size
        about = entry.get("about") or (
            f"{entry['image']}, the {entry['rank']} of {entry['setting']}: {_scores(entry['scores'], metrics)}"
        )
        own = {kind: files.index(file) for kind, file in entry["files"].items()}
        shown.append({**entry, "about": about, "width": width, "height": height, "files": own})
    uris = ["data:image/jpeg;base64," + base64.b64encode(_jpeg(folder / file)).decode() for file in files]
    presets = {row["setting"]: row["preset"] or "" for row in document["rows"]}
    balanced = [entry["setting"] for entry in shown if "balanced" in presets.get(entry["setting"], "")]
    first = next(iter(balanced + [entry["setting"] for entry in shown]), None)
    return {"images": uris, "examples": shown, "first": first, "quality": _QUALITY}


def _scores(scores: Mapping[str, float | str], metrics: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{metrics[name]['title']} {_number(value, _digits(metrics[name]))}" for name, value in scores.items()
    )


def _jpeg(path: Path) -> bytes:
    buffer = io.BytesIO()
    with Image.open(path, formats=["PNG"]) as image:
        image.convert("RGB").save(buffer, "JPEG", quality=_QUALITY, subsampling=0)
    return buffer.getvalue()
