"""Ending a command from outside."""

import signal
import sys
from collections.abc import Callable, Iterator
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


def run_command(name: str, command: Callable[[], int | None], stopped: str) -> int:
    """Run a command; returns its exit code, after one sentence on stderr where the input is at fault or it was stopped.

    Args:
        name: of the script, before what it says.
        command: returns its exit code; None is 0.
        stopped: what Ctrl-C says.
    """
    try:
        with interruptible(stopped):
            return command() or 0
    except (ValueError, OSError) as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 2
    except Stopped as end:
        print(f"{name}: {end}", file=sys.stderr)
        return 128 + end.signal
