"""Ending a command from outside."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(BaseException):
    """A signal ended the command; no error, and nothing that only catches errors may catch it.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int, message: str = ""):
        super().__init__(message)
        self.signal = number


@contextmanager
def interruptible(sentence: str) -> Iterator[None]:
    """Let Ctrl-C raise `Stopped`, with what is to be said, inside the block; unlike KeyboardInterrupt no traceback."""

    def stop(number: int, frame) -> None:
        raise Stopped(number, sentence)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
