"""What people look at after an evaluation: the curve, the panels, and one page that opens offline."""

import base64
import html
import io
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from evaluation.journal import whole_file
from evaluation.plots import panel_of_files, plot_curve

_TEMPLATE = Path(__file__).with_name("report.html")
_MOST_BYTES = 24_000_000  # of pictures within the page
_QUALITIES = (95, 85, 70, 50)
_FACTS = {
    "command": "command",
    "checkpoint": "checkpoint",
    "data": "data",
    "grid": "grid",
    "seed": "seed",
    "device": "device",
    "precision": "precision",
    "git_commit": "commit",
    "versions": "versions",
}
_COMPARISON = """<section aria-labelledby="compare">
<h2 id="compare">Compare</h2>
<p>The best, the median and the worst picture of each setting on the front. Drag the handle or use the slider beneath;
drag the picture to move it; zoom with the buttons, Ctrl and the wheel, a double click, or + and &minus;. {note}</p>
<div class="controls">
<label>setting <select id="setting"></select></label>
<label>picture <select id="picture"></select></label>
<label>left <select id="left"></select></label>
<label>right <select id="right"></select></label>
<button id="out" aria-label="zoom out">&minus;</button>
<button id="in" aria-label="zoom in">+</button>
<button id="whole">whole</button>
<span id="zoom" class="soft" role="status">100 %</span>
</div>
<div id="view" tabindex="0" role="group"
 aria-label="Two pictures, one beside the other; arrow keys move, plus and minus zoom">
<div class="layer"><img id="image-a" alt="" draggable="false"></div>
<div class="layer" id="clip"><img id="image-b" alt="" draggable="false"></div>
<div id="line"><div id="grip" aria-hidden="true">&#8596;</div></div>
<span class="tag" id="tag-a"></span><span class="tag" id="tag-b"></span>
</div>
<input type="range" id="where" min="0" max="100" step="0.1" value="50" aria-label="where the left picture ends">
<p id="about" class="soft"></p>
</section>"""


def write_report(folder: str | Path) -> list[Path]:
    """Write pareto.png, panels/*.png and report.html out of the results in a folder.

    report.html holds its pictures and fetches nothing: a table that sorts, the curve, a slider between two
    pictures, the recipe of every metric and what the numbers depend on. Its pictures are JPEG, together at most
    24 MB; the pictures themselves stay in the folder.

    Args:
        folder: with results.json and the pictures that it names, as `evaluate.py` writes them.

    Returns:
        The files that were written.

    Raises:
        ValueError: the folder has no results.json, or it is not one of evaluate.py.
    """
    folder = Path(folder)
    document = _read(folder / "results.json")
    paths = [folder / "pareto.png"]
    plot_curve(document, paths[0])
    for number, setting in enumerate(dict.fromkeys(entry["setting"] for entry in document["pictures"])):
        own = [entry for entry in document["pictures"] if entry["setting"] == setting]
        (folder / "panels").mkdir(exist_ok=True)
        paths.append(folder / "panels" / f"{number}_{re.sub(r'[^A-Za-z0-9.=+-]+', '_', setting)}.png")
        panel_of_files(own, folder, paths[-1])
    paths.append(folder / "report.html")
    with whole_file(paths[-1]) as part:
        part.write_text(_page(document, folder), encoding="utf-8")
    return paths


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not all(document[key] for key in ("rows", "metrics", "axes", "controls")) or "pictures" not in document:
            raise KeyError("rows")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; run evaluate.py first.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not hold the results of evaluate.py.") from error
    return document


