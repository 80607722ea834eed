"""What the page shows: images to compare, sentences, times and facts."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
from gradio.components import Component
from torch import Tensor

from deblur.data.files import images
from deblur.data.files.images import ImageFile
from deblur.evaluation.plots import heat_map
from deblur.restoration.duration import time_in_words
from deblur.tools.web.visits import Photo, Result, Visit
from deblur.working_size import reduced

LARGEST_SHOWN = 12_000_000  # pixels sent to a browser; larger photographs are reduced
Changes = dict[Component, Any]  # new values of parts of the page


def view(ui: SimpleNamespace, visit: Visit, kind: str | None = None) -> Changes:
    """What the page shows of a visit's photographs and their results.

    `kind` is one of the kinds of the result; any other stands for the result itself.
    """
    photo = visit.shown
    if photo is None:
        return {}
    result, kinds = photo.result, photo.result.kinds if photo.result else []
    kind = kind if kind in kinds else next(reversed(kinds), None)
    before = visit.serve(photo, "image.png", lambda path: write_shown(path, photo.image.values, photo.image))
    label = "Download all" if len(visit.photos) > 1 else "Download"
    changes = {
        ui.gallery: gallery(visit),
        ui.kind: gr.Dropdown(kinds, value=kind),
        ui.slider: (before, before),
        ui.remarks: "",
        ui.save: gr.Button(label, interactive=bool(visit.results)),
        ui.facts: "",
        ui.heat: gr.Image(visible=False),
    }
    if result is None:
        return changes
    key, notes = (result, kind, result.settings.blend), "; ".join(result.notes) or "is restored as a whole"
    after = visit.serve(key, "image.png", lambda path: write_shown(path, result.image(kind), photo.image))
    changes[ui.slider] = before, after
    changes[ui.strength] = result.settings.blend
    changes[ui.remarks] = told(f"{photo.name} {notes}.", warnings=result.faults)
    if not result.finished:
        facts = {"image": photo.name, "sampled by": str(result.settings)} | result.facts
        rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
        changes[ui.facts] = f"<dl>{rows}</dl>"
        changes[ui.heat] = heat(visit, result)
    return changes


def heat(visit: Visit, result: Result) -> gr.Image:
    """The standard deviation of several samples as a heat map."""
    if (std := result.std()) is None:
        return gr.Image(visible=False)
    colours, white = heat_map(of_size(std, LARGEST_SHOWN))
    key = result, "heat", result.settings.blend
    path = visit.serve(key, "image.png", lambda path: images.write(path, colours, compress_level=1))
    label = f"Standard deviation of the samples; the brightest is {255 * white:.1f} of 255 levels"
    return gr.Image(path, label=label, visible=True)


def gallery(visit: Visit) -> gr.Gallery:
    """The photographs, if there are several, with what was done."""
    captions = [f"✓ {photo.name}" if photo.result else photo.name for photo in visit.photos]
    pairs = [(str(photo.small), caption) for photo, caption in zip(visit.photos, captions, strict=True)]
    return gr.Gallery(pairs, visible=len(pairs) > 1, selected_index=visit.photos.index(visit.shown))


def canvas(photo: Photo) -> dict[str, Any]:
    """What is painted on."""
    return {"background": str(photo.small), "layers": [], "composite": None}


def write_shown(path: Path, image: Tensor, like: ImageFile, largest: int = LARGEST_SHOWN) -> None:
    """Write an image (3, H, W) in [0, 1] for the browser, with the colours of a file, of at most so many pixels."""
    like = replace(like, exif=None, xmp=None, alpha=None)
    images.write(path, of_size(image, largest), like, depth=8, compress_level=1)


def of_size(image: Tensor, largest: int) -> Tensor:
    """An image (C, H, W) in [0, 1], reduced to about so many pixels if it has more."""
    return reduced(image[None], min(1.0, (largest / image[0].numel()) ** 0.5))[0]


def told(*sentences: str, warnings: Sequence[str] = ()) -> str:
    """Sentences as HTML."""
    notes = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return notes + "".join(f'<p class="warning">{escape(warning)}</p>' for warning in warnings)


def bar(doing: str, passed: float, seconds: float | None) -> str:
    """A bar that moves by the expected seconds; without those it tells no share."""
    if seconds is None:
        return f"{told(f'{doing}.')}<progress></progress>"
    rest = f"{time_in_words(seconds - passed)} left" if passed < seconds else "it takes longer than expected"
    return f'{told(f"{doing}, {rest}.")}<progress value="{min(passed / seconds, 0.97):.3f}"></progress>'
