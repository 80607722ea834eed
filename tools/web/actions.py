"""Event handlers of the page."""

import math
import shutil
import zipfile
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait
from dataclasses import replace
from itertools import count
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from time import monotonic
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import uuid4

import gradio as gr
from torch import Tensor

from deblur.cli import one_of
from deblur.data.files.images import ImageError, header_size, read_file
from deblur.hub import SHIPPED, TEXT
from deblur.restoration.duration import time_in_words
from deblur.restoration.outputs import targets
from deblur.restoration.restorer import Restorer
from deblur.tools.web.restoration import BEST, DEVICE, PAGE, QUICK, Way, restore, ways_for
from deblur.tools.web.served import Served
from deblur.tools.web.view import Changes, bar, canvas, gallery, told, view, write_shown
from deblur.tools.web.visits import Photo, Result, Visit, Visits
from deblur.working_size import resized

DOCS = Path(__file__).resolve().parents[2] / "docs"  # has the examples, which pip does not install
PHOTOGRAPHS, PAGES = sorted((DOCS / "examples").glob("*.jpg")), sorted(DOCS.glob("page_blurry.jpg"))
WORTH_A_PREVIEW = 5.0  # seconds: what takes longer by BEST is shown by QUICK first
LARGEST_UPLOAD = 2_000_000_000  # bytes of a visit's photographs
LARGEST_SMALL = 500_000  # pixels of what is painted on, which the browser sends back after each stroke
TICK = 0.5  # seconds between two movements of the bar
NO_PHOTO = "there is no photograph yet: upload one"
NO_RESULT = "nothing is restored yet: press Restore"


class Step(NamedTuple):
    """One photograph to be restored, by what, the word for it, and about how many seconds that takes."""

    photo: Photo
    restorer: Restorer
    word: str
    seconds: float


