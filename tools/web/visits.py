"""The files that the page keeps for each visitor, and for how long."""

import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Event, RLock
from time import monotonic
from uuid import uuid4

from deblur.tools.web.results import Photo, Result

MOST_BYTES = 2_000_000_000  # of a visit's results; the newest is always kept
MOST_FILES = 8  # that a visit serves at a time
IDLE = 3600  # seconds without activity after which a visit ends


class Visit:
    """One visitor's photograph and results.

    Args:
        folder: for private files; it is created.
        served: for files that the browser fetches under unguessable names; created on first use.
    """

    def __init__(self, folder: Path, served: Path):
        self.folder, self.served = folder, served
        self.photo: Photo | None = None
        self.results: list[Result] = []
        self.stop, self.lock, self.used, self.runs = Event(), RLock(), 0.0, 0
        self._files: dict[object, Path] = {}  # the one that was served last comes last
        folder.mkdir(parents=True)

    def add(self, result: Result) -> None:
        """Keep a result, and drop the oldest ones beyond MOST_BYTES."""
        self.results.append(result)
        while len(self.results) > 1 and sum(file.stat().st_size for file in self.folder.glob("*/*")) > MOST_BYTES:
            shutil.rmtree(self.results.pop(0).folder)

    def serve(self, key: object, name: str, write: Callable[[Path], None]) -> str:
        """The file that is served under a key, in a folder of its own; beyond MOST_FILES the oldest ones are removed.

        One that was served under the key before is served again, unless gradio removed it; otherwise `write` writes it.
        """
        path = self._files.pop(key, None)
        if path is None or not path.is_file():
            path = self.served / uuid4().hex / name
            write(path)
        self._files[key] = path
        while len(self._files) > MOST_FILES:
            shutil.rmtree(self._files.pop(next(iter(self._files))).parent, ignore_errors=True)
        return str(path)

    def close(self) -> None:
        """Stop the run and remove every file."""
        self.stop.set()
        for folder in (self.folder, self.served):
            shutil.rmtree(folder, ignore_errors=True)


class Visits:
    """The open visits, by the session name of the browser's page.

    Args:
        folder: for private files, in its folder kept, and for files that the browser may fetch, in its folder served.
    """

    def __init__(self, folder: Path):
        self.kept, self.served, self._visits, self._lock = folder / "kept", folder / "served", {}, RLock()

    def of(self, name: str) -> Visit:
        """The visit of that name, created if necessary; visits that were idle too long are closed."""
        with self._lock:
            for other in [other for other, visit in self._visits.items() if monotonic() - visit.used > IDLE]:
                self.close(other)
            if name not in self._visits:
                self._visits[name] = Visit(self.kept / uuid4().hex, self.served / uuid4().hex)
            self._visits[name].used = monotonic()
            return self._visits[name]

    def close(self, name: str) -> None:
        """End a visit, if there is one with that name."""
        with self._lock:
            visit = self._visits.pop(name, None)
        if visit is not None:
            visit.close()