def _page(document: dict[str, Any], folder: Path) -> str:
    title = "Evaluation of " + (document["checkpoint"]["name"] if document.get("checkpoint") else "pictures")
    images = max(row["images"] for row in document["rows"])
    data = document.get("data") or {}
    where = f" of {data['root']} ({data['split']})" if {"root", "split"} <= data.keys() else ""
    shown, comparison = _comparison(document, folder)
    perception = document["metrics"][document["axes"]["perception"]]["title"]
    replaced = {
        "title": html.escape(title),
        "summary": html.escape(f"{len(document['rows'])} rows, {images} image{'s' if images != 1 else ''}{where}."),
        "curve": "data:image/png;base64," + base64.b64encode((folder / "pareto.png").read_bytes()).decode(),
        "curve_alt": html.escape(
            f"Every setting by its PSNR, to the right, and its {perception}, upwards to the better, with 95 percent "
            "intervals and the Pareto front; the same numbers stand in the table."
        ),
        "statistics": html.escape(_sentence(document.get("statistics"))),
        "head": _head(document["metrics"]),
        "body": "\n".join(_line(row, document["metrics"], n) for n, row in enumerate(document["rows"])),
        "comparison": comparison,
        "recipes": "\n".join(
            f'<tr><th scope="row">{html.escape(metric["title"])}</th>'
            f"<td>{html.escape(metric['recipe'] or metric['reason'])}</td></tr>"
            for metric in document["metrics"].values()
        )
        + "\n".join(
            f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(recipe)}</td></tr>'
            for name, recipe in {
                **document["controls"]["recipes"],
                "perceptual": document["controls"]["verdict"],
            }.items()
        ),
        "facts": "".join(
            f"<dt>{word}</dt><dd>{_fact(document[key])}</dd>"
            for key, word in _FACTS.items()
            if document.get(key) is not None
        ),
        # In a script element only its own end tag is special.
        "data": json.dumps(shown).replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: replaced[match[1]], _TEMPLATE.read_text(encoding="utf-8"))


def _sentence(text: str | None) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}." if text else ""


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return html.escape(", ".join(f"{key} {own}" for key, own in value.items() if own is not None))
    return f"<code>{html.escape(str(value))}</code>"


def _head(metrics: Mapping[str, Any]) -> str:
    columns = [("setting", "", "ascending"), ("images", "number", "descending")]
    for metric in metrics.values():
        up = metric["higher_is_better"]
        columns.append((metric["title"] + (" ▲" if up else " ▼"), "number", "descending" if up else "ascending"))
    columns.append(("perceptual", "number", "ascending"))
    columns.append(("seconds an image ▼", "number", "ascending"))
    return "".join(
        f'<th scope="col" class="{kind}" data-first="{first}"><button type="button">{html.escape(name)}</button></th>'
        for name, kind, first in columns
    )


def _line(row: Mapping[str, Any], metrics: Mapping[str, Any], number: int) -> str:
    badges = [name for name in (row["preset"] or "").split(", ") if name]
    if row["dropped"]:
        badges.append("dropped")
    names = "".join(f'<span class="badge">{html.escape(badge)}</span>' for badge in badges)
    note = f"<small>{html.escape(row['dropped'])}</small>" if row["dropped"] else ""
    kind = "front" if row["front"] else "dropped" if row["dropped"] else ""
    # The rows that are no settings stay in their order, before all settings.
    place = row["setting"] if row["fields"] else f" {number:03}"
    cells = [f'<th scope="row" data-value="{html.escape(place)}">{html.escape(row["setting"])}{names}{note}</th>']
    cells.append(f'<td class="number" data-value="{row["images"]}">{row["images"]}</td>')
    for name, metric in metrics.items():
        cells.append(_cell(row["metrics"].get(name) or {}, _digits(name, metric), metric["reason"]))
    cells.append(_verdict(row["verdict"]))
    cells.append(f'<td class="number" data-value="{row["seconds"]}">{row["seconds"]:.3f}</td>')
    return f'<tr class="{kind}">{"".join(cells)}</tr>'


def _verdict(verdict: Mapping[str, Any] | None) -> str:
    """Whether a setting is perceptual, with its LPIPS minus each control's at equal PSNR."""
    if verdict is None:
        return '<td class="number" data-value=""></td>'
    word = verdict["perceptual"]
    text = word or f'<abbr title="{html.escape(verdict["missing"])}">–</abbr>'
    for control, entry in verdict["differences"].items():
        interval = "" if entry["low"] is None else f" ({entry['low']:+.4f} to {entry['high']:+.4f})"
        text += f"<small>{html.escape(control)} {entry['mean']:+.4f}{interval}</small>"
    place = ("yes", "unclear", "no").index(word) if word else ""
    return f'<td class="number" data-value="{place}">{text}</td>'


