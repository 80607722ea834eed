"""Restore photographs for the page with sample.py's pipeline, and keep the results."""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np
from huggingface_hub import metadata_load
from torch import Tensor

from deblur.checkpoints import checkpoint_hash, load_pipeline
from deblur.cli import number_of
from deblur.data.files.images import ImageError, header_size, read_file
from deblur.hub import find_folder
from deblur.keep_sharp import faults, kept_remarks, scale_remarks
from deblur.memory import allowed_memory, give_back, require_memory
from deblur.pipeline import Area, Limits
from deblur.restoration.options import Options
from deblur.settings import SamplingSettings
from deblur.tiling import refusal, sides_in_words
from deblur.tools.web.results import Photo, Result
from deblur.tools.web.served import Served
from deblur.tools.web.visits import Visit
from deblur.working_size import resized

Tell = Callable[[int, int, str], None]  # of steps done, of how many, in words
DEVICE = Lock()  # one run at a time, whichever the checkpoint: a cancelled one may still be in its last step


class PhotoRestorer:
    """A pipeline that restores one photograph at a time.

    Args:
        options: those that app.py shares with sample.py, with a checkpoint.
        served: with the limits of a photograph and a run.

    Raises:
        ValueError: no such checkpoint or device, or too little memory.
    """

    def __init__(self, options: Options, served: Served):
        self.options, self.served = options, served
        self.name, classes = options.checkpoint, options.classes or ()
        self.pipeline = load_pipeline(self.name, options.device, options.precision, options.provider, classes)
        require_memory(options.memory, self.pipeline.device)
        self.sha256 = checkpoint_hash(self.name)
        card = Path() if self.name.endswith(".ckpt") else find_folder(self.name) / "README.md"
        self.licence = ((metadata_load(card) if card.is_file() else None) or {}).get("license", "not stated")

    def __str__(self) -> str:
        return f"{self.name} on {self.pipeline.place}, {self.pipeline.precision}"

    def open(self, path: Path, name: str) -> Photo:
        """Read a photograph from a file, whose name at the visitor's is `name`.

        ImageError: it cannot be read (with sample.py's message), or is larger than the page accepts.
        """
        try:
            width, height = header_size(path)
            if width * height > 1e6 * self.served.max_pixels:
                raise ImageError(
                    f"{name} has {width} x {height} pixels, more than the {self.served.max_pixels:g} megapixels that"
                    " this page takes: restore it with sample.py"
                )
            return Photo(name, read_file(path))
        except ImageError as error:
            raise ImageError(str(error).replace(str(path), name)) from None

    def restore(
        self,
        visit: Visit,
        preset: str | None,
        numbers: dict[str, Any],
        seed: int,
        tell: Tell,
        scale: float | None = None,
        mask: Tensor | None = None,
    ) -> Result:
        """Restore the photograph of a visit and keep the result in the visit's folder.

        Args:
            visit: has the photograph; setting its `stop` ends the restoration within a step.
            preset, numbers, seed: as on the command line of sample.py.
            tell: is told of the progress.
            scale: as on the command line; None: auto.
            mask: (H, W) in [0, 1], what is restored, as on the command line; None: what looks blurred.

        Raises:
            ValueError: inconsistent settings, more than the page takes, or an image that does not fit into memory.
            CancelledError: the visit's `stop` was set.
        """
        photo, settings = visit.photo, self.pipeline.preset(preset).changed(numbers)
        for name, value in {"steps": settings.steps, "samples": settings.num_samples}.items():
            if value > (most := getattr(self.served, f"max_{name}")):
                raise ValueError(f"this page takes at most {most} {name}, not {value}: restore it with sample.py")
        with DEVICE:
            visit.runs += 1
            folder = visit.folder / str(visit.runs)
            folder.mkdir()
            try:
                scale = self._scale(photo, mask, tell) if scale is None else scale
                facts = self._draw(photo, folder, settings, seed, scale, visit.stop, tell)
            except BaseException as error:
                shutil.rmtree(folder, ignore_errors=True)
                if visit.stop.is_set():  # closing the visit removed its folder
                    raise CancelledError from None
                if (sentence := refusal(error, *photo.size)) is not None:
                    raise ValueError(f"{photo.name} {sentence}") from None
                raise
        facts = {"preset": preset or "of the checkpoint", "seed": str(seed), **facts}
        if mask is not None:
            facts["mask"] = f"{mask.mean():.0%} of the photograph painted"
        name = preset or settings.sampler
        result = Result(visit.runs, photo, folder, settings, self.name, name, facts, scale, mask)
        warnings = [*photo.image.remarks, *scale_remarks(scale, *photo.size, result.amount)]
        warnings += kept_remarks(result.amount, photo.values[0]) if mask is None else []
        if result.samples and settings.blend > 0 and result.share.any():
            pair = result.image(result.kinds[1]), result.image("prediction")
            warnings += faults(*pair, photo.image.pixels, photo.visible)
        if warnings:
            result.facts = {"warning": "; ".join(warnings)} | facts
        give_back()
        return result

    def _scale(self, photo: Photo, mask: Tensor | None, tell: Tell) -> float:
        """The scale at which the photograph is restored."""
        tell(0, 1, "looking for the scale")
        area = Area(mask=mask, visible=photo.visible)
        return self.pipeline.working_scale(photo.image.values[None], area, self._limits(photo))

    def _limits(self, photo: Photo) -> Limits:
        pixels = photo.image.pixels[0].numel()
        return Limits(memory=allowed_memory(self.options.memory, pixels, self.pipeline.device))

    def _draw(
        self, photo: Photo, folder: Path, settings: SamplingSettings, seed: int, scale: float, stop: Event, tell: Tell
    ) -> dict[str, str]:
        """Keep the prediction and samples, which do not depend on the strength; returns facts about the computation."""
        pipeline, started, done = self.pipeline, time.perf_counter(), 0
        total = settings.num_samples * settings.steps if pipeline.denoiser is not None else 0

        def report(words: str) -> None:
            tell(done, total, words)
            if stop.is_set():
                raise CancelledError

        def watch(steps: Iterable) -> Iterator:
            nonlocal done
            for step in steps:
                if time.perf_counter() - started > self.served.max_seconds:
                    raise ValueError(
                        f"the run took longer than the {self.served.max_seconds:g} seconds that this page takes, for"
                        f" {done} of {total} steps: give fewer steps or samples, or use sample.py"
                    )
                yield step
                done += 1
                left = (time.perf_counter() - predicted) / done * (total - done)
                report(f"{done} of {number_of(total, 'step')} done, {left:.0f} s left")

        def store(name: str, values: Tensor) -> None:
            np.save(folder / f"{name}.npy", values.cpu().numpy())

        report("predicting")
        visible, limits = photo.visible, self._limits(photo)
        blurry = pipeline.prepare(photo.image.values[None], Area(scale, visible=visible), limits)
        draft = pipeline.draft(blurry, settings.stages, limits)
        store("x_init", draft.prediction.x_init)
        predicted = time.perf_counter()
        if total:
            store("s", draft.s)
            names = [Path(photo.name).stem]  # which the noise depends on
            for k, r_0 in enumerate(pipeline.sample(draft, settings, seed, names, watch, limits)):
                store(f"r_{k}", r_0)
        return {
            "seconds": f"{predicted - started:.2f} predictor, {time.perf_counter() - predicted:.2f} steps",
            "scale": f"{scale:g}",
            "tiles": sides_in_words(draft.tiles),
            "device": f"{pipeline.place}, {pipeline.precision}",
            "checkpoint": f"{self.name}, licence {self.licence}",
            "sha256": self.sha256,
        }


def painted(alpha: Tensor, height: int, width: int) -> Tensor | None:
    """The mask (height, width) in [0, 1] of what is painted on a copy of a photograph; None: nothing.

    Args:
        alpha: (1, h, w) uint8 of the painted layer, of the copy's size, which may be smaller than the photograph.
    """
    if not alpha.any():
        return None
    return resized(alpha[None].float() / 255, height, width).clamp(0, 1)[0, 0]
