"""What the page shows: images to compare, sentences, times and facts."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from torch import Tensor

from deblur.data.files import images
from deblur.data.files.images import ImageFile
from deblur.evaluation.plots import heat_map
from deblur.restoration.duration import time_in_words
from deblur.restoration.maps import reduced
from deblur.tools.web.visits import Photo, Result, Visit

LARGEST_SHOWN = 12_000_000  # pixels sent to a browser; larger photographs are reduced
OUTPUTS = 8  # of `view`


def view(visit: Visit, kind: str | None = None) -> list[Any]:
    """The gallery, which image is shown, slider, strength, remarks, download, facts and uncertainty of a visit.

    `kind` is one of the kinds of the result; any other stands for the result itself.
    """
    photo = visit.shown
    if photo is None:
        return [gr.skip()] * OUTPUTS
    result, kinds = photo.result, photo.result.kinds if photo.result else []
    kind = kind if kind in kinds else next(reversed(kinds), None)
    before = visit.serve(photo, "image.png", lambda path: write_shown(path, photo.image.values, photo.image))
    after = before
    if result is not None:
        key = result, kind, result.settings.blend
        after = visit.serve(key, "image.png", lambda path: write_shown(path, result.image(kind), photo.image))
    label = "Download all" if len(visit.photos) > 1 else "Download"
    return [
        gallery(visit),
        gr.Dropdown(kinds, value=kind),
        (before, after),
        result.settings.blend if result else gr.skip(),
        remarks(result),
        gr.Button(label, interactive=any(photo.result for photo in visit.photos)),
        *details(visit, result),
    ]


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
    images.write(path, reduced(image, largest), like, depth=8, compress_level=1)


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


def remarks(result: Result | None) -> str:
    """What is notable in a result, apart from what is wrong with it."""
    if result is None:
        return ""
    notes = "; ".join(result.notes) or "is restored as a whole"
    return told(f"{result.photo.name} {notes}.", warnings=result.faults)


def details(visit: Visit, result: Result | None) -> tuple[str, gr.Image]:
    """How a result was made, as HTML, and the standard deviation of several samples as a heat map."""
    if result is None or result.finished:
        return "", gr.Image(visible=False)
    facts = {"image": result.photo.name, "sampled by": str(result.settings)} | result.facts
    table = "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    heat = gr.Image(visible=False)
    if (std := result.std()) is not None:
        colours, white = heat_map(reduced(std, LARGEST_SHOWN))
        key = result, "heat", result.settings.blend
        path = visit.serve(key, "image.png", lambda path: images.write(path, colours, compress_level=1))
        label = f"Standard deviation of the samples; the brightest is {255 * white:.1f} of 255 levels"
        heat = gr.Image(path, label=label, visible=True)
    return f"<dl>{table}</dl>", heat
