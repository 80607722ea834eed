"""Ending a run from outside."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(BaseException):
    """A signal ended the run; no error, and nothing that only catches errors may catch it.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int, message: str = ""):
        super().__init__(message)
        self.signal = number


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise `Stopped` until training begins, which then handles it: Lightning would exit with code 1."""

    def stop(number: int, frame) -> None:
        raise Stopped(number, "stopped before the first step; nothing was changed")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
