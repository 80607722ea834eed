"""How long a job takes: measured on a piece of an image before it begins, and watched while it goes on."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from deblur.data.files.images import ImageError, header_size
from deblur.draft import Blurry
from deblur.progress import ProgressBar
from deblur.restoration.options import largest_scale
from deblur.restoration.outputs import Names
from deblur.restoration.photograph import Photograph
from deblur.restoration.restorer import Restorer, network_pixels

Sized = tuple[Path, Names, int, int]  # an image, its files, its height and width

# Sides in pixels of the pieces that are timed. Nothing is decided by the first call of a network, which reads its
# library from the disk, perhaps for half a minute; small pieces take longer for a pixel, too.
PIECE_SIDES = (64, 64, 192, 384)
LARGE_PIECE_SECONDS = 2.0  # seconds: a piece that takes longer is large enough
SHORT_JOB_SECONDS = 5.0  # seconds: a job that takes less need not be known exactly
HOPELESS_TIMES = 10.0  # times the seconds that a job may take, from which on no larger piece is timed
GIVEN_UP_TIMES = 2.0  # times the seconds that a job may take, from which on it is given up
WATCHED_FROM_SECONDS = 10.0  # seconds of a job, before which it is not given up


class TooSlow(Exception):
    """A job takes longer than it may.

    Attributes:
        seconds: that it would take in all.
    """

    def __init__(self, seconds: float):
        super().__init__(time_in_words(seconds))
        self.seconds = seconds


class WatchedBar(ProgressBar):
    """A bar of a share of all work, without counts. TooSlow if it moves too slowly for the seconds that it may take."""

    def __init__(self, total: int, may_take: float, disable: bool):
        look = "{desc}{percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
        super().__init__(total=total, bar_format=look, disable=disable)
        self.may_take, self.begun = may_take, time.monotonic()

    def update(self, n: float = 1) -> bool | None:
        """Move by `n`; TooSlow if there is more to do and it would take too long."""
        is_drawn = super().update(n)
        elapsed = time.monotonic() - self.begun
        is_done = math.isclose(self.n, self.total)  # its steps are fractions
        if self.n > 0 and not is_done and elapsed > WATCHED_FROM_SECONDS:
            in_all = elapsed * self.total / self.n
            if in_all > GIVEN_UP_TIMES * self.may_take:
                raise TooSlow(in_all)
        return is_drawn


def time_in_words(seconds: float) -> str:
    """About so many seconds: 45 s, 3 min, 2 h."""
    if seconds < 100:
        return f"{max(1, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.0f} h"


def sizes(work: Iterable[tuple[Path, Names]]) -> Iterator[Sized]:
    """The images with their sizes; a file that is no image is reported when it is restored."""
    for path, names in work:
        try:
            width, height = header_size(path)
        except (ImageError, OSError):
            continue
        yield path, names, height, width


def expected(restorer: Restorer, sized: Sequence[Sized], may_take: float) -> float:
    """About how many seconds images take by a restorer, as a piece of one of them takes it.

    The scale that is found for the first image with a choice stands for those of the others, and finding it counts,
    too; it is not looked for where the search and the smallest scale take longer than the images may take.
    """
    options, rule = restorer.options, restorer.pipeline.working_size

    def is_searched(one: Sized) -> bool:
        return options.scale == "auto" and rule is not None and len(rule.possible_scales(*one[2:])) > 1

    searched = [one for one in sized if is_searched(one)]
    others = [one for one in sized if not is_searched(one)]
    photograph = _first_of(restorer, searched or sized)
    if photograph is None:
        return 0.0
    others_pixels = _pixels(restorer, others, options.scale)
    least_pixels = others_pixels
    least_pixels += sum(_pixels(restorer, [one], min(rule.possible_scales(*one[2:]))) for one in searched)
    least_pixels += sum(rule.searched_pixels(height, width) for _, _, height, width in searched)
    pace = _seconds_a_pixel(restorer, photograph, least_pixels, may_take)
    least = pace * least_pixels
    if not searched or least > may_take:
        return least
    start = time.perf_counter()
    try:
        scale = restorer.scale_of(photograph)
    except ImageError:  # which is said in its turn
        return least
    search = time.perf_counter() - start
    return pace * (others_pixels + _pixels(restorer, searched, scale)) + search * (len(searched) - 1)


def _first_of(restorer: Restorer, sized: Sequence[Sized]) -> Photograph | None:
    """The first image that can be restored; the others are reported in their turn."""
    for path, names, _, _ in sized:
        try:
            return restorer.read(path, names)
        except ImageError:
            continue
    return None


def _pixels(restorer: Restorer, sized: Sequence[Sized], scale: float | Literal["auto"]) -> int:
    """How many pixels the predictor is given for images."""
    pixels = 0
    for _, _, height, width in sized:
        factor = largest_scale(scale, restorer.options.max_side, max(height, width))
        pixels += network_pixels(restorer.pipeline.predictor, round(factor * height), round(factor * width))
    return pixels


def _seconds_a_pixel(restorer: Restorer, photograph: Photograph, pixels: int, may_take: float) -> float:
    """The time of a pixel as a piece of an image takes it, and how much of it is the predictor's.

    Larger pieces are timed while that is quick, and worth it for so many pixels.
    """
    pipeline, settings = restorer.pipeline, restorer.settings
    for call, side in enumerate(PIECE_SIDES):
        piece = photograph.image.values[None, :, :side, :side].to(pipeline.device)
        start = time.perf_counter()
        draft = pipeline.draft(Blurry(piece), settings.stages)
        predicted = time.perf_counter()
        if settings.blend > 0:
            one = replace(settings, num_samples=1, average=False, keep_sharp=0.0)
            draft.restored(pipeline.sample(draft, one), [one])
        drawing = (time.perf_counter() - predicted) * settings.num_samples
        of_piece = predicted - start + drawing
        pace = of_piece / piece[0, 0].numel()
        restorer.predictor_share = (predicted - start) / max(of_piece, 1e-9)
        is_far = call > 0 and pace * pixels > HOPELESS_TIMES * may_take
        if is_far or (side > PIECE_SIDES[0] and (of_piece > LARGE_PIECE_SECONDS or pace * pixels <= SHORT_JOB_SECONDS)):
            break
    return pace
