"""What the page keeps of each visitor, and for how long."""

import shutil
import time
from collections import OrderedDict
from pathlib import Path
from tempfile import mkdtemp
from threading import Event, RLock
from uuid import uuid4

from web.results import Kept, Photo, Result

MOST_BYTES = 2_000_000_000  # of a visit's results; the newest is kept however large
MOST_FILES = 8  # that a visit serves at a time
IDLE = 3600  # seconds after which a visit has ended, where no closed page says so


class Visit:
    """One visitor's photograph and results.

    Args:
        folder: for what nobody is served; it is made.
        served: for what the browser may fetch by names that cannot be guessed; it is made when it is needed.
    """

    def __init__(self, folder: Path, served: Path):
        self.folder, self.served = folder, served
        self.photo: Photo | None = None
        self.results: list[Result] = []
        self.stop, self.lock, self.used, self.runs = Event(), RLock(), time.monotonic(), 0
        self._files: OrderedDict[object, Path] = OrderedDict()

    def new_kept(self) -> Kept:
        """An empty place for what a run leaves."""
        self.runs += 1
        return Kept(self.folder / str(self.runs))

    def add(self, result: Result) -> None:
        """Keep a result, and of the older ones as many as MOST_BYTES hold."""
        self.results.append(result)
        while len(self.results) > 1 and sum(each.kept.bytes for each in self.results) > MOST_BYTES:
            shutil.rmtree(self.results.pop(0).kept.folder)

    def newest(self) -> Result | None:
        """The last result of the photograph that is open."""
        return next((result for result in reversed(self.results) if result.photo is self.photo), None)

    def served_before(self, key: object) -> Path | None:
        """The file that was served under a key, where it is still there."""
        return self._files.get(key)

    def serve(self, key: object, name: str) -> Path:
        """Where to write a file to be served, in a new folder; the oldest of MOST_FILES makes room for it."""
        path = self.served / uuid4().hex / name
        path.parent.mkdir(parents=True)
        self._files[key] = path
        while len(self._files) > MOST_FILES:
            shutil.rmtree(self._files.popitem(last=False)[1].parent, ignore_errors=True)
        return path

    def close(self) -> None:
        """Stop what runs and remove every file."""
        self.stop.set()
        for folder in (self.folder, self.served):
            shutil.rmtree(folder, ignore_errors=True)


class Visits:
    """The visits that are open, by the name that a browser's page gives itself.

    Args:
        folder: for what nobody is served.
        served: for what may be fetched.
    """

    def __init__(self, folder: Path, served: Path):
        self.folder, self.served, self._visits, self._lock = folder, served, {}, RLock()

    def of(self, name: str) -> Visit:
        """The visit of that name, a new one if need be; those that are idle for long are closed."""
        now = time.monotonic()
        with self._lock:
            for other in [other for other, visit in self._visits.items() if now - visit.used > IDLE]:
                self.close(other)
            if name not in self._visits:
                self._visits[name] = Visit(Path(mkdtemp(dir=self.folder)), self.served / uuid4().hex)
            self._visits[name].used = now
            return self._visits[name]

    def close(self, name: str) -> None:
        """End a visit, if there is one of that name."""
        with self._lock:
            visit = self._visits.pop(name, None)
        if visit is not None:
            visit.close()
