"""Restore photographs for the page with sample.py's pipeline, and keep the results."""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Lock

import numpy as np
from huggingface_hub import metadata_load
from torch import Tensor

from data.images import ImageError, header_size, read_file
from models.arrays import read_images
from models.checkpoints import checkpoint_hash, load_pipeline
from models.index import find_folder, name_of, pretrained
from models.memory import allowed_memory, give_back, require_memory
from models.samples import faults, refined_share
from models.settings import SamplingSettings
from models.tiling import refusal, sides_in_words
from restoration.options import Options
from web.results import Photo, Result
from web.visits import Visit

DEVICE = Lock()  # one run at a time, whichever the checkpoint


class Cancelled(Exception):
    """The visitor stopped a restoration; the message gives its progress."""


@dataclass(frozen=True)
class Limits:
    """What a visitor may ask for: pixels of a photograph, steps of a sample, samples and seconds of a run."""

    pixels: int
    steps: int = 100
    samples: int = 16
    seconds: float = 600

    def check(self, settings: SamplingSettings) -> None:
        """Raise ValueError if a run has more steps or samples."""
        for name, value, most in (
            ("steps", settings.steps, self.steps),
            ("samples", settings.num_samples, self.samples),
        ):
            if value > most:
                raise ValueError(f"this page takes at most {most} {name}, not {value}: restore it with sample.py")


class PhotoRestorer:
    """A pipeline that restores one photograph at a time.

    Args:
        options: those that app.py shares with sample.py.
        limits: of a photograph and a run.

    Raises:
        ValueError: no such checkpoint or device, or too little memory.
    """

    def __init__(self, options: Options, limits: Limits):
        self.options, self.limits = options, limits
        source, classes = options.checkpoint or pretrained(), options.classes or ()
        self.pipeline = load_pipeline(source, options.device, options.precision, options.provider, classes)
        require_memory(options.memory, self.pipeline.device)
        self.name = name_of(options.checkpoint)
        self.sha256, self.licence = checkpoint_hash(source), _licence(source)

    def __str__(self) -> str:
        return f"{self.name} on {self.pipeline.place}, {self.pipeline.precision}"

    def open(self, path: Path, name: str) -> Photo:
        """Read an uploaded photograph.

        Args:
            path: its file.
            name: its name in error messages.

        Raises:
            ImageError: it cannot be read (with sample.py's message), or is larger than the page accepts.
        """
        width, height = header_size(path) or (0, 0)
        if width * height > self.limits.pixels:
            raise ImageError(
                f"{name} has {width} x {height} pixels, more than the {self.limits.pixels / 1e6:g} megapixels that this"
                " page takes: restore it with sample.py"
            )
        try:
            return Photo(path, read_file(path))
        except ImageError as error:
            raise ImageError(str(error).replace(str(path), name)) from None

    def restore(
        self,
        visit: Visit,
        preset: str | None,
        numbers: dict[str, str | int | float],
        seed: int,
        tell: Callable[[int, int, str], None],
    ) -> Result:
        """Restore the photograph of a visit and keep the result in the visit.

        Args:
            visit: has the photograph; setting its `stop` ends the restoration within a step.
            preset: of the checkpoint; None for sample.py's default.
            numbers: settings that override the preset's, as on the command line of sample.py.
            seed: of the noise.
            tell: called with steps done, total steps, and a short message.

        Raises:
            ValueError: inconsistent settings, or an image that does not fit into memory.
            Cancelled: the visit's `stop` was set.
        """
        photo, stop, preset = visit.photo, visit.stop, preset or None
        base = self.pipeline.preset(preset)
        settings = base.changed(numbers)
        self.limits.check(settings)
        draws = self.pipeline.denoiser is not None
        size = photo.size[0] * photo.size[1]
        clock = _Clock(settings.num_samples * settings.steps * draws, stop, tell, self.limits.seconds)
        with DEVICE:
            folder = visit.new_folder()
            try:
                clock.start()
                memory = allowed_memory(self.options.memory, size, self.pipeline.device)
                tiles = self._draw(photo, folder, settings, seed, clock, memory)
            except BaseException as error:
                shutil.rmtree(folder, ignore_errors=True)
                if stop.is_set():  # closing the visit removed its folder
                    raise Cancelled(clock.words()) from None
                sentence = refusal(error, *photo.size)
                if sentence is not None:
                    raise ValueError(f"{photo.path.name} {sentence}") from None
                raise
            predicting, refining = clock.seconds()
        options = replace(self.options, preset=preset, seed=seed)
        result = Result(visit.runs, photo, folder, settings, base, options, tiles=tiles)
        warnings = list(photo.image.remarks)
        if draws and settings.blend > 0:
            warnings += faults(result.image(result.kinds[1]), result.image("prediction"), photo.image.pixels)
        result.facts = {"warning": "; ".join(warnings)} if warnings else {}
        result.facts |= {
            "preset": preset or "of the checkpoint",
            "seed": str(seed),
            "seconds": f"{predicting:.2f} predictor, {refining:.2f} steps",
            "tiles": sides_in_words(tiles),
            "device": f"{self.pipeline.place}, {self.pipeline.precision}",
            "checkpoint": f"{self.name}, licence {self.licence}",
            "sha256": self.sha256,
        }
        give_back()
        return result

    def _draw(
        self,
        photo: Photo,
        folder: Path,
        settings: SamplingSettings,
        seed: int,
        clock: "_Clock",
        memory: int | None,
    ) -> dict[str, int | None]:
        """Predict, and keep the prediction and samples, which do not depend on the strength; returns the tiles."""
        pipeline = self.pipeline
        blurry = read_images(photo.image.pixels[None])[0].to(pipeline.device)
        prediction = pipeline.predict(blurry, memory=memory)

        def store(name: str, values: Tensor) -> None:
            np.save(folder / f"{name}.npy", values.cpu().numpy())

        store("x_init", prediction.x_init)
        if pipeline.denoiser is not None:
            share = refined_share(prediction.expected_error, settings.keep_sharp)
            store("s", pipeline.scale(prediction, blurry) * share)
            drawn = pipeline.sample(blurry, prediction, settings, seed, [photo.path.stem], clock.watch, memory=memory)
            for k, r_0 in enumerate(drawn):
                store(f"r_{k}", r_0)
        return pipeline.tiles(blurry)


