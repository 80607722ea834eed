"""Files and folders that are replaced atomically, and folders that only one process may write to."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import yaml

from deblur.cli import UsageError

LONGEST_KEPT_NAME = 200  # bytes; file systems take 255, and a temporary name is longer than that of its file


class FolderInUse(OSError):
    """A folder holds files, or another process writes into it; the message names it."""


def temporary_path(path: Path, mark: str = "") -> Path:
    """The hidden path beside `path` of what is not whole yet, with its suffix; `mark` stands before `.part`."""
    stem, suffix = path.stem, path.suffix
    name = os.fsencode(path.name)
    if len(name) > LONGEST_KEPT_NAME:
        stem = sha256(name).hexdigest()
        suffix = suffix[:8]
    return path.with_name(f".{stem}{mark}.part{suffix}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write a file or a folder to; it replaces `path` when the block ends.

    If the block raises, what was written is removed and `path` stays as it was. A folder can only replace an empty
    folder.
    """
    part = temporary_path(path, f".{os.getpid()}")
    try:
        yield part
        os.replace(part, path)
    finally:
        _remove(part)


def require_writable(folder: Path, flag: str = "--output") -> None:
    """Create a folder if it is missing. OSError, which names the flag to change, if no file can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"cannot write into the folder {folder}: {error.strerror}; give another {flag}") from error


def require_free(folder: Path) -> None:
    """Raise FolderInUse unless a folder can be created: its path does not exist, or is an empty folder."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FolderInUse(f"{folder} is not an empty folder: give a new one")


def write_json(path: str | Path, content: Any) -> None:
    """Write a JSON file, and missing folders, atomically. Names of files that are not UTF-8 stand in it escaped."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        part.write_text(text, encoding="utf-8", errors="backslashreplace")


def read_yaml(path: str | Path, what: str) -> dict[str, Any]:
    """The keys and values of a YAML file. Raises UsageError, which calls it `what`, if it holds none."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{what} {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{what} {path} holds no keys with values: it begins with {str(content)[:40]!r}")
    return content


def remove_parts(folder: Path) -> None:
    """Remove temporary files that killed processes left in `folder`; no other process may be writing there."""
    for part in folder.glob(".*.part*"):
        _remove(part)


def locked(path: Path, timeout: float = -1) -> AbstractContextManager:
    """Hold a lock file, waiting at most `timeout` seconds for it (negative: no limit), then raise filelock.Timeout.

    The lock is released when its process ends for any reason; the file stays.
    """
    from filelock import FileLock  # not at the top: its import would double the start time of a command

    return FileLock(path, timeout)


@contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process alone; create it if it is missing. Released when the process ends for any reason.

    The lock is `.lock` in the folder; `.lock.pid` names the process that holds it.

    Raises:
        FolderInUse: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    owner = folder / ".lock.pid"
    lock = locked(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except TimeoutError:  # base class of filelock.Timeout
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
