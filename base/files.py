"""Files that are whole or not there, and folders that one process writes at a time."""

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryFile


class FolderInUse(OSError):
    """Another process writes into a folder; the message is one sentence that names both."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write a file or a folder to; it takes the place of `path` when the block ends.

    If the block raises, what was written is removed and `path` stays as it was. A folder can only take the place of
    an empty one.
    """
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield part
        os.replace(part, path)
    finally:
        _remove(part)


def require_writable(folder: Path) -> None:
    """Make a folder where it is missing; OSError in one sentence where no file can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"cannot write into the folder {folder}: {error.strerror}") from error


def is_free(folder: Path) -> bool:
    """Whether a folder can be made: nothing has its name, or an empty folder."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def remove_parts(folder: Path) -> None:
    """Remove what killed processes left of `replacing` in `folder`; nobody else may be writing there."""
    for part in folder.glob(".*.part*"):
        _remove(part)


def locked(path: Path, timeout: float = -1) -> AbstractContextManager:
    """Hold a lock file, waiting for it so many seconds (negative: as long as it takes; filelock.Timeout after that).

    The lock goes with the process that holds it, however that ends; the file stays.
    """
    from filelock import FileLock  # not above: it takes as long to import as all else that a command needs to start

    return FileLock(path, timeout)


@contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Hold `folder`, which is made where missing, for this process alone; released when it ends, however that ends.

    The lock is `.lock` in the folder, and the process that holds it stands in `.lock.pid`.

    Raises:
        FolderInUse: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    owner = folder / ".lock.pid"
    lock = locked(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except TimeoutError:  # what filelock.Timeout is
        pid = owner.read_text().strip() if owner.is_file() else "unknown"
        raise FolderInUse(
            f"another run (pid {pid}) uses {folder}: wait until it has ended, or give another folder"
        ) from None
    try:
        owner.write_text(f"{os.getpid()}\n")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