class _Clock:
    """Reports the progress of a restoration, measures its time, and ends it on request or after `most` seconds."""

    def __init__(self, total: int, stop: Event, tell: Callable[[int, int, str], None], most: float):
        self.total, self.stop, self.tell, self.most = total, stop, tell, most
        self.done, self.begun = 0, None

    def start(self) -> None:
        """Mark the start of the predictor."""
        self.started = time.perf_counter()
        if self.stop.is_set():
            raise Cancelled
        self.tell(0, self.total, "predicting")

    def watch(self, steps: Iterable) -> Iterator:
        """Wrap the steps of a sample."""
        self.begun = self.begun or time.perf_counter()
        for step in steps:
            if self.stop.is_set():
                raise Cancelled
            if time.perf_counter() - self.started > self.most:
                raise ValueError(
                    f"the run took longer than the {self.most:g} seconds that this page takes, with {self.words()}:"
                    " give fewer steps or samples, or restore the photograph with sample.py"
                )
            yield step
            self.done += 1
            left = (time.perf_counter() - self.begun) / self.done * (self.total - self.done)
            self.tell(self.done, self.total, f"{self.words()}, {left:.0f} s left")

    def words(self) -> str:
        """The progress in words."""
        return f"{self.done} of {self.total} step{'s' * (self.total != 1)} done"

    def seconds(self) -> tuple[float, float]:
        """Times of the predictor and of the steps."""
        now = time.perf_counter()
        begun = self.begun or now
        return begun - self.started, now - begun


def _licence(source: str) -> str:
    """The licence stated in the card of a checkpoint's folder."""
    card = Path() if source.endswith(".ckpt") else find_folder(source) / "README.md"
    found = metadata_load(card) if card.is_file() else None
    return (found or {}).get("license", "not stated")
