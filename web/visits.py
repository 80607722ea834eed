"""The files that the page keeps for each visitor, and for how long."""

import shutil
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from threading import Event, RLock
from uuid import uuid4

from web.results import Photo, Result

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
        self._files: OrderedDict[object, Path] = OrderedDict()

    def new_folder(self) -> Path:
        """A new, empty folder for a run's result."""
        self.runs += 1
        folder = self.folder / str(self.runs)
        folder.mkdir()
        return folder

    def add(self, result: Result) -> None:
        """Keep a result, and drop the oldest ones beyond MOST_BYTES."""
        self.results.append(result)
        while len(self.results) > 1 and sum(result.bytes for result in self.results) > MOST_BYTES:
            shutil.rmtree(self.results.pop(0).folder)

    def newest(self) -> Result | None:
        """The newest result of the open photograph."""
        return next((result for result in reversed(self.results) if result.photo is self.photo), None)

    def served_before(self, key: object) -> Path | None:
        """The file that was served under a key, if it still exists; it then counts as the newest."""
        if key in self._files:
            self._files.move_to_end(key)
        return self._files.get(key)

    def serve(self, key: object, name: str) -> Path:
        """A path in a new folder for a file to serve; beyond MOST_FILES the oldest file is removed."""
        path = self.served / uuid4().hex / name
        path.parent.mkdir(parents=True)
        gone = [self._files.pop(key)] if key in self._files else []
        self._files[key] = path  # as the newest
        while len(self._files) > MOST_FILES:
            gone.append(self._files.popitem(last=False)[1])
        for old in gone:
            shutil.rmtree(old.parent, ignore_errors=True)
        return path

    def close(self) -> None:
        """Stop the run and remove every file."""
        self.stop.set()
        for folder in (self.folder, self.served):
            shutil.rmtree(folder, ignore_errors=True)


class Visits:
    """The open visits, by the session name of the browser's page.

    Args:
        folder: for private files.
        served: for files that the browser may fetch.
        clock: returns the time in seconds.
    """

    def __init__(self, folder: Path, served: Path, clock: Callable[[], float] = time.monotonic):
        self.folder, self.served, self.clock, self._visits, self._lock = folder, served, clock, {}, RLock()

    def of(self, name: str) -> Visit:
        """The visit of that name, created if necessary; visits that were idle too long are closed."""
        now = self.clock()
        with self._lock:
            for other in [other for other, visit in self._visits.items() if now - visit.used > IDLE]:
                self.close(other)
            if name not in self._visits:
                self._visits[name] = Visit(Path(mkdtemp(dir=self.folder)), self.served / uuid4().hex)
            self._visits[name].used = now
            return self._visits[name]

    def close(self, name: str) -> None:
        """End a visit, if there is one with that name."""
        with self._lock:
            visit = self._visits.pop(name, None)
        if visit is not None:
            visit.close()
