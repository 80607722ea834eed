"""Event handlers of the page."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any
from uuid import uuid4

import gradio as gr
from torch import Tensor

from base.messages import in_words, one_of
from data import images, metadata
from restoration.maps import heat_map, reduced
from web.restoration import Cancelled, PhotoRestorer
from web.results import Photo, Result, mask_of
from web.visits import Visit, Visits

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLES = {"lite": sorted((DOCS / "examples").glob("*.jpg")), "text": [DOCS / "page_blurry.jpg"]}  # by checkpoint
MOST_SHOWN = 12_000_000  # pixels sent to a browser; larger photographs are reduced
MOST_PAINTED = 1 << 20  # pixels of the reduced image on which a mask is painted
# Choices of images to show, with their keys; the image of a run has the key number/kind.
BEFORE, NEWEST = ("blurry", "0/blurry"), ("newest result", "newest")
NOT_PAINTED = "everywhere but where painted"
NO_COMMAND = "sample.py has no masks: download the file here"


def _sentences(action: Callable) -> Callable:
    """Show errors caused by the input in the page, as one sentence."""

    @wraps(action)
    def with_sentences(*arguments):
        try:
            return action(*arguments)
        except (ValueError, TypeError, OSError) as error:  # TypeError: an API's text in place of a number
            raise gr.Error(in_words(error), duration=None, title="Not done", print_exception=False) from None

    return with_sentences


class Actions:
    """The page's event handlers. Each returns the new values of its outputs in the order listed in `web.page`.

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

    @_sentences
    def open(self, file: str | None, name: str | None, request: gr.Request) -> list[Any]:
        """Open an uploaded photograph under its original file name."""
        if file is None:
            raise ValueError("no photograph was uploaded")
        return self._open(Path(file), Path(name or file).name, request)

    @_sentences
    def example(self, number: int, request: gr.Request) -> list[Any]:
        """Open one of the repository's example photographs, and choose the checkpoint that is for it."""
        if number not in range(len(self.examples)):
            raise ValueError(f"there is no example {number}")
        path, checkpoint = self.examples[number]
        return [*self._open(path, path.name, request), checkpoint if checkpoint in self.restorers else gr.skip()]

    @_sentences
    def restore(
        self,
        preset: str | None = None,
        sampler: str | None = None,
        steps: int | None = None,
        count: int | None = None,
        seed: int = 0,
        strength: float | None = None,
        checkpoint: str | None = None,
        request: gr.Request = None,  # gradio looks for these two here
        progress: gr.Progress = gr.Progress(),  # noqa: B008
    ) -> list[Any]:
        """Restore the open photograph. What is None follows the preset, and the checkpoint is the first."""
        if checkpoint is not None and checkpoint not in self.restorers:
            raise ValueError(one_of("checkpoint", checkpoint, list(self.restorers)))
        restorer = self.restorers[checkpoint] if checkpoint else self.restorer
        visit = self._visit(request)
        if visit.photo is None:
            raise ValueError("there is no photograph yet: upload one")
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed must be a whole number of 0 or more, got {'nothing' if seed is None else seed}")
        values = {"sampler": sampler, "steps": steps, "num_samples": count, "blend": strength}
        numbers = {name: value for name, value in values.items() if value is not None}
        visit.stop.clear()
        try:
            result = restorer.restore(
                visit, preset, numbers, seed, lambda done, total, words: progress((done, total), desc=words)
            )
        except Cancelled as cancelled:
            return [f"<p>Cancelled: {cancelled}.</p>", *[gr.skip()] * 6]
        with visit.lock:
            visit.add(result)
            words = [f"Run {result.number}: {result.settings}.", result.facts.get("warning", "")]
            return [f"<p>{escape(' '.join(words))}</p>", *self._view(visit, BEFORE[1], NEWEST[1])]

    def cancel(self, request: gr.Request) -> str:
        """Stop this visitor's run after its current step."""
        self._visit(request).stop.set()
        return "<p>Cancelled.</p>"

    @_sentences
    def strength(
        self, strength: float, left: str | None = None, right: str | None = None, request: gr.Request = None
    ) -> list[Any]:
        """Blend the newest result again with a new strength."""
        visit = self._visit(request)
        with visit.lock:
            if (result := visit.newest()) is not None:
                result.settings = replace(result.settings, blend=float(strength))
            return self._view(visit, left or BEFORE[1], right or NEWEST[1])

    @_sentences
    def mask(self, painted: dict | None, where: str, left: str, right: str, request: gr.Request) -> list[Any]:
        """Blend the newest result again with a painted mask."""
        visit = self._visit(request)
        with visit.lock:
            if (result := visit.newest()) is not None:
                result.mask = mask_of((painted or {}).get("layers", []), where == NOT_PAINTED)
            return self._view(visit, left, right)

    @_sentences
    def look(self, left: str, right: str, request: gr.Request) -> list[Any]:
        """Show other images."""
        visit = self._visit(request)
        with visit.lock:
            return self._view(visit, left, right)

    @_sentences
    def save(self, right: str | None = None, request: gr.Request = None) -> str:
        """Write an image as sample.py would and return the file."""
        visit = self._visit(request)
        with visit.lock:
            photo, result, kind = self._chosen(visit, right or NEWEST[1])
            name = photo.path.with_suffix(".png").name if result is None else result.file_name(kind)
            path = visit.serve(None, name)
            like = metadata.kept(photo.image, self.restorer.options.metadata)
            images.write(path, self._image(photo, result, kind), like)
            return str(path)

    def leave(self, request: gr.Request) -> None:
        """Handle a closed page."""
        self.visits.close(request.session_hash)

    def _visit(self, request: gr.Request) -> Visit:
        return self.visits.of(request.session_hash or uuid4().hex)

    def _open(self, file: Path, name: str, request: gr.Request) -> list[Any]:
        visit = self._visit(request)
        with visit.lock:
            copy = visit.folder / uuid4().hex / name
            copy.parent.mkdir()
            shutil.copy(file, copy)
            visit.photo = photo = self.restorer.open(copy, name)
            height, width = photo.size
            bits = 16 if photo.image.pixels.element_size() == 2 else 8
            words = ", ".join([f"{name}: {width} x {height} pixels, {bits} bits", *photo.image.remarks])
            small = self._show(visit, "mask", photo, reduced(photo.image.values, MOST_PAINTED))
            canvas = {"background": small, "layers": [], "composite": None}
            return [None, f"<p>{escape(words)}.</p>", canvas, *self._view(visit, BEFORE[1], NEWEST[1])]

    def _view(self, visit: Visit, left: str, right: str) -> list[Any]:
        """The view of a visit: choices left and right, the slider, facts, command, uncertainty."""
        if visit.photo is None:
            return [gr.skip()] * 6
        alike = [result for result in visit.results if result.photo.size == visit.photo.size]
        choices = [BEFORE]
        for result in reversed(alike):
            name = f"{result.options.checkpoint} " if len(self.restorers) > 1 else ""
            how = f", {name}{result.options.preset or result.settings.sampler} {result.settings.blend:.2f}"
            choices += [
                (f"{result.number}: {kind}{how * (kind != 'prediction')}", f"{result.number}/{kind}")
                for kind in reversed(result.kinds)
            ]
        known, newest = [key for _, key in choices], visit.newest()
        now = BEFORE[1] if newest is None else f"{newest.number}/{newest.kinds[-1]}"
        left, right = (now if key == NEWEST[1] else key if key in known else BEFORE[1] for key in (left, right))
        pair = tuple(self._shown(visit, value) for value in (left, right))
        _, result, kind = self._chosen(visit, right)
        facts, command, heat = "<p>No result on the right.</p>", "", None
        if result is not None:
            facts = _table({"image": result.photo.path.name, "sampled by": str(result.settings)} | result.facts)
            command = result.command(kind) or NO_COMMAND
            if (std := result.std()) is not None:
                colours, white = heat_map(reduced(std, MOST_SHOWN))
                heat = gr.Image(
                    self._show(visit, "heat", result.photo, colours),
                    label=f"Standard deviation of the samples; the brightest is {255 * white:.1f} of 255 levels",
                )
        return [
            gr.Dropdown([*choices, NEWEST], value=left),
            gr.Dropdown([*choices, NEWEST], value=right),
            pair,
            facts,
            command,
            heat,
        ]

    def _chosen(self, visit: Visit, chosen: str) -> tuple[Photo, Result | None, str]:
        """The photograph, result and kind that a choice stands for."""
        if visit.photo is None:
            raise ValueError("there is no photograph yet: upload one")
        if chosen == NEWEST[1] and (newest := visit.newest()) is not None:
            return newest.photo, newest, newest.kinds[-1]
        number, _, kind = str(chosen).partition("/")
        for result in visit.results:
            if str(result.number) == number and kind in result.kinds:
                return result.photo, result, kind
        if chosen != BEFORE[1]:
            raise ValueError(f"there is no result {chosen} in this visit: run first")
        return visit.photo, None, kind

    def _image(self, photo: Photo, result: Result | None, kind: str) -> Tensor:
        return photo.image.values if result is None else result.image(kind)

    def _shown(self, visit: Visit, chosen: str) -> str:
        """The file that the browser gets for a choice."""
        photo, result, kind = self._chosen(visit, chosen)
        key = (photo, kind) if result is None else (result, kind, result.settings.blend, result.mask)
        before = visit.served_before(key)
        if before:
            return str(before)
        return self._show(visit, key, photo, reduced(self._image(photo, result, kind), MOST_SHOWN))

    def _show(self, visit: Visit, key: object, photo: Photo, image: Tensor) -> str:
        path = visit.serve(key, "image.png")
        like = replace(photo.image, exif=None, xmp=None, alpha=None)
        images.write(path, image, like, depth=8, compress_level=1)
        return str(path)


def _table(facts: dict[str, str]) -> str:
    """Facts by name, formatted as HTML."""
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items()) + "</dl>"
