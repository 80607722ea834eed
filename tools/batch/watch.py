"""Say so if a process ends without a word."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDED = (
    "the command was ended from outside, by Ray where a process of Ray's own such as its agent was killed, or by a"
    " signal; what is finished stays in {}, and the same command goes on from there"
)


@contextmanager
def watched(target: str) -> Iterator[None]:
    """Say so if this process ends inside the block without a word.

    Ray's library does that where its node is dead, for example since its agent was killed: no error is raised. A second
    process waits for the end, and speaks unless the block has ended in any other way.
    """
    end, alive = os.pipe()
    watcher = os.fork()
    if watcher == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.close(alive)
        if not os.read(end, 1):
            os.write(2, f"batch: error: {ENDED.format(target)}\n".encode(errors="backslashreplace"))
        os._exit(0)
    os.close(end)
    try:
        yield
    finally:
        os.write(alive, b"1")
        os.close(alive)
        os.waitpid(watcher, 0)
