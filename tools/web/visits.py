"""What the page keeps for each visitor, and for how long: photographs, and restorations that are blended again."""

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePath
from threading import Event, RLock
from time import monotonic
from typing import Literal, NamedTuple
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from deblur.data.files import images, metadata
from deblur.data.files.images import ImageFile
from deblur.draft import Blurry, DeblurOutput, Draft, Prediction
from deblur.image_processor import visible_pixels
from deblur.keep_sharp import restored_amount
from deblur.restoration.outputs import Names, named
from deblur.restoration.remarks import faults, notes
from deblur.settings import SamplingSettings

PREDICTION = "prediction"
LARGEST_RESULTS = 2_000_000_000  # bytes of a visit's results; of older ones only the finished file is kept
LARGEST_SERVED = 8  # files that a visit serves at a time
IDLE_SECONDS = 3600  # without activity, after which a visit ends


@lru_cache(maxsize=2)  # the one that is shown, and the one that is restored
def _opened(file: Path) -> ImageFile:
    return images.read_file(file)


@dataclass(eq=False)
class Photo:
    """A photograph of a visit.

    Args:
        name: of its file at the visitor's.
        file: its copy in the visit's private folder.
        small: a small copy, which the browser fetches.
        size: height and width, upright.
        scales: those that were found for it, by checkpoint.
        result: its newest restoration.
    """

    name: str
    file: Path
    small: Path
    size: tuple[int, int]
    scales: dict[str, float] = field(default_factory=dict)
    result: "Result | None" = None

    @property
    def image(self) -> ImageFile:
        """Its pixels and metadata."""
        return _opened(self.file)

    @property
    def visible(self) -> Tensor | None:
        """Where it is not wholly transparent, (1, 1, H, W) of bool; None: everywhere."""
        return visible_pixels([self.image.alpha])


@dataclass(eq=False)
class Result:
    """A restoration of a photograph, whose strength can be changed.

    Args:
        photo: what was restored.
        settings: of the samples; `blend` is the strength.
        folder: has the inputs of a `Draft` as files of float32 (1, C, h, w), 672 MB for 24 megapixels at scale 1:
            x_init, s, discarded, and the samples r_0, r_1 and so on.
        scale: at which the photograph was restored.
        mask: (H, W) in [0, 1], what was to be restored; None: what looks blurred.
        facts: how it was made, by name.
    """

    photo: Photo
    settings: SamplingSettings
    folder: Path
    scale: float
    mask: Tensor | None
    facts: dict[str, str]
    notes: Sequence[str] = ()  # what is notable, in words
    faults: Sequence[str] = ()  # what is wrong, in words
    finished: Path | None = None  # the file of the result, if nothing else of it is kept

    @property
    def kinds(self) -> list[str]:
        """The kinds of images it has: the prediction, each sample, and the mean of several; the last is the result."""
        if self.finished:
            return ["restored"]
        count = len(list(self.folder.glob("r_*.npy")))
        if count < 2:
            return [PREDICTION, *["restored"] * count]
        return [PREDICTION, *(f"sample {k + 1} of {count}" for k in range(count)), f"mean of {count} samples"]

    def output(self, kind: str) -> DeblurOutput:
        """The restoration as the pipeline returns it, with one of `kinds` as its image."""
        samples = sorted(self.folder.glob("r_*.npy"), key=lambda file: int(file.stem[2:]))
        k = self.kinds.index(kind) - 1
        settings = replace(self.settings, average=True)
        if k < len(samples):
            samples = samples[k : k + 1] if k >= 0 else []
            settings = replace(settings, num_samples=1, blend=self.settings.blend if samples else 0.0)
        blurry = Blurry(self.photo.image.values[None], self.photo.visible, self.mask, self.scale)
        x_init, s, discarded = (self._stored(name) for name in ("x_init", "s", "discarded"))
        draft = Draft(blurry, Prediction(x_init, discarded=discarded), s)
        [output] = draft.restored(map(_loaded, samples), [settings])
        return output

    def _stored(self, name: str) -> Tensor | None:
        file = self.folder / f"{name}.npy"
        return _loaded(file) if file.is_file() else None

    def image(self, kind: str) -> Tensor:
        """One of `kinds`, (3, H, W) float32 in [0, 1]."""
        if self.finished:
            return images.read(self.finished)
        output = self.output(kind)
        return (output.predictions if kind == PREDICTION else output.images)[0]

    def std(self) -> Tensor | None:
        """Standard deviation over the samples, (3, H, W) in units of the [0, 1] range; None for one sample."""
        std = self.output(self.kinds[-1]).std if len(self.kinds) > 2 else None
        return None if std is None else std[0]

    def check(self) -> None:
        """Find what is notable, and what is wrong."""
        output, image, visible = self.output(self.kinds[-1]), self.photo.image, self.photo.visible
        suffix = PurePath(self.file_name(self.kinds[-1])).suffix
        amount = restored_amount(output.share.cpu(), visible)
        self.notes = notes(image, visible, amount, output, output.images[0], suffix, self.mask is not None)
        if len(self.kinds) > 1 and self.settings.blend > 0 and output.share.any():
            self.faults = faults(output.images[0], output.predictions[0], image.pixels, visible)

    def file_name(self, kind: str) -> str:
        """The file name that sample.py would use."""
        names = Names.of(named(PurePath(self.photo.name), None, False))
        if not kind.startswith("sample "):
            return names.target.name
        return names.restored(len(self.kinds) - 2)[self.kinds.index(kind) - 1].name

    def write(self, path: Path, kind: str, policy: Literal["keep", "none"]) -> None:
        """Write one of `kinds` as sample.py does, with metadata by its option."""
        if self.finished:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.finished, path)
        else:
            images.write(path, self.image(kind), metadata.of_restoration(self.photo.image, policy))

    def finish(self, policy: Literal["keep", "none"]) -> None:
        """Keep nothing but the file of the result at its present strength."""
        kind = self.kinds[-1]
        path = self.folder.with_name(f"{self.folder.name}_finished") / self.file_name(kind)
        self.write(path, kind, policy)
        self.finished = path
        shutil.rmtree(self.folder)

    def remove(self) -> None:
        """Keep nothing."""
        shutil.rmtree(self.finished.parent if self.finished else self.folder, ignore_errors=True)


