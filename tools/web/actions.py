"""Event handlers of the page."""

from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import gradio as gr
from torch import Tensor

from deblur.cli import in_words
from deblur.data.files import images, metadata
from deblur.restoration.maps import heat_map, reduced
from deblur.tools.web.restoration import PhotoRestorer, painted
from deblur.tools.web.results import Photo, Result
from deblur.tools.web.visits import Visit, Visits

DOCS = Path(__file__).resolve().parents[2] / "docs"
# By checkpoint; none are installed by pip.
EXAMPLES = {"lite": sorted((DOCS / "examples").glob("*.jpg")), "text": sorted(DOCS.glob("page_blurry.jpg"))}
MOST_SHOWN = 12_000_000  # pixels sent to a browser; larger photographs are reduced
MOST_PAINTED = 500_000  # pixels of what is painted on, which the browser sends back after each stroke
SHOWN = 20  # seconds that an error is shown
SCALES = ("auto", "1", "0.6", "0.4", "0.25", "0.1")
NO_PHOTO = "there is no photograph yet: upload one"
BEFORE = "blurry"  # the choice of the upload itself; an image of a run is chosen by number/kind


class Choice(NamedTuple):
    """An image to compare: one of a result at its strength, or without a result the upload itself."""

    name: str
    photo: Photo
    result: Result | None = None
    kind: str = ""
    blend: float = 0.0

    def image(self) -> Tensor:
        """(3, H, W) float32 in [0, 1]."""
        return self.photo.image.values if self.result is None else self.result.image(self.kind)


