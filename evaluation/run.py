"""What evaluate.py's flow calls: the pairs, the networks and the plan, and then the files of the results."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deblur.checkpoints import checkpoint_hash, save_presets
from deblur.data.files import images, search
from deblur.data.layouts import Source, paired
from deblur.data.pairs import read_pair
from deblur.devices import choose_device, resolve_precision
from deblur.evaluation.controls import RECIPES
from deblur.evaluation.grid import rows_of
from deblur.evaluation.journal import Facts, Journal, Processes
from deblur.evaluation.metrics import Metric
from deblur.evaluation.options import Evaluation
from deblur.evaluation.report import keep_examples, write_panel, write_report
from deblur.evaluation.results import (
    format_changes,
    format_table,
    provenance,
    write_comparison,
    write_document,
    write_results,
)
from deblur.evaluation.scoring import ImagePair, Plan
from deblur.evaluation.summary import Summary, summarise
from deblur.pipeline import load_pipeline
from deblur.progress import ProgressBar
from deblur.settings import SamplingSettings
from deblur.storage import sole_user


@contextmanager
def sharing(output: Path) -> Iterator[Processes]:
    """The processes that torchrun or SLURM started, as a Lightning Fabric, or this one alone.

    Fabric is used only for ranks, barriers and a broadcast, so it runs on the CPU wherever the networks run. The first
    process holds the folder of the results.
    """
    processes, env = Processes(), os.environ
    if {"WORLD_SIZE", "SLURM_NTASKS"} & env.keys():
        from lightning.fabric import Fabric  # not at the top: its import takes seconds, and one process needs none

        here = int(env.get("LOCAL_WORLD_SIZE") or env.get("SLURM_NTASKS_PER_NODE") or 1)
        nodes = int(env.get("GROUP_WORLD_SIZE") or env.get("SLURM_NNODES") or 1)
        try:
            processes = Fabric(accelerator="cpu", devices=here, num_nodes=nodes)
        except RuntimeError as error:  # inconsistent SLURM variables, such as --ntasks without --ntasks-per-node
            raise ValueError(" ".join(str(error).split())) from error
        processes.launch()
    with sole_user(output) if processes.is_global_zero else nullcontext():
        yield processes


@dataclass(frozen=True)
class ScoredPairs:
    """The pairs of a split, which can be read, and another program's images of them.

    Attributes:
        texts: the folder that has the texts of the images, if they are pages.
        images: in the order of the listing.
        hashes: name -> SHA-256 of the pair's two files.
        outputs: row label -> name -> the file that another program restored; at most one row.
        output_hashes: row label -> SHA-256 of its files.
        facts: what identifies the pairs.
    """

    texts: Path
    images: list[ImagePair]
    hashes: dict[str, str]
    outputs: dict[str, dict[str, Path]]
    output_hashes: dict[str, str]
    facts: Facts


def read_pairs(flags: Evaluation, processes: Processes) -> ScoredPairs:
    """The pairs of a split, or some of them, spread evenly over the list; each is read once by the first process.

    Raises:
        DatasetError, ImageError: a pair is missing, or cannot be read.
        ValueError: an image of another program is missing, or its size differs from its ground truth's.
    """
    if not processes.is_global_zero:
        return processes.broadcast(None)
    source = Source.named(flags.data)
    root = source.root or source.blurry
    split = source.split or flags.split
    listing = source.list_pairs(flags.split, flags.variant)
    pairs = paired(listing, root)
    print(f"{split}: {len(pairs)} pairs of {root} (layout {listing.layout}, variant {listing.variant})")
    count = min(flags.limit or len(pairs), len(pairs))
    pairs = [pairs[k * len(pairs) // count] for k in range(count)]
    found, hashes = [], {}
    for pair in ProgressBar(pairs, desc="checking the images", unit="pair"):
        size = tuple(read_pair(pair)[0].shape[1:])
        found.append(ImagePair(pair.name, size, partial(read_pair, pair)))
        hashes[pair.name] = hashlib.sha256(pair.blurry.read_bytes() + pair.sharp.read_bytes()).hexdigest()
    facts = {"root": flags.data, "split": split, "layout": listing.layout, "variant": listing.variant}
    facts |= {"images": count, "sha256": hashlib.sha256(repr(sorted(hashes.items())).encode()).hexdigest()}
    texts = Path(root) if Path(root).is_dir() else Path(root).parent
    rows, row_hashes = {}, {}
    if flags.outputs is not None:
        label = f"outputs {Path(flags.outputs).resolve().name}"
        rows[label], row_hashes[label] = _restored_files(flags.outputs, found)
    return processes.broadcast(ScoredPairs(texts, found, hashes, rows, row_hashes, facts))


def _restored_files(folder: str, pairs: Sequence[ImagePair]) -> tuple[dict[str, Path], str]:
    """The images of another program by the names of their pairs, and the SHA-256 of all."""
    there = {search.name_below(file, Path(folder)): file for file in search.find(folder)}
    files, digest = {}, hashlib.sha256()
    for pair in pairs:
        file = there.get(search.normalised(pair.name))
        if file is None:
            raise ValueError(f"--outputs {folder} has no image {pair.name} (of any suffix), which the dataset has")
        size = tuple(images.read(file).shape[1:])
        if size != pair.size:
            given, wanted = (f"{width}x{height}" for height, width in (size, pair.size))
            raise ValueError(f"{file} has {given} pixels, and its ground truth {wanted}")
        digest.update(file.read_bytes())
        files[pair.name] = file
    return files, digest.hexdigest()


def make_plan(
    flags: Evaluation,
    folder: Path,
    pairs: ScoredPairs,
    checkpoint: str | None,
    metrics: Mapping[str, Metric],
    settings: Sequence[SamplingSettings],
    processes: Processes,
) -> Plan:
    """What is scored in `folder`, with its journal; errors are raised before anything is restored.

    Without settings the presets of the checkpoint are scored, without a checkpoint only images.
    """
    place = flags.device
    device = choose_device(place)
    if processes.world_size > 1 and device.type == "cuda":
        place = f"cuda:{processes.local_rank}"
        device = choose_device(place)
    if checkpoint is None:
        pipeline, place, precision = None, str(device), resolve_precision(flags.precision, device)
    else:
        pipeline = load_pipeline(checkpoint, place, flags.precision, flags.provider, flags.classes or ())
        device, place, precision = pipeline.device, pipeline.place, pipeline.precision
        settings = settings or [pipeline.preset(name) for name in pipeline.config.presets]
        if not settings:
            raise ValueError(f"checkpoint {checkpoint} has no presets to score: give --grid")
    for metric in metrics.values():
        if metric.reason is not None and processes.is_global_zero:
            print(metric.reason)
    digest = checkpoint_hash(checkpoint) if checkpoint else None
    facts = provenance() | {  # what the numbers depend on, for results.json
        "data": pairs.facts,
        "grid": flags.grid,
        "seed": flags.seed,
        "checkpoint": {"name": checkpoint, "sha256": digest} if digest else None,
        "device": place,
        "precision": precision,
    }
    dependencies = {  # what a score depends on besides row and image, for the journal
        "checkpoint": digest,
        "seed": flags.seed,
        "precision": precision,
        "device": place.partition(":")[0],
        "batch_size": flags.batch_size or "auto",
        "recipe": {name: metric.recipe or "missing" for name, metric in metrics.items()} | RECIPES,
        "image": pairs.hashes,
        "outputs": pairs.output_hashes,
    }
    return Plan(
        folder=folder,
        images=pairs.images,
        settings=rows_of(settings),
        pipeline=pipeline,
        metrics=metrics,
        journal=Journal(folder / "journal", dependencies, processes, flags.overwrite),
        seed=flags.seed,
        outputs=pairs.outputs,
        batch_size=flags.batch_size,
        device=device,
        processes=processes,
        facts=facts,
        with_controls=flags.controls,
        keeps_images=flags.images,
    )


def publish(flags: Evaluation, plan: Plan, first: Summary | None = None) -> Summary | None:
    """Write the files of a plan whose journal is complete, in the first process: its results.

    `first` are the results that these are compared with, whose typical image is shown of these, too.
    """
    if not plan.processes.is_global_zero:
        return None
    summary = summarise(plan)
    write_results(plan.folder, summary)  # before the examples, which may have to be restored again
    print(format_table(summary))
    typical = {summary.typical, first and first.typical}
    keep_examples(plan, summary, sorted(typical - {None}))
    write_document(plan.folder, summary)
    write_report(plan.folder, {"": summary})
    if (flags.panel or flags.save_presets) and not summary.presets:
        print("no setting has a score on both axes of the curve, so there is no panel, and no preset to save")
    if flags.panel is not None:
        write_panel(plan, summary, Path(flags.panel))
    if flags.save_presets:
        presets = {name: row.settings for name, row in summary.presets.items()}
        save_presets(Path(plan.facts["checkpoint"]["name"]), presets)
    print(f"wrote {plan.folder}: open {plan.folder / 'report.html'}")
    return summary


def compare(flags: Evaluation, summaries: Mapping[str, Summary]) -> None:
    """Write what two evaluations of the same images and noise differ in, A and B, and their joint report."""
    output = Path(flags.output)
    a, b = summaries.values()
    changes = write_comparison(a, b, output, flags.seed)
    write_report(output, summaries, changes)
    names = ", ".join(f"{letter}: {summary.facts['checkpoint']['name']}" for letter, summary in summaries.items())
    print(f"{names}; means over the images, 95 % intervals")
    print(format_changes(changes, a.metrics))
    print(f"wrote {output}: open {output / 'report.html'}")
