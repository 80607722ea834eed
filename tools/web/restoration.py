"""Restore photographs for the page as sample.py does, and keep what their strength is changed with."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import NamedTuple
from uuid import uuid4

from deblur.data.files.images import ImageError
from deblur.hub import SHIPPED, TEXT, name_of
from deblur.pipeline import DeblurPipeline
from deblur.restoration.duration import expected
from deblur.restoration.options import Options, ways
from deblur.restoration.restorer import Restorer
from deblur.tiling import give_back, refusal, sides_in_words
from deblur.tools.web.visits import Photo, Result, Visit

BEST, QUICK, PAGE = "Best", "Quick", "A page of text"  # ways to restore
DEVICE = ThreadPoolExecutor(1)  # runs all networks: a cancelled run may still be in its last step


class Way(NamedTuple):
    """A way to restore a visit's photographs, the word for it, and about how many seconds they take by it."""

    word: str
    restorer: Restorer
    seconds: float


def ways_for(restorers: Mapping[str, Restorer], visit: Visit) -> dict[str, Way]:
    """How a visit's photographs can be restored, the way that sample.py would choose first, by the words for it.

    Quick is the next one of them that has another checkpoint; if there is none, it is the best one, too.

    Args:
        restorers: by checkpoint: those that sample.py chooses among, and the one for text; or one alone, whose
            checkpoint is then the word.
        visit: of whose photographs the time is measured, as a piece of one of them takes it.

    Raises:
        ValueError: they cannot be restored.
        CancelledError: others took their place.
    """
    first, photos = next(iter(restorers.values())), visit.photos
    sized = [(photo.file, photo.names, *photo.size) for photo in photos]

    def look() -> None:
        if visit.photos is not photos:
            raise CancelledError

    def measured(word: str, options: Options, may_take: float = inf) -> Way:
        restorer = Restorer(options, {}, restorers[options.checkpoint])
        with watched(restorer.pipeline, look):
            return Way(word, restorer, expected(restorer, sized, may_take))

    if len(restorers) == 1:
        return {first.options.checkpoint: measured(first.options.checkpoint, first.options)}
    possible = ways(replace(first.options, checkpoint=None), {})
    while possible:
        options, may_take = possible.pop(0)
        best = measured(BEST, options, may_take)
        if best.seconds <= may_take or first.pipeline.device.type != "cpu":
            break
    others = [other for other, _ in possible if other.checkpoint != options.checkpoint]
    found = {BEST: best, QUICK: measured(QUICK, others[0]) if others else best}
    if (text := str(SHIPPED / TEXT)) in restorers:
        found[PAGE] = measured(PAGE, restorers[text].options)
    return found


def restore(restorer: Restorer, visit: Visit, photo: Photo, longest: float) -> Result:
    """Restore a photograph of a visit; setting the visit's `stop` ends that within a part of a network.

    Raises:
        ValueError: it takes longer than `longest` seconds, or does not fit into memory.
        CancelledError: the visit's `stop` was set.
    """
    folder, started = photo.folder / uuid4().hex, time.perf_counter()

    def look() -> None:
        if visit.stop.is_set():
            raise CancelledError
        if time.perf_counter() - started > longest:
            raise ValueError(
                f"{photo.name} takes longer than the {longest:g} seconds that this page takes: give fewer steps or"
                " samples, or restore it with sample.py"
            )

    try:
        folder.mkdir()
        photograph = restorer.photograph(photo.file, photo.names, photo.image)
        with watched(restorer.pipeline, look):
            draft, samples = restorer.draw([photograph], restorer.scale_of(photograph))
            result = Result(photo, restorer, folder, draft.blurry.scale)
            result.store(draft, samples)
        tiles = draft.tiles
        del draft, samples  # before as much is needed for the images
        give_back()
        found = restorer.restoration(photograph, result.output(result.kinds[-1]), time.perf_counter() - started)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if visit.stop.is_set():  # closing the visit removed its folder
            raise CancelledError from None
        if (sentence := refusal(error, *photo.size)) is not None:
            raise ValueError(f"{photo.name} {sentence}") from None
        if isinstance(error, ImageError):
            raise ValueError(str(error).replace(str(photo.file), photo.name)) from None
        raise
    result.notes, result.faults = found.notes, found.faults
    result.facts = {
        "seed": str(restorer.options.seed),
        "scale": f"{result.scale:g}",
        "seconds": f"{found.seconds:.2f}",
        "tiles": sides_in_words(tiles),
        "device": f"{restorer.pipeline.place}, {restorer.pipeline.precision}",
        "checkpoint": name_of(restorer.options.checkpoint),
        "sha256": restorer.facts["checkpoint_sha256"],
    }
    if restorer.mask is not None:
        result.facts["mask"] = f"{restorer.mask.mean():.0%} of the photograph painted"
    return result


@contextmanager
def watched(pipeline: DeblurPipeline, look: Callable[[], None]) -> Iterator[None]:
    """Call `look`, which may raise, before each layer of the networks runs."""
    networks = [network for network in (pipeline.predictor, pipeline.denoiser) if network is not None]
    layers = [layer for network in networks for layer in network.modules()]
    hooks = [layer.register_forward_pre_hook(lambda *given: look()) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