class Actions:
    """The page's event handlers. Each returns what changes in which parts of the page, or raises ValueError or OSError
    with a sentence for the visitor.

    Args:
        restorers: restore photographs, by their checkpoints; the first is the default.
        served: has the limits of a run.
        visits: each visitor's photographs and results.

    Attributes:
        ui: the page's parts by their names, once it is laid out.
    """

    def __init__(self, restorers: dict[str, Restorer], served: Served, visits: Visits):
        self.restorers, self.served, self.visits, self.ui = restorers, served, visits, SimpleNamespace()
        has_text = str(SHIPPED / TEXT) in restorers
        self.words = [*restorers] if len(restorers) == 1 else [BEST, QUICK, PAGE][: 2 + has_text]
        self.examples = [*PHOTOGRAPHS, *(PAGES if has_text else [])]

    @property
    def restorer(self) -> Restorer:
        """The default."""
        return next(iter(self.restorers.values()))

    def open(self, files: list[dict[str, Any]] | None, request: gr.Request, is_text: bool = False) -> Changes:
        """Open uploaded photographs in place of those before. Each file has its path, and its name at the visitor's."""
        if not files:  # cleared meanwhile
            raise ValueError(NO_PHOTO)
        if sum(Path(file["path"]).stat().st_size for file in files) > LARGEST_UPLOAD:
            raise ValueError(f"these are more than {LARGEST_UPLOAD / 1e9:g} GB: upload fewer, or use sample.py")
        visit, photos, refused = self._visit(request), [], []
        for file in files:
            try:
                photos.append(self._opened(visit, Path(file["path"]), _unused(Path(file["orig_name"]).name, photos)))
            except ImageError as error:
                refused.append(str(error))
        if not photos:
            raise ValueError("; ".join(refused))
        # A visitor's choice stays; an example of a page chooses the way for that, and a photograph after it another.
        chosen = {"value": PAGE if is_text else self.words[0]} if is_text != visit.is_text else {}
        first, (height, width) = photos[0].name, photos[0].size
        opened = f"{first}: {width} x {height} pixels." if len(photos) == 1 else f"{len(photos)} photographs."
        ui = self.ui
        with visit.lock:
            visit.replace(photos, is_text)
            visit.measuring = DEVICE.submit(ways_for, self.restorers, visit)
            return {
                ui.photo: None,
                ui.status: told(opened, warnings=refused),
                ui.mask: canvas(visit.shown),
                ui.way: gr.Radio([(f"{word} (measuring)", word) for word in self.words], **chosen),
                **dict.fromkeys((ui.preset, ui.sampler, ui.steps, ui.count)),  # which follow the way then
                **view(ui, visit),
            }

    def example(self, number: int, request: gr.Request) -> Changes:
        """Open one of the repository's example photographs."""
        path = self.examples[number]
        return self.open([{"path": str(path), "orig_name": path.name}], request, path in PAGES)

    def choose(self, request: gr.Request) -> Changes:
        """The ways to restore the open photographs with their times."""
        try:
            ways = self._visit(request).ways
        except CancelledError:  # the photographs gave way to others
            return {}
        return {
            self.ui.way: gr.Radio([(f"{word}, about {time_in_words(way.seconds)}", word) for word, way in ways.items()])
        }

    def numbers(self, word: str, preset: str | None, request: gr.Request) -> Changes:
        """The presets of a way to restore, and the numbers of the one that is named, or of the way's own.

        Nothing changes while the way is not known.
        """
        visit, ui = self._visit(request), self.ui
        if visit.measuring is None or not visit.measuring.done():
            return {}
        restorer = self._way(visit, word).restorer
        presets = restorer.pipeline.config.presets
        if preset not in presets:
            preset = restorer.options.preset or ("balanced" if "balanced" in presets else None)
        settings = restorer.pipeline.preset(preset)
        numbers = {ui.sampler: settings.sampler, ui.steps: settings.steps, ui.count: settings.num_samples}
        return {ui.preset: gr.Dropdown(list(presets), value=preset), ui.strength: settings.blend} | numbers

    def restore(
        self,
        word: str,
        preset: str | None,
        sampler: str,
        steps: int | None,
        count: int | None,
        strength: float | None,
        seed: int | None,
        scale: str,
        mask: dict[str, Any] | None,
        request: gr.Request,
    ) -> Iterator[Changes]:
        """Restore the open photographs, the quick way first. A number whose field is empty follows the preset.

        `mask` is what gradio's ImageEditor sends: its layers are what is painted; None before it was looked at.
        """
        visit = self._visit(request)
        if visit.shown is None:
            raise ValueError(NO_PHOTO)
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed must be a whole number of 0 or more, got {'nothing' if seed is None else seed}")
        values = {"sampler": sampler, "steps": steps, "num_samples": count, "blend": strength}
        if not visit.measuring.done():
            values["blend"] = None  # a slider cannot be empty, and shows that of the way before
        numbers = {name: value for name, value in values.items() if value is not None}
        options = {"seed": seed, "scale": scale if scale == "auto" else float(scale)}
        painted = self._painted(mask, visit.shown)
        photos = visit.photos
        visit.stop.clear()
        try:
            yield from self._bars(visit, visit.measuring, "Measuring how long it takes")
            if visit.stop.is_set():
                raise CancelledError
            way, quick = self._way(visit, word), visit.ways.get(QUICK)
            plan = self._plan(visit, way, options | ({"preset": preset} if preset else {}), numbers, painted)
            is_long = any(step.seconds > WORTH_A_PREVIEW for step in plan)
            if word == BEST and quick is not way and is_long:
                plan = self._plan(visit, quick, options, {}, painted) + plan
            yield from self._restored(visit, plan)
        except CancelledError:
            if visit.photos is photos:  # otherwise others took their place
                yield {self.ui.status: told("Cancelled.")}

    def _plan(
        self, visit: Visit, way: Way, options: dict[str, Any], numbers: dict[str, Any], painted: Tensor | None
    ) -> list[Step]:
        """The steps that restore a visit's photographs, or the one that is painted, with these options and numbers."""
        restorer = Restorer(replace(way.restorer.options, **options), numbers, way.restorer)
        restorer.mask = painted
        if painted is None:  # which changes where the scale is looked for
            restorer.scales = way.restorer.scales
        for name, value in {"steps": restorer.settings.steps, "samples": restorer.settings.num_samples}.items():
            if value > (largest := getattr(self.served, f"max_{name}")):
                raise ValueError(f"this page takes at most {largest} {name}, not {value}: restore it with sample.py")
        pace = way.seconds / sum(math.prod(photo.size) for photo in visit.photos)
        photos = visit.photos if painted is None else [visit.shown]
        return [Step(photo, restorer, way.word, pace * math.prod(photo.size)) for photo in photos]

    def _restored(self, visit: Visit, plan: list[Step]) -> Iterator[Changes]:
        """The state of the page while the plan is followed, and after each result."""
        failures = []
        for at, step in enumerate(plan):
            place = f", {at + 1} of {len(plan)}" if len(visit.photos) > 1 else ""
            run = DEVICE.submit(restore, step.restorer, visit, step.photo, self.served.max_seconds)
            yield from self._bars(visit, run, f"{step.word}: {step.photo.name}{place}", step.seconds)
            if visit.stop.is_set():
                run.cancel()  # if it has not begun; otherwise it ends with a layer
            try:
                result = run.result()
            except ValueError as error:
                if len(plan) == 1:
                    raise
                failures.append(str(error))
                continue
            with visit.lock:  # which the thread that goes on after a yield could not release
                visit.keep(result)
                is_shown = result.photo is visit.shown
                changes = view(self.ui, visit) if is_shown else {self.ui.gallery: gallery(visit)}
            yield changes
        yield {self.ui.status: told("Done." if len(failures) < len(plan) else "Not done.", warnings=failures)}

    def _bars(self, visit: Visit, job: Future, doing: str, seconds: float | None = None) -> Iterator[Changes]:
        """The state of the page while a job is waited for, until it ends or is cancelled."""
        started = monotonic()
        for tick in count():
            if job.done() or visit.stop.is_set():
                return
            visit.used = monotonic()
            if tick and not job.running():
                started = visit.used
                said = told(f"{doing}, after another visitor's photograph.")
            else:
                said = bar(doing, visit.used - started, seconds)
            yield {self.ui.status: said}
            wait([job], TICK)

    def cancel(self, request: gr.Request) -> None:
        """Stop this visitor's run before the next layer of its networks; the run says so when it has ended."""
        self._visit(request).stop.set()

    def select(self, event: gr.SelectData, request: gr.Request) -> Changes:
        """Show another of the photographs."""
        visit = self._visit(request)
        with visit.lock:
            visit.shown = visit.photos[event.index]
            return {self.ui.mask: canvas(visit.shown), **view(self.ui, visit)}

    def look(self, kind: str | None, request: gr.Request, strength: float | None = None) -> Changes:
        """Show another image of the result, or blend it again with a new strength."""
        visit = self._visit(request)
        with visit.lock:
            result = visit.shown.result if visit.shown else None
            if result is not None and strength is not None:
                if result.finished:
                    raise ValueError(f"{result.photo.name} was restored long ago: restore it again to change it")
                result.settings = replace(result.settings, blend=float(strength))
            return view(self.ui, visit, kind)

    def save(self, kind: str | None, request: gr.Request) -> str:
        """Write the image that is shown as sample.py would, or of several photographs a ZIP of their results."""
        visit = self._visit(request)
        with visit.lock:
            results = visit.results
            if not results:
                raise ValueError(NO_RESULT)
            if len(visit.photos) > 1:
                key = tuple((result, result.settings.blend) for result in results)
                return visit.serve(key, "restored.zip", lambda path: self._write_zip(path, results, visit.folder))
            [result] = results
            key = result, kind, result.settings.blend, "file"
            return visit.serve(key, result.file_name(kind), lambda path: result.write(path, kind))

    def _write_zip(self, path: Path, results: list[Result], folder: Path) -> None:
        names = targets({result: PurePath(result.photo.name) for result in results}, None, False)
        path.parent.mkdir(parents=True)
        with zipfile.ZipFile(path, "w") as archive, TemporaryDirectory(dir=folder) as written:
            for result, name in names.items():
                result.write(Path(written) / name, result.kinds[-1])
                archive.write(Path(written) / name, name)
                (Path(written) / name).unlink()

    def leave(self, request: gr.Request) -> None:
        """Handle a closed page."""
        self.visits.close(request.session_hash)

    def _visit(self, request: gr.Request) -> Visit:
        return self.visits.of(request.session_hash or uuid4().hex)

    def _way(self, visit: Visit, word: str) -> Way:
        """A way to restore, by the word for it."""
        if word not in visit.ways:
            raise ValueError(one_of("a way to restore", word, self.words))
        return visit.ways[word]

    def _opened(self, visit: Visit, path: Path, name: str) -> Photo:
        """A photograph of an uploaded file. ImageError: it cannot be read, or is larger than the page accepts."""
        try:
            width, height = header_size(path)
            if width * height > 1e6 * self.served.max_pixels:
                raise ImageError(
                    f"{name} has {width} x {height} pixels, more than the {self.served.max_pixels:g} megapixels that"
                    " this page takes: restore it with sample.py"
                )
            image = read_file(path)
        except ImageError as error:
            raise ImageError(str(error).replace(str(path), name)) from None
        key = uuid4().hex
        small = visit.served / key / "image.png"
        photo = Photo(name, visit.folder / key, small, tuple(image.pixels.shape[-2:]))
        photo.folder.mkdir()
        shutil.copyfile(path, photo.file)
        write_shown(small, image.values, image, LARGEST_SMALL)
        return photo

    def _painted(self, mask: dict[str, Any] | None, photo: Photo) -> Tensor | None:
        """What is painted of a photograph, (H, W) in [0, 1]; None: nothing."""
        layers = mask["layers"] if mask else []  # the editor has one at most
        if not layers:
            return None
        alpha = read_file(layers[0]["path"]).alpha  # (1, h, w) uint8, of the size of the copy that is painted on
        return resized(alpha[None].float() / 255, *photo.size).clamp(0, 1)[0, 0] if alpha.any() else None


def _unused(name: str, photos: list[Photo]) -> str:
    """A file name, or another one if a photograph has it: a (2).jpg."""
    taken, path, number = {photo.name for photo in photos}, PurePath(name), 2
    while name in taken:
        name, number = f"{path.stem} ({number}){path.suffix}", number + 1
    return name
