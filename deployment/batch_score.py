"""deployment.batch --score: the scores of one setting over pairs in a bucket, and evaluate.py's files out of them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from base.revision import commit, versions
from data.layouts import DatasetError, Pair, list_pairs, paired
from data.pairs import read_pair
from data.search import SUFFIXES, ImageError
from deployment.batch_store import Place, StoreError
from deployment.batch_worker import Job, Worker
from evaluation import controls, scoring, statistics
from evaluation.journal import Journal, Score
from evaluation.metrics import make_metrics
from evaluation.report import write_report
from evaluation.results import Results, format_table, write_results
from evaluation.scoring import ImagePair, Plan, batch_size_for, score_images, steps_of
from evaluation.summary import image_table, summarise
from models.settings import SamplingSettings

if TYPE_CHECKING:
    from ray.actor import ActorHandle

ALONE = SimpleNamespace(global_rank=0, world_size=1, is_global_zero=True)  # a worker shares its chunk with nobody


def pairs_of(place: Place, split: str, variant: str) -> list[dict[str, Any]]:
    """The pairs in a place, by the layouts of docs/data.md: `key` (the name), `bytes`, `modified`, `blurry`, `sharp`.

    Layouts are recognised by names and lists, so they are looked for in a tree of empty files and the lists.
    """
    found = {key: file for key, file in place.list().items() if ".." not in PurePosixPath(key).parts}
    rows = []
    with TemporaryDirectory() as folder:
        for key in found:
            path = Path(folder, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"" if path.suffix.lower() in SUFFIXES else place.read(key))
        try:
            listing = paired(list_pairs(folder, split, variant), folder)
        except DatasetError as error:
            raise ValueError(str(error).replace(folder, place.url)) from None
        for pair in listing:
            keys = [path.relative_to(folder).as_posix() for path in (pair.blurry, pair.sharp)]
            stamp = {
                "bytes": sum(found[key].size for key in keys),
                "modified": max(found[key].mtime_ns for key in keys),
            }
            rows.append({"key": pair.name, **stamp, "blurry": keys[0], "sharp": keys[1]})
    return rows


class ScoreWorker(Worker):
    """A pipeline whose restorations are scored and not kept."""

    def __init__(self, job: Job, begun: ActorHandle | None = None):
        super().__init__(job, begun)
        self.metrics = make_metrics(job.score)

    @property
    def facts(self) -> dict[str, Any]:
        """What the scores depend on beside the pair."""
        recipes = {name: metric.recipe or "missing" for name, metric in self.metrics.items()} | controls.RECIPES
        return self.restorer.facts | {"recipes": recipes}

    def rows(self, chunk: Sequence[dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
        """The manifest's rows of a chunk of pairs."""
        files = self.fetch([row[side] for row in chunk for side in ("blurry", "sharp")], folder)
        rows, images = {row["key"]: row for row in chunk}, []
        for row, *sides in zip(chunk, files[::2], files[1::2], strict=True):
            try:
                for side in sides:
                    if isinstance(side, StoreError):
                        raise side
                blurry, sharp = read_pair(Pair(row["key"], *sides))
            except (StoreError, ImageError, DatasetError) as error:
                yield self.row(rows.pop(row["key"]), error=f"cannot be scored: {error}")
            else:
                images.append(ImagePair(row["key"], tuple(blurry.shape[1:]), lambda pair=(blurry, sharp): pair))
        journal, pipeline = Journal(folder / "journal", {}), self.restorer.pipeline
        size, settings = self.job.options.batch_size, [self.restorer.settings]
        plan = Plan(
            images=images,
            groups=[settings],
            settings=settings,
            pipeline=pipeline,
            metrics=self.metrics,
            journal=journal,
            seed=self.job.options.seed,
            baselines={},
            batch_size=lambda pixels: size or batch_size_for(pipeline.device.type, pixels),
            device=pipeline.device,
            processes=ALONE,
            facts={},
        )
        score_images(plan, images, settings, "scores")
        scores = list(journal.scores().values())
        for name, row in rows.items():
            own = [asdict(score) for score in scores if score.image == name]
            seconds = max(score["seconds"] for score in own)
            yield self.row(row, scores=json.dumps(own), seconds=seconds, written=[], device=pipeline.place)


def publish(table: pa.Table, names: Sequence[str], job: Job, facts: dict[str, Any]) -> None:
    """Write results.csv and .json, per_image.parquet and report.html of the pairs of these names to the target."""
    settings = [SamplingSettings(**facts["settings"])]
    rows = table.filter(pc.field("image").isin(pa.array(names, pa.string()))).to_pylist()
    with TemporaryDirectory() as place:
        folder = Path(place, "results")
        journal = Journal(Path(place, "journal"), {})
        for row in rows:
            for score in json.loads(row["scores"]):
                journal.add(Score(**score), {})
        known = {"checkpoint": {"name": job.options.checkpoint or "pretrained/lite"}, "device": rows[0]["device"]}
        known["checkpoint"]["sha256"] = facts["checkpoint_sha256"]
        known |= {"command": shlex.join(sys.argv), "data": {"root": job.source.url, "split": ""}, "grid": None}
        known |= {"seed": job.options.seed, "screen": False, "precision": facts["precision"], "git_commit": commit()}
        known |= {"statistics": statistics.RECIPE, "seconds": scoring.SECONDS_RECIPE}
        known["versions"] = versions("torch", "torchvision", "diffusers", "lpips", "scikit-image", "numpy", "ray")
        plan = Plan(
            images=[ImagePair(name, (0, 0), None) for name in sorted(names)],
            groups=[settings],
            settings=settings,
            pipeline=job,  # that there is one decides which rows there are
            metrics=make_metrics(job.score),
            journal=journal,
            seed=job.options.seed,
            baselines={},
            batch_size=None,
            device=None,
            processes=ALONE,
            facts=known,
        )
        scored = image_table(plan)
        steps = len(names) * steps_of(settings)
        results = Results(scored, summarise(plan, scored), {}, steps, steps)
        folder.mkdir()
        write_results(folder, plan, results)
        write_report(folder)
        files = [file for file in folder.rglob("*") if file.is_file()]
        job.target.write({file.relative_to(folder).as_posix(): file.read_bytes() for file in files})
    print(format_table(results.rows))
