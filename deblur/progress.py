"""Progress bars."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10  # between two lines where there is no terminal


class ProgressBar(tqdm):
    """tqdm's bar, as wide as the terminal. Without a terminal it prints a line every 10 seconds, for a log file."""

    def __init__(self, *args: Any, **options: Any):
        self.lined, self.printed = not sys.stderr.isatty(), time.monotonic()
        shape = {"ncols": 100, "leave": False, "mininterval": 0} if self.lined else {"dynamic_ncols": True}
        super().__init__(*args, **options | shape if self.lined else shape | options)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Draw the bar; in a log only if the last line is long enough ago."""
        if not self.lined:
            return super().display(msg, pos)
        if time.monotonic() - self.printed >= SECONDS_BETWEEN_LINES:
            self.printed = time.monotonic()
            print(self, file=sys.stderr, flush=True)
        return False

    def clear(self, nolock: bool = False) -> None:
        """Remove the bar before other lines are printed; the lines of a log stay."""
        if not self.lined:
            super().clear(nolock)


def counted(bar: tqdm, images: int) -> Callable[[Iterable], Iterator]:
    """A wrapper of denoising steps that advances the bar by `images` per step."""

    def progress(steps: Iterable) -> Iterator:
        for step in steps:
            yield step
            bar.update(images)

    return progress
