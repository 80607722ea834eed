"""What the page shows: images to compare, sentences, times and facts."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
from torch import Tensor

from deblur.data.files import images
from deblur.data.files.images import ImageFile
from deblur.restoration.maps import heat_map, reduced
from deblur.tools.web.visits import PREDICTION, Photo, Result, Visit

WORDS = {"maxim": "Best", "lite": "Quick", "text": "A page of text"}  # the repository's checkpoints that are offered
LARGEST_SHOWN = 12_000_000  # pixels sent to a browser; larger photographs are reduced
BEFORE = "before"  # the key of the upload itself; an image of a run has number/kind
OUTPUTS = 9  # of `view`


class Side(NamedTuple):
    """An image to compare: one of a result at its strength, or without a result the upload itself."""

    name: str
    photo: Photo
    result: Result | None = None
    kind: str = ""
    blend: float = 0.0

    def image(self) -> Tensor:
        """(3, H, W) float32 in [0, 1]."""
        return self.photo.image.values if self.result is None else self.result.image(self.kind)


def sides(photo: Photo) -> dict[str, Side]:
    """The upload, and the images of its results, the newest first."""
    found = {BEFORE: Side(BEFORE, photo)}
    for result in reversed(photo.results):
        blend, way = result.settings.blend, WORDS.get(result.checkpoint, result.checkpoint)
        for kind in reversed(result.kinds):
            name = f"{result.number}: {way}, {kind}{'' if kind == PREDICTION else f' {blend:.2f}'}"
            found[f"{result.number}/{kind}"] = Side(name, photo, result, kind, blend)
    return found


def view(visit: Visit, left: str = BEFORE, right: str | None = None) -> list[Any]:
    """The gallery, the choices left and right, slider, strength, remarks, download, facts and uncertainty of a visit.

    Without `right` that is the newest result.
    """
    photo = visit.shown
    if photo is None:
        return [gr.skip()] * OUTPUTS
    found = sides(photo)
    newest = next((key for key in found if key != BEFORE), BEFORE)
    keys = [key if key in found else BEFORE for key in (left, newest if right is None else right)]
    names = [(side.name, key) for key, side in found.items()]
    result, several = found[keys[1]].result, len(visit.photos) > 1
    is_restored = any(each.results for each in visit.photos)
    return [
        gallery(visit),
        *(gr.Dropdown(names, value=key) for key in keys),
        tuple(shown(visit, found[key]) for key in keys),
        result.settings.blend if result else gr.skip(),
        remarks(result),
        gr.Button("Download all" if several else "Download", interactive=is_restored),
        *details(visit, result),
    ]


def gallery(visit: Visit) -> gr.Gallery:
    """The photographs, if there are several, with what was done."""
    captions = [f"{photo.name}{': restored' if photo.results else ''}" for photo in visit.photos]
    pairs = [(str(photo.small), caption) for photo, caption in zip(visit.photos, captions, strict=True)]
    return gr.Gallery(pairs, visible=len(pairs) > 1, selected_index=visit.photos.index(visit.shown))


def canvas(photo: Photo) -> dict[str, Any]:
    """What is painted on."""
    return {"background": str(photo.small), "layers": [], "composite": None}


def write_shown(path: Path, image: Tensor, like: ImageFile, largest: int) -> None:
    """Write an image (3, H, W) in [0, 1] for the browser, with the colours of a file, of at most so many pixels."""
    like = replace(like, exif=None, xmp=None, alpha=None)
    images.write(path, reduced(image, largest), like, depth=8, compress_level=1)


def shown(visit: Visit, side: Side) -> str:
    """The file that the browser gets for an image."""
    photo = side.photo.image
    return visit.serve(side, "image.png", lambda path: write_shown(path, side.image(), photo, LARGEST_SHOWN))


def told(*sentences: str, warnings: Sequence[str] = ()) -> str:
    """Sentences as HTML."""
    notes = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return notes + "".join(f'<p class="warning">{escape(warning)}</p>' for warning in warnings)


def in_words(seconds: float) -> str:
    """A time: 3 s, about 70 s, about 12 min."""
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    return f"about {round(seconds, -1):.0f} s" if seconds < 95 else f"about {seconds / 60:.0f} min"


def bar(doing: str, passed: float, seconds: float | None) -> str:
    """A bar that moves by the expected seconds; without those it tells no share."""
    if seconds is None:
        return f"{told(f'{doing}.')}<progress></progress>"
    rest = f"{in_words(seconds - passed)} left" if passed < seconds else "it takes longer than expected"
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
        key = result, result.settings.blend
        path = visit.serve(key, "image.png", lambda path: images.write(path, colours, compress_level=1))
        label = f"Standard deviation of the samples; the brightest is {255 * white:.1f} of 255 levels"
        heat = gr.Image(path, label=label, visible=True)
    return f"<dl>{table}</dl>", heat
