"""index.html: a folder's images before and after, the blurriest first, with the slider of an evaluation's report."""

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from base.files import locked, replacing
from data import images
from restoration.manifest import Manifest
from restoration.maps import reduced

COPIES = "index_files"  # the folder of the reduced copies that the page shows
MOST_SHOWN = 1_500_000  # pixels of a copy
ALL, WARNED = "all", "with a warning"


def write_index(folder: Path) -> Path:
    """Write index.html about the images in a folder's manifest whose files still exist, with reduced copies as JPEG.

    Processes that share a folder may each write it; the last one knows all images.

    Raises:
        OSError: the page cannot be written.
    """
    path, rows, copied, examples = folder / "index.html", [], [], []
    with locked(folder / ".index.lock"):
        entries = Manifest(folder, {}).files
        for name, entry in sorted(entries.items(), key=lambda item: -item[1].get("blur", -1.0)):
            if (copies := _copies(folder, Path(name), entry)) is None:
                continue
            warnings, number = entry.get("faults", []), len(rows) + 1
            rows.append({"name": name, "files": entry["written"], "blur": entry.get("blur"), "warnings": warnings})
            files = {kind: len(copied) + k for k, kind in enumerate(("blurry", "restored"))}
            copied += [quote(f"{COPIES}/{file}") for file, _ in copies]
            about = f"{name}: {'; '.join(warnings) or 'no warning'}"
            width, height = copies[0][1]
            example = {"image": name, "rank": str(number), "about": about, "files": files}
            example |= {"width": width, "height": height}
            examples += [example | {"setting": setting} for setting in (ALL, *([WARNED] if warnings else []))]
        examples.sort(key=lambda example: example["setting"] != ALL)  # the page counts the rows of all from 0
        shown = {"images": copied, "examples": examples, "first": ALL, "left": "blurry", "right": "restored"}
        places = [Path(__file__).parent, Path(__file__).parents[1] / "evaluation"]
        templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(places), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
        )
        with replacing(path) as part:
            part.write_text(templates.get_template("index.html").render(rows=rows, shown=shown), encoding="utf-8")
        for copy in (folder / COPIES).glob("*.jpg"):
            if f"{COPIES}/{copy.name}" not in copied:
                copy.unlink(missing_ok=True)
    return path


def _copies(folder: Path, image: Path, entry: dict[str, Any]) -> list[tuple[str, tuple[int, int]]] | None:
    """The names and (width, height) of the reduced copies before and after; None if a file is missing or unreadable."""
    copies = []
    for kind, source in (("before", image), ("after", folder / entry["written"][0])):
        try:
            status = source.stat()
            mark = hashlib.sha256(f"{source} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
            copy = folder / COPIES / f"{mark}_{kind}.jpg"
            if not copy.is_file():
                images.write(copy, reduced(images.read(source), MOST_SHOWN))
        except (OSError, images.ImageError):
            return None
        copies.append((copy.name, images.header_size(copy) or (1, 1)))
    return copies