def _digits(name: str, metric: Mapping[str, Any]) -> int:
    return 2 if "dB" in metric["title"] or name == "fid" else 4


def _cell(entry: Mapping[str, Any], digits: int, reason: str | None) -> str:
    mean = entry.get("mean")
    if mean is None:
        why = html.escape(entry.get("missing") or reason or "no value for this row")
        return f'<td class="number" data-value=""><abbr title="{why}">–</abbr></td>'

    def written(value: float | str, sign: str = "") -> str:
        return "∞" if value == "inf" else f"{value:{sign}.{digits}f}"

    text = written(mean)
    if entry.get("low") is not None:
        text += f'<small class="interval">{written(entry["low"])} to {written(entry["high"])}</small>'
    if _finite(entry.get("difference")):
        interval = ""
        if _finite(entry.get("difference_low")):
            interval = f" ({written(entry['difference_low'], '+')} to {written(entry['difference_high'], '+')})"
        text += f'<small class="difference">{written(entry["difference"], "+")}{interval}</small>'
    if entry.get("missing"):
        text += f"<small>{html.escape(entry['missing'])}</small>"
    value = "Infinity" if mean == "inf" else mean
    return f'<td class="number" data-value="{value}">{text}</td>'


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _comparison(document: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], str]:
    """The pictures for the page's script, and the section that shows them; empty where there are none."""
    entries, metrics = document["pictures"], document["metrics"]
    files = list(dict.fromkeys(file for entry in entries for file in entry["files"].values()))
    if not files:
        return {"images": [], "pictures": [], "first": None}, ""
    for quality in _QUALITIES:
        images = [_jpeg(folder / file, quality) for file in files]
        total = sum(map(len, images))
        if total <= _MOST_BYTES:
            break
    kept = 0
    while kept < len(entries):  # the first so many entries whose pictures fit together
        used = {file for entry in entries[: kept + 1] for file in entry["files"].values()}
        if sum(len(images[files.index(file)]) for file in used) > _MOST_BYTES:
            break
        kept += 1
    note = f"Here they are JPEG of quality {quality}; the pictures themselves are in the folder."
    if kept < len(entries):
        note += f" The last {len(entries) - kept} of {len(entries)} did not fit into this page and are only there."
    shown = []
    for entry in entries[:kept]:
        with Image.open(folder / next(iter(entry["files"].values()))) as picture:
            width, height = picture.size
        scores = ", ".join(
            f"{metrics[name]['title']} {'∞' if value == 'inf' else format(value, f'.{_digits(name, metrics[name])}f')}"
            for name, value in entry["scores"].items()
            if value is not None
        )
        shown.append(
            {
                "setting": entry["setting"],
                "image": entry["image"],
                "rank": entry["rank"],
                "about": f"{entry['image']}, the {entry['rank']} of {entry['setting']}: {scores}",
                "width": width,
                "height": height,
                "files": {kind: files.index(file) for kind, file in entry["files"].items()},
            }
        )
    used = {index for entry in shown for index in entry["files"].values()}
    uris = [
        "data:image/jpeg;base64," + base64.b64encode(image).decode() if index in used else ""
        for index, image in enumerate(images)
    ]
    presets = {row["setting"]: row["preset"] or "" for row in document["rows"]}
    balanced = [entry["setting"] for entry in shown if "balanced" in presets.get(entry["setting"], "")]
    first = balanced[0] if balanced else shown[0]["setting"] if shown else None
    section = _COMPARISON.format(note=html.escape(note)) if shown else ""
    return {"images": uris, "pictures": shown, "first": first}, section


def _jpeg(path: Path, quality: int) -> bytes:
    buffer = io.BytesIO()
    with Image.open(path) as picture:
        picture.convert("RGB").save(buffer, "JPEG", quality=quality, subsampling=0)
    return buffer.getvalue()
