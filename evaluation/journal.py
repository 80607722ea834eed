"""The scores of an evaluation on disk, so that it can be stopped at any moment and resumed."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from deblur.cli import UsageError
from deblur.storage import write_json

Facts: TypeAlias = "Mapping[str, str | int | float | bool | Facts | None]"


class Processes:
    """The processes that share an evaluation: this one alone. Of several, lightning's Fabric takes its place."""

    global_rank, local_rank, world_size, is_global_zero = 0, 0, 1, True

    def barrier(self) -> None:
        """Wait for the other processes."""

    def broadcast(self, value: Any) -> Any:
        """The first process's value, in every process."""
        return value


@dataclass(frozen=True)
class Score:
    """The scores of one image in the row with this key. `missing` gives the reason for each metric that is None."""

    row: str
    image: str
    seconds: float
    metrics: dict[str, float | None]
    missing: dict[str, str]


class Journal:
    """A folder with facts.json, which holds what the scores depend on, and one file of scores per process.

    Each line is a score and is appended in one write. A killed process leaves at most one incomplete last line, which
    is removed when the journal is opened again.

    Args:
        folder: created by the first process if it is missing.
        facts: what a score depends on besides row and image: name -> a value or a mapping of values.
        processes: each appends to its own file.
        overwrite: discard existing scores.

    Raises:
        UsageError: the folder holds an evaluation with other facts.
    """

    def __init__(self, folder: Path, facts: Facts, processes: Processes, overwrite: bool = False):
        self.folder, self.file = folder, folder / f"scores_{processes.global_rank}.jsonl"
        if processes.is_global_zero:
            if overwrite:
                shutil.rmtree(folder, ignore_errors=True)
            if (file := folder / "facts.json").is_file():
                self._compare(json.loads(file.read_text(encoding="utf-8")), json.loads(json.dumps(facts)))
            else:
                folder.mkdir(parents=True, exist_ok=True)
                write_json(file, facts)
        processes.barrier()
        if self.file.is_file():
            with self.file.open("rb+") as file:
                file.truncate(file.read().rfind(b"\n") + 1)

    def scores(self) -> dict[tuple[str, str], Score]:
        """The scores of all processes: (row, image) -> score."""
        scores = {}
        for file in sorted(self.folder.glob("scores_*.jsonl")):
            for line in file.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    score = Score(**json.loads(line))
                    scores[score.row, score.image] = score
        return scores

    def add(self, score: Score) -> None:
        """Append a score."""
        line = (json.dumps(asdict(score), ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        with self.file.open("ab", buffering=0) as file:
            written = file.write(line)
        if written != len(line):
            raise OSError(f"{self.file} could not be written: the disk is full")

    def _compare(self, stored: dict, facts: dict) -> None:
        for name in facts | stored:
            was, now = stored.get(name), facts.get(name)
            if was == now:
                continue
            if isinstance(was, dict) and isinstance(now, dict):
                part = next(key for key in now | was if was.get(key) != now.get(key))
                name, was, now = f"{name} of {part}", was.get(part), now.get(part)
            was, now = ("none" if value is None else value for value in (was, now))
            raise UsageError(
                f"{self.folder} holds scores with another {name}: {was} there, {now} now; "
                "give another --output, or --overwrite true to start anew"
            )
