"""--score: score one setting on pairs in a bucket, and write evaluate.py's files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from batch.store import Place
from batch.worker import Job, Worker
from data.layouts import DatasetError, Pair, list_pairs, paired
from data.pairs import read_pair
from data.search import SUFFIXES, ImageError
from evaluation.journal import Journal, Score
from evaluation.metrics import make_metrics
from evaluation.report import write_report
from evaluation.results import Results, format_table, provenance, write_results
from evaluation.scoring import ImagePair, Plan, recipes, score_images, steps_of
from evaluation.summary import image_table, summarise
from models.index import name_of
from models.settings import SamplingSettings

if TYPE_CHECKING:
    from ray.actor import ActorHandle

ALONE = SimpleNamespace(global_rank=0, world_size=1, is_global_zero=True)  # a chunk belongs to a single worker


def pairs_of(place: Place, split: str) -> list[dict[str, Any]]:
    """Pairs in a place, in a layout of docs/data.md, with `key` (the name), `bytes`, `modified`, `blurry`, `sharp`."""
    found, rows = place.list(), []
    with TemporaryDirectory() as folder:  # layouts are recognised by names and lists, so empty image files suffice
        for key in found:
            path = Path(folder, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"" if path.suffix.lower() in SUFFIXES else place.read(key))
        try:
            listing = paired(list_pairs(folder, split), folder)
        except DatasetError as error:
            raise ValueError(str(error).replace(folder, place.url)) from None
        for pair in listing:
            keys = [path.relative_to(folder).as_posix() for path in (pair.blurry, pair.sharp)]
            size, modified = sum(found[key].size for key in keys), max(found[key].mtime_ns for key in keys)
            rows.append(dict(key=pair.name, bytes=size, modified=modified, blurry=keys[0], sharp=keys[1]))
    return rows


class ScoreWorker(Worker):
    """A worker that scores restored images instead of keeping them."""

    def __init__(self, job: Job, begun: ActorHandle | None = None):
        super().__init__(job, begun)
        self.metrics = make_metrics(job.metrics)

    @property
    def facts(self) -> dict[str, Any]:
        """What the scores depend on besides the pair."""
        return self.restorer.facts | {"recipes": recipes(self.metrics)}

    def rows(self, chunk: Sequence[dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
        """Yield the manifest's rows for a chunk of pairs."""
        unread = self.fetch([row[side] for row in chunk for side in ("blurry", "sharp")], folder)
        rows, images = {row["key"]: row for row in chunk}, []
        for row in chunk:
            sides = row["blurry"], row["sharp"]
            try:
                for side in sides:
                    if side in unread:
                        raise ImageError(f"{side} {unread[side]}")
                blurry, sharp = read_pair(Pair(row["key"], *(folder / side for side in sides)))
            except (ImageError, DatasetError) as error:
                why = str(error).replace(f"{folder}/", "")
                yield self.row(rows.pop(row["key"]), error=f"cannot be scored: {why}")
            else:
                images.append(ImagePair(row["key"], tuple(blurry.shape[1:]), lambda pair=(blurry, sharp): pair))
        pipeline = self.restorer.pipeline
        plan = _plan(
            self.job,
            self.restorer.settings,
            images,
            folder,
            pipeline=pipeline,
            metrics=self.metrics,
            device=pipeline.device,
        )
        score_images(plan, images, plan.settings, "scores")
        scores = [asdict(score) for score in plan.journal.scores().values()]
        for name, row in rows.items():
            own = [score for score in scores if score["image"] == name]
            seconds = max(score["seconds"] for score in own)
            yield self.row(row, scores=json.dumps(own), seconds=seconds, written=[], device=pipeline.place)


def publish(table: pa.Table, names: Sequence[str], job: Job, facts: dict[str, Any], split: str) -> None:
    """Write results.csv, results.json, per_image.parquet and report.html for the pairs of these names to the target."""
    of_pairs = table.filter(pc.field("image").isin(pa.array(names, pa.string())))
    rows = of_pairs.select(["scores", "device"]).to_pylist()
    known = provenance() | {
        "checkpoint": {"name": name_of(job.options.checkpoint), "sha256": facts["checkpoint_sha256"]},
        "data": {"root": job.source.url, "split": split},
        "grid": None,
        "seed": job.options.seed,
        "device": rows[0]["device"],
        "precision": facts["precision"],
    }
    with TemporaryDirectory() as place:
        folder = Path(place, "results")
        folder.mkdir()
        images = [ImagePair(name, (0, 0), None) for name in sorted(names)]
        own = {"pipeline": job, "metrics": make_metrics(job.metrics), "facts": known}  # any pipeline, for its rows
        plan = _plan(job, SamplingSettings(**facts["settings"]), images, Path(place), **own)
        for score in (score for row in rows for score in json.loads(row["scores"])):
            plan.journal.add(Score(**score))
        scored, steps = image_table(plan), len(names) * steps_of(plan.settings)
        results = Results(scored, summarise(plan, scored), {}, steps)
        write_results(folder, plan, results)
        write_report(folder)
        files = [file for file in folder.rglob("*") if file.is_file()]
        job.target.write({file.relative_to(folder).as_posix(): file.read_bytes() for file in files})
    print(format_table(results.rows))


def _plan(job: Job, settings: SamplingSettings, images: Sequence[ImagePair], folder: Path, **own: Any) -> Plan:
    """A plan for these images with a single setting; the journal is in the folder."""
    return Plan(
        images=images,
        groups=[[settings]],
        settings=[settings],
        journal=Journal(folder / ".journal", {}),
        seed=job.options.seed,
        baselines={},
        batch_size=job.options.batch_size,
        processes=ALONE,
        **{"device": None, "facts": {}} | own,
    )