@contextmanager
def _sentences() -> Iterator[None]:
    """Show errors caused by the input in the page, as one sentence."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise gr.Error(in_words(error), duration=SHOWN, title="Not done", print_exception=False) from None


def _require(kind: type, **given: Any) -> None:
    """ValueError if a value is not of a kind: a request that the page does not make."""
    for name, value in given.items():
        if not isinstance(value, kind):
            raise ValueError(f"{name} cannot be {value!r:.40}: the page makes no such request")


class Actions:
    """The page's event handlers. Each returns the new values of its outputs in the order listed in `tools.web.page`.

    Args:
        restorers: restore photographs, by the name of their checkpoint; the first is the default.
        visits: each visitor's photographs and results.
    """

    def __init__(self, restorers: dict[str, PhotoRestorer], visits: Visits):
        self.restorers, self.visits = restorers, visits
        self.restorer = next(iter(restorers.values()))
        # A checkpoint that is not the repository's own is for photographs, or its user knows what it is for.
        names = [name for name in EXAMPLES if name in restorers] or ["lite"]
        self.examples = [(path, name) for name in names for path in EXAMPLES[name]]

    @_sentences()
    def open(self, file: dict[str, Any] | None, request: gr.Request) -> list[Any]:
        """Open an uploaded photograph; `file` has its path, and as orig_name its name at the visitor's."""
        if file is None:  # cleared meanwhile
            raise ValueError(NO_PHOTO)
        _require(dict, file=file)
        _require(str, path=file.get("path"), orig_name=file.get("orig_name"))
        visit, name = self._visit(request), Path(file["orig_name"]).name
        with visit.lock:
            visit.photo = photo = self.restorer.open(Path(file["path"]), name)
            height, width = photo.size
            bits = 16 if photo.image.pixels.element_size() == 2 else 8
            words = ", ".join([f"{name}: {width} x {height} pixels, {bits} bits", *photo.image.remarks])
            canvas = {"background": _shown(visit, Choice(BEFORE, photo), MOST_PAINTED), "layers": [], "composite": None}
            return [None, f"<p>{escape(words)}.</p>", canvas, *self._view(visit)]

    @_sentences()
    def example(self, number: int, request: gr.Request) -> list[Any]:
        """Open one of the repository's example photographs, and choose the checkpoint that is for it."""
        _require(int, example=number)
        if not 0 <= number < len(self.examples):
            raise ValueError(f"there is no example {number}")
        path, checkpoint = self.examples[number]
        opened = self.open({"path": str(path), "orig_name": path.name}, request)
        return [*opened, checkpoint if checkpoint in self.restorers else gr.skip()]

    @_sentences()
    def restore(
        self,
        checkpoint: str,
        preset: str | None,
        sampler: str,
        steps: int | None,
        count: int | None,
        strength: float | None,
        seed: int | None,
        scale: str,
        mask: dict[str, Any] | None,
        request: gr.Request,
        progress: gr.Progress = gr.Progress(),  # noqa: B008 (gradio looks for it here)
    ) -> list[Any]:
        """Restore the open photograph. A number whose field is empty follows the preset.

        `mask` is what gradio's ImageEditor sends: its layers are what is painted; None before it was looked at.
        """
        visit = self._visit(request)
        if visit.photo is None:
            raise ValueError(NO_PHOTO)
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed must be a whole number of 0 or more, got {'nothing' if seed is None else seed}")
        _require(str, checkpoint=checkpoint)
        _require(str | None, preset=preset, sampler=sampler)
        _require(int | float | None, steps=steps, samples=count, strength=strength)
        if checkpoint not in self.restorers:
            raise ValueError(f"checkpoint is one of {', '.join(self.restorers)}, not {checkpoint:.40}")
        if scale not in SCALES:
            raise ValueError(f"scale is one of {', '.join(SCALES)}, not {scale!r:.40}")
        values = {"sampler": sampler, "steps": steps, "num_samples": count, "blend": strength}
        numbers = {name: value for name, value in values.items() if value is not None}
        visit.stop.clear()
        try:
            result = self.restorers[checkpoint].restore(
                visit,
                preset,
                numbers,
                seed,
                lambda done, total, words: progress((done, total), desc=words),
                None if scale == SCALES[0] else float(scale),
                self._painted(mask, visit.photo),
            )
        except CancelledError:
            return [gr.skip()] * 6
        with visit.lock:
            visit.add(result)
            words = [f"Run {result.number}: {result.settings}.", result.facts.get("warning", "")]
            newest = f"{result.number}/{result.kinds[-1]}" if result.photo is visit.photo else BEFORE
            return [f"<p>{escape(' '.join(words))}</p>", *self._view(visit, BEFORE, newest)]

    def cancel(self, request: gr.Request) -> str:
        """Stop this visitor's run after its current step."""
        self._visit(request).stop.set()
        return "<p>Cancelled.</p>"

    @_sentences()
    def look(self, left: str, right: str, request: gr.Request, strength: float | None = None) -> list[Any]:
        """Show other images, or blend the newest result again with a new strength."""
        _require(str, left=left, right=right)
        _require(int | float | None, strength=strength)
        visit = self._visit(request)
        with visit.lock:
            result = next((result for result in reversed(visit.results) if result.photo is visit.photo), None)
            if result is not None and strength is not None:
                result.settings = replace(result.settings, blend=float(strength))
            return self._view(visit, left, right)

    @_sentences()
    def save(self, right: str, request: gr.Request) -> str:
        """Write the right image as sample.py would, the upload itself without loss, and return the file."""
        _require(str, right=right)
        visit = self._visit(request)
        with visit.lock:
            if visit.photo is None:
                raise ValueError(NO_PHOTO)
            if (chosen := self._choices(visit).get(right)) is None:
                raise ValueError(f"there is no result {right} in this visit: run first")
            photo, result = chosen.photo, chosen.result
            name = result.file_name(chosen.kind) if result else Path(photo.name).with_suffix(".png").name
            like = metadata.of_restoration(photo.image, self.restorer.options.metadata)
            return visit.serve((chosen, "file"), name, lambda path: images.write(path, chosen.image(), like))

    def leave(self, request: gr.Request) -> None:
        """Handle a closed page."""
        self.visits.close(request.session_hash)

    def _painted(self, mask: dict[str, Any] | None, photo: Photo) -> Tensor | None:
        """What is painted of a photograph, (H, W) in [0, 1]; None: nothing."""
        _require(dict | None, mask=mask)
        layers = (mask or {}).get("layers", [])
        _require(list, layers=layers)
        if not layers:
            return None
        layer = layers[0]  # the editor has one
        _require(dict, layer=layer)
        _require(str, path=layer.get("path"))
        alpha = self.restorer.open(Path(layer["path"]), "what is painted").image.alpha
        _require(Tensor, painted=alpha)
        return painted(alpha, *photo.size)

    def _visit(self, request: gr.Request) -> Visit:
        return self.visits.of(request.session_hash or uuid4().hex)

    def _choices(self, visit: Visit) -> dict[str, Choice]:
        """The upload, and the images of this visit's results on photographs of its size, the newest first."""
        choices = {BEFORE: Choice(BEFORE, visit.photo)}
        for result in reversed(visit.results):
            if result.photo.size == visit.photo.size:
                blend, checkpoint = result.settings.blend, f"{result.checkpoint} " if len(self.restorers) > 1 else ""
                for kind in reversed(result.kinds):
                    details = f", {checkpoint}{result.preset} {blend:.2f}" if kind != "prediction" else ""
                    name = f"{result.number}: {kind}{details}"
                    choices[f"{result.number}/{kind}"] = Choice(name, result.photo, result, kind, blend)
        return choices

    def _view(self, visit: Visit, left: str = BEFORE, right: str = BEFORE) -> list[Any]:
        """The choices left and right, the slider, numbers and uncertainty of a visit."""
        if visit.photo is None:
            return [gr.skip()] * 5
        choices = self._choices(visit)
        keys = [key if key in choices else BEFORE for key in (left, right)]
        names = [(choice.name, key) for key, choice in choices.items()]
        pair = tuple(_shown(visit, choices[key]) for key in keys)
        return [*(gr.Dropdown(names, value=key) for key in keys), pair, *_numbers(visit, choices[keys[1]].result)]


def _shown(visit: Visit, choice: Choice, most: int = MOST_SHOWN) -> str:
    """The file that the browser gets for an image, of at most so many pixels."""

    def write(path: Path) -> None:
        like = replace(choice.photo.image, exif=None, xmp=None, alpha=None)
        images.write(path, reduced(choice.image(), most), like, depth=8, compress_level=1)

    return visit.serve((choice, most), "image.png", write)


def _numbers(visit: Visit, result: Result | None) -> tuple[str, gr.Image | None]:
    """How a result was made, as HTML, and the standard deviation of several samples as a heat map."""
    if result is None:
        return "<p>No result on the right.</p>", None
    facts = {"image": result.photo.name, "sampled by": str(result.settings)} | result.facts
    table = "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    heat = None
    if (std := result.std()) is not None:
        colours, white = heat_map(reduced(std, MOST_SHOWN))
        key = result, result.settings.blend
        path = visit.serve(key, "image.png", lambda path: images.write(path, colours, compress_level=1))
        label = f"Standard deviation of the samples; the brightest is {255 * white:.1f} of 255 levels"
        heat = gr.Image(path, label=label)
    return f"<dl>{table}</dl>", heat
