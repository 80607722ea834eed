"""End a command by a signal."""

import signal
import sys
from collections.abc import Callable

from base.messages import in_words


class Stopped(BaseException):
    """A signal ended the command. It is not an error, so code that catches only errors must not catch it.

    Attributes:
        signal: the signal's number.
    """

    def __init__(self, number: int, message: str = ""):
        super().__init__(message)
        self.signal = number


def run_command(
    name: str, command: Callable[[], int | None], stopped: str, describe: Callable[[Exception], str] = in_words
) -> int:
    """Run a command and return its exit code; wrong input or a stop is reported in one sentence on stderr.

    Args:
        name: the script's name, for its messages.
        command: returns its exit code; None is 0.
        stopped: the message for Ctrl-C.
        describe: puts an error into a sentence.
    """

    def stop(number: int, frame) -> None:
        raise Stopped(number, stopped)

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    before = signal.signal(signal.SIGINT, stop)
    try:
        return command() or 0
    except SystemExit as end:  # after --help
        return end.code or 0
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"{name}: error: {describe(error)}", file=sys.stderr)
        return 2
    except Stopped as end:
        if str(end):  # otherwise the command has said it itself
            print(f"{name}: {end}", file=sys.stderr)
        return 128 + end.signal
    finally:
        signal.signal(signal.SIGINT, before)
