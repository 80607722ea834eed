"""Restore photographs for the page by the pipeline, and keep what their strength is changed with."""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple
from uuid import uuid4

import numpy as np
from huggingface_hub import metadata_load
from torch import Tensor

from deblur.hub import TEXT, find_folder
from deblur.pipeline import Area, DeblurPipeline, Limits
from deblur.restoration.duration import expected
from deblur.restoration.options import Options, ways
from deblur.restoration.outputs import Names
from deblur.restoration.restorer import Restorer
from deblur.settings import SamplingSettings
from deblur.tiling import allowed_memory, give_back, refusal, sides_in_words
from deblur.tools.web.served import Served
from deblur.tools.web.visits import Photo, Result, Visit

BEST, QUICK, PAGE = "Best", "Quick", "A page of text"  # ways to restore
DEVICE = ThreadPoolExecutor(1)  # runs all networks: a cancelled run may still be in its last step


class PhotoRestorer:
    """A pipeline that restores one photograph at a time.

    Args:
        options: those that app.py shares with sample.py, with a checkpoint.
        served: with the limits of a run.

    Raises:
        ValueError: no such checkpoint or device, or too little memory.
    """

    def __init__(self, options: Options, served: Served):
        self.options, self.served, self.name = options, served, options.checkpoint
        restorer = Restorer(options, {})
        self.pipeline, self.sha256 = restorer.pipeline, restorer.facts["checkpoint_sha256"]
        card = Path() if self.name.endswith(".ckpt") else find_folder(self.name) / "README.md"
        self.licence = ((metadata_load(card) if card.is_file() else None) or {}).get("license", "not stated")

    def restore(
        self,
        visit: Visit,
        photo: Photo,
        settings: SamplingSettings,
        seed: int,
        scale: float | Literal["auto"] = "auto",
        mask: Tensor | None = None,
    ) -> Result:
        """Restore a photograph and keep the result in the visit's folder.

        Args:
            visit: setting its `stop` ends the restoration within a part of a network.
            photo: one of the visit.
            settings, seed, scale: as of sample.py.
            mask: (H, W) in [0, 1], what is restored; None: what looks blurred.

        Raises:
            ValueError: it takes too long, or does not fit into memory.
            CancelledError: the visit's `stop` was set.
        """
        folder, started = visit.folder / uuid4().hex, time.perf_counter()

        def look() -> None:
            if visit.stop.is_set():
                raise CancelledError
            if time.perf_counter() - started > self.served.max_seconds:
                raise ValueError(
                    f"{photo.name} takes longer than the {self.served.max_seconds:g} seconds that this page takes: give"
                    " fewer steps or samples, or restore it with sample.py"
                )

        try:
            folder.mkdir()
            with _watched(self.pipeline, look):
                scale, tiles = self._draw(photo, folder, settings, seed, scale, mask)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if visit.stop.is_set():  # closing the visit removed its folder
                raise CancelledError from None
            if (sentence := refusal(error, *photo.size)) is not None:
                raise ValueError(f"{photo.name} {sentence}") from None
            raise
        give_back()
        seconds = time.perf_counter() - started
        facts = {
            "seed": str(seed),
            "scale": f"{scale:g}",
            "seconds": f"{seconds:.2f}",
            "tiles": sides_in_words(tiles),
            "device": f"{self.pipeline.place}, {self.pipeline.precision}",
            "checkpoint": f"{self.name}, licence {self.licence}",
            "sha256": self.sha256,
        }
        if mask is not None:
            facts["mask"] = f"{mask.mean():.0%} of the photograph painted"
        result = Result(photo, settings, folder, scale, mask, facts)
        result.check()
        return result

    def _draw(
        self,
        photo: Photo,
        folder: Path,
        settings: SamplingSettings,
        seed: int,
        scale: float | Literal["auto"],
        mask: Tensor | None,
    ) -> tuple[float, dict[str, int | None]]:
        """Keep the prediction and samples, which do not depend on the strength; returns the scale and the tiles."""
        pipeline, (height, width) = self.pipeline, photo.size
        is_kept = scale == "auto" and mask is None  # a mask changes where the scale is looked for
        if is_kept:
            scale = photo.scales.get(self.name, "auto")
        limits = Limits(memory=allowed_memory(self.options.memory, height * width, pipeline.device))

        def store(name: str, values: Tensor) -> None:
            np.save(folder / f"{name}.npy", values.cpu().numpy())

        blurry = pipeline.prepare(photo.image.values[None], Area(scale, mask, photo.visible), limits)
        if is_kept:
            photo.scales[self.name] = blurry.scale
        draft = pipeline.draft(blurry, settings.stages, limits)
        store("x_init", draft.prediction.x_init)
        if draft.prediction.discarded is not None:
            store("discarded", draft.prediction.discarded)
        if draft.s is not None:
            store("s", draft.s)
            names = [Path(photo.name).stem]  # which the noise depends on
            for k, r_0 in enumerate(pipeline.sample(draft, settings, seed, names, limits=limits)):
                store(f"r_{k}", r_0)
        return blurry.scale, draft.tiles


class Way(NamedTuple):
    """A checkpoint with a preset, the word for it, and about how many seconds a visit's photographs take by it."""

    word: str
    restorer: PhotoRestorer
    preset: str | None
    seconds: float


def ways_for(restorers: Mapping[str, PhotoRestorer], visit: Visit) -> dict[str, Way]:
    """How a visit's photographs can be restored, the way that sample.py would choose first, by the words for it.

    Quick is the next one of them that has another checkpoint.

    Args:
        restorers: by their checkpoints' names: those that sample.py chooses among, and the one for text; or one alone,
            whose name is then the word.
        visit: of whose photographs the time is measured, as a piece of one of them takes it.

    Raises:
        ValueError: they cannot be restored.
        CancelledError: others took their place.
    """
    first, photos = next(iter(restorers.values())), visit.photos
    sized = [(photo.file, Names.of(photo.file), *photo.size) for photo in photos]

    def look() -> None:
        if visit.photos is not photos:
            raise CancelledError

    def measured(word: str, restorer: PhotoRestorer, options: Options, may_take: float = math.inf) -> Way:
        one = Restorer(options, {}, restorer.pipeline)
        with _watched(restorer.pipeline, look):
            seconds = expected(one, sized, may_take).seconds
        for photo in photos:
            if photo.file in one.scales:
                photo.scales[restorer.name] = one.scales[photo.file]
        return Way(word, restorer, options.preset, seconds)

    if len(restorers) == 1:
        return {first.name: measured(first.name, first, first.options)}
    possible = iter(ways(replace(first.options, checkpoint=None), {}))
    for options, may_take in possible:
        best = measured(BEST, restorers[Path(options.checkpoint).name], options, may_take)
        if best.seconds <= may_take or first.pipeline.device.type != "cpu":
            break
    found = [best]
    for options, _ in possible:  # those after the best one
        restorer = restorers[Path(options.checkpoint).name]
        if restorer is not best.restorer:
            found.append(measured(QUICK, restorer, options))
            break
    if TEXT in restorers:
        found.append(measured(PAGE, restorers[TEXT], restorers[TEXT].options))
    return {way.word: way for way in found}


@contextmanager
def _watched(pipeline: DeblurPipeline, look: Callable[[], None]) -> Iterator[None]:
    """Call `look`, which may raise, before each layer of the networks runs."""
    networks = [network for network in (pipeline.predictor, pipeline.denoiser) if network is not None]
    layers = [layer for network in networks for layer in network.modules()]
    hooks = [layer.register_forward_pre_hook(lambda *given: look()) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