class Visit:
    """One visitor's photographs and results.

    Args:
        folder: for private files; it is created.
        served: for files that the browser fetches under unguessable names; created on first use.
    """

    def __init__(self, folder: Path, served: Path):
        self.folder, self.served = folder, served
        self.photos: list[Photo] = []
        self.shown: Photo | None = None
        self.measuring: Future | None = None  # finds `restoration.Way` by word for these photographs
        self.is_text = False  # whether they are known to be a page of text
        self.results: list[Result] = []  # the newest last
        self.stop, self.lock, self.used = Event(), RLock(), 0.0
        self._files: dict[object, Path] = {}  # the one that was served last comes last
        folder.mkdir(parents=True)

    def replace(self, photos: list[Photo], is_text: bool) -> None:
        """Go on with other photographs; what is done with the ones before is stopped."""
        self.stop.set()
        if self.measuring:
            self.measuring.cancel()
        for photo in self.photos:
            photo.file.unlink(missing_ok=True)
            shutil.rmtree(photo.small.parent, ignore_errors=True)
        for result in self.results:
            result.remove()
        self.photos, self.shown, self.results = photos, photos[0], []
        self.is_text = is_text

    @property
    def ways(self) -> dict[str, NamedTuple]:
        """`restoration.Way` by word, which is waited for; CancelledError if the photographs gave way to others."""
        return self.measuring.result() if self.measuring else {}

    def keep(self, result: Result, policy: Literal["keep", "none"]) -> None:
        """Keep a photograph's newest result, and of the oldest beyond LARGEST_RESULTS the finished file alone."""
        if (before := result.photo.result) is not None:
            self.results.remove(before)
            before.remove()
        result.photo.result = result
        self.results.append(result)
        for oldest in self.results[:-1]:
            taken = sum(file.stat().st_size for file in self.folder.glob("*/*.npy"))
            if taken > LARGEST_RESULTS and not oldest.finished:
                oldest.finish(policy)

    def serve(self, key: object, name: str, write: Callable[[Path], None]) -> str:
        """The file that is served under a key, in a folder of its own; beyond LARGEST_SERVED the oldest are removed.

        One that was served under the key before is served again, unless gradio removed it; otherwise `write` writes it.
        """
        path = self._files.pop(key, None)
        if path is None or not path.is_file():
            path = self.served / uuid4().hex / name
            write(path)
        self._files[key] = path
        while len(self._files) > LARGEST_SERVED:
            shutil.rmtree(self._files.pop(next(iter(self._files))).parent, ignore_errors=True)
        return str(path)

    def close(self) -> None:
        """Stop what is done and remove every file."""
        self.stop.set()
        self.photos = []
        for folder in (self.folder, self.served):
            shutil.rmtree(folder, ignore_errors=True)


class Visits:
    """The open visits, by the session name of the browser's page.

    Args:
        folder: for private files, in its folder kept, and for files that the browser may fetch, in its folder served.
    """

    def __init__(self, folder: Path):
        self.kept, self.served, self._visits, self._lock = folder / "kept", folder / "served", {}, RLock()

    def of(self, name: str) -> Visit:
        """The visit of that name, created if necessary; visits that were idle too long are closed."""
        with self._lock:
            for other in [other for other, visit in self._visits.items() if monotonic() - visit.used > IDLE_SECONDS]:
                self.close(other)
            if name not in self._visits:
                self._visits[name] = Visit(self.kept / uuid4().hex, self.served / uuid4().hex)
            self._visits[name].used = monotonic()
            return self._visits[name]

    def close(self, name: str) -> None:
        """End a visit, if there is one with that name."""
        with self._lock:
            visit = self._visits.pop(name, None)
        if visit is not None:
            visit.close()

    def close_all(self) -> None:
        """End every visit."""
        for name in list(self._visits):
            self.close(name)


def _loaded(file: Path) -> Tensor:
    return torch.from_numpy(np.load(file, mmap_mode="c"))
