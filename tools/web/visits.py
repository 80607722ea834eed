"""What the page keeps for each visitor, and for how long: photographs, and restorations that are blended again."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import Event, RLock
from time import monotonic
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from deblur.data.files import images, metadata
from deblur.data.files.images import ImageFile
from deblur.draft import Blurry, DeblurOutput, Draft, Prediction
from deblur.image_processor import visible_pixels
from deblur.restoration.outputs import Names, named
from deblur.restoration.restorer import Restorer
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
        folder: a private one, which has its copy and its result.
        small: a small copy, which the browser fetches.
        size: height and width, upright.
        result: its newest restoration.
    """

    name: str
    folder: Path
    small: Path
    size: tuple[int, int]
    result: "Result | None" = None

    @property
    def file(self) -> Path:
        """Its copy, under its name, on which the noise depends."""
        return self.folder / self.name

    @property
    def names(self) -> Names:
        """The names that sample.py would give to its restoration."""
        return Names.of(named(self.file, None, False))

    @property
    def image(self) -> ImageFile:
        """Its pixels and metadata."""
        return _opened(self.file)

    def remove(self) -> None:
        """Keep nothing of it, nor of its result."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.small.parent, ignore_errors=True)


@dataclass(eq=False)
class Result:
    """A restoration of a photograph, whose strength can be changed.

    Args:
        photo: what was restored.
        restorer: by which; its mask says what was to be restored.
        folder: has the inputs of a `Draft` as files of float32 (1, C, h, w), 672 MB for 24 megapixels at scale 1:
            x_init, s, discarded, and the samples r_0, r_1 and so on.
        scale: at which the photograph was restored.
        facts: how it was made, by name.
        notes, faults: what is notable, and what is wrong, in words.
        finished: the file of the result, if nothing else of it is kept.
    """

    photo: Photo
    restorer: Restorer
    folder: Path
    scale: float
    facts: dict[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    faults: Sequence[str] = ()
    finished: Path | None = None
    settings: SamplingSettings = field(init=False)  # whose blend is the strength

    def __post_init__(self):
        self.settings = self.restorer.settings

    def store(self, draft: Draft, samples: Iterable[Tensor]) -> None:
        """Keep a draft and its samples, which are drawn one by one."""
        self._store("x_init", draft.prediction.x_init)
        if draft.prediction.discarded is not None:
            self._store("discarded", draft.prediction.discarded)
        if draft.s is not None:
            self._store("s", draft.s)
            for k, r_0 in enumerate(samples):
                self._store(f"r_{k}", r_0)

    def _store(self, name: str, values: Tensor) -> None:
        np.save(self.folder / f"{name}.npy", values.cpu().numpy())

    def _stored(self, name: str) -> Tensor | None:
        file = self.folder / f"{name}.npy"
        return torch.from_numpy(np.load(file, mmap_mode="c")) if file.is_file() else None

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
        k, count = self.kinds.index(kind) - 1, len(list(self.folder.glob("r_*.npy")))
        wanted = range(count) if k == count else range(max(k, 0), k + 1)
        changes = {"average": True} if k == count else {"num_samples": 1, **({"blend": 0.0} if k < 0 else {})}
        blurry = Blurry(
            self.photo.image.values[None], visible_pixels([self.photo.image.alpha]), self.restorer.mask, self.scale
        )
        prediction = Prediction(self._stored("x_init"), discarded=self._stored("discarded"))
        samples = (self._stored(f"r_{number}") for number in wanted)
        [output] = Draft(blurry, prediction, self._stored("s")).restored(samples, [replace(self.settings, **changes)])
        return output

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

    def file_name(self, kind: str) -> str:
        """The file name that sample.py would use."""
        if not kind.startswith("sample "):
            return self.photo.names.target.name
        return self.photo.names.restored(len(self.kinds) - 2)[self.kinds.index(kind) - 1].name

    def write(self, path: Path, kind: str) -> None:
        """Write one of `kinds` as sample.py does."""
        if self.finished:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.finished, path)
        else:
            policy = self.restorer.options.metadata
            images.write(path, self.image(kind), metadata.of_restoration(self.photo.image, policy))

    def finish(self) -> None:
        """Keep nothing but the file of the result at its present strength."""
        path, parts = self.folder / self.photo.names.target.name, list(self.folder.glob("*.npy"))
        self.write(path, self.kinds[-1])
        self.finished = path
        for part in parts:
            part.unlink()


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
        self.stop, self.lock, self.used = Event(), RLock(), 0.0
        self._files: dict[object, Path] = {}  # the one that was served last comes last
        folder.mkdir(parents=True)

    def replace(self, photos: list[Photo], is_text: bool) -> None:
        """Go on with other photographs; what is done with the ones before is stopped."""
        self.stop.set()
        if self.measuring:
            self.measuring.cancel()
        for photo in self.photos:
            photo.remove()
        self.photos, self.shown, self.is_text = photos, photos[0], is_text

    @property
    def ways(self) -> dict[str, NamedTuple]:
        """`restoration.Way` by word, which is waited for; CancelledError if the photographs gave way to others."""
        return self.measuring.result() if self.measuring else {}

    @property
    def results(self) -> list[Result]:
        """Of the photographs that have one."""
        return [photo.result for photo in self.photos if photo.result]

    def keep(self, result: Result) -> None:
        """Keep a photograph's newest result, and of others beyond LARGEST_RESULTS the finished file alone."""
        if result.photo.result is not None:
            shutil.rmtree(result.photo.result.folder)
        result.photo.result = result
        for other in self.results:
            taken = sum(file.stat().st_size for file in self.folder.rglob("*.npy"))
            if taken > LARGEST_RESULTS and other is not result and not other.finished:
                other.finish()

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
