"""What evaluate.py does once its command line is read: load everything, score, write the results."""

import os
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from lightning.fabric import Fabric

from deblur.checkpoints import checkpoint_hash, load_pipeline, save_presets
from deblur.cli import Stopped
from deblur.data.pairs import read_pair
from deblur.data.scored_pairs import read_baselines, scored_pairs
from deblur.devices import choose_device, resolve_precision
from deblur.evaluation.comparison import format_changes, write_comparison
from deblur.evaluation.examples import Example, keep_examples, write_panel
from deblur.evaluation.journal import open_journal
from deblur.evaluation.metrics import make_metrics
from deblur.evaluation.options import Evaluation
from deblur.evaluation.report import write_joint_report, write_report
from deblur.evaluation.results import format_table, provenance, write_results
from deblur.evaluation.rows import rows_of
from deblur.evaluation.scoring import ImagePair, Plan, depends_on, score_images
from deblur.evaluation.summary import Summary, summarise
from deblur.hub import PRETRAINED, locate
from deblur.pipeline import DeblurPipeline
from deblur.storage import sole_user


def score(evaluation: Evaluation) -> None:
    """Score one checkpoint, or only other programs' images, or compare two checkpoints."""
    processes = find_processes()
    output, writes = Path(evaluation.output), processes.is_global_zero
    with sole_user(output) if writes else nullcontext():
        if evaluation.checkpoints is None:
            _evaluate(evaluation, processes)
            return
        evaluated = {}
        for name, checkpoint in zip("AB", evaluation.checkpoints, strict=True):
            alone = replace(evaluation, checkpoints=None, checkpoint=checkpoint, output=str(output / name), panel=None)
            evaluated[name] = _evaluate(alone, processes)
        if writes:
            changes = write_comparison(*(summary for summary, _ in evaluated.values()), output, evaluation.seed)
            write_joint_report(output, evaluated, changes)
            a, b = evaluation.checkpoints
            print(f"A: {a}, B: {b}; means over the images, 95 % intervals")
            print(format_changes(changes, evaluated["A"][0].metrics))
            print(f"wrote {output}: open {output / 'report.html'}")


def _evaluate(evaluation: Evaluation, processes: Fabric) -> tuple[Summary, list[Example]] | None:
    """Evaluate one checkpoint, or only other programs' images: the results, in the first process."""
    plan = prepare(evaluation, processes)
    try:
        score_images(plan)
        return publish(evaluation, plan) if processes.is_global_zero else None
    except Stopped as stopped:
        done, wanted = len(plan.scored()), len(plan.rows) * len(plan.images)
        raise Stopped(stopped.signal, f"stopped, {done} of {wanted} done; run again to resume") from None


def prepare(evaluation: Evaluation, processes: Fabric) -> Plan:
    """Load everything the evaluation needs; errors are raised before anything is restored."""
    checkpoint = _checkpoint(evaluation)
    source = evaluation.data, evaluation.split, evaluation.variant, evaluation.limit
    pairs = processes.broadcast(scored_pairs(*source) if processes.is_global_zero else None)
    baselines, baseline_hashes = read_baselines(evaluation.outputs, pairs.listing.pairs)
    pipeline, device, place, precision = _networks(evaluation, processes, checkpoint)
    data = Path(evaluation.data)
    texts = data if data.is_dir() else data.parent
    metrics = make_metrics(evaluation.metric_names, texts, evaluation.language)
    for metric in metrics.values():
        if metric.reason is not None and processes.is_global_zero:
            print(metric.reason)
    settings = evaluation.settings
    if pipeline is not None and not settings:
        settings = list(dict.fromkeys(pipeline.preset(name) for name in pipeline.config.presets))
        if not settings:
            raise ValueError(f"checkpoint {checkpoint} has no presets to score: give --grid")
    facts = provenance() | {  # what the numbers depend on, for results.json
        "data": {"root": evaluation.data, "split": evaluation.split} | pairs.facts,
        **{name: getattr(evaluation, name) for name in ("grid", "seed")},
        "checkpoint": {"name": checkpoint, "sha256": checkpoint_hash(checkpoint)} if checkpoint else None,
        "device": place,
        "precision": precision,
    }
    dependencies = depends_on(facts, metrics, evaluation.batch_size, pairs.hashes, baseline_hashes)
    sized = zip(pairs.listing.pairs, pairs.sizes, strict=True)
    return Plan(
        images=[ImagePair(pair.name, size, partial(read_pair, pair)) for pair, size in sized],
        settings=rows_of(settings),
        pipeline=pipeline,
        metrics=metrics,
        journal=open_journal(Path(evaluation.output) / "journal", dependencies, processes, evaluation.overwrite),
        seed=evaluation.seed,
        baselines=baselines,
        batch_size=evaluation.batch_size,
        device=device,
        processes=processes,
        facts=facts,
        restored=Path(evaluation.output) / "images" if evaluation.images else None,
    )


def publish(evaluation: Evaluation, plan: Plan) -> tuple[Summary, list[Example]]:
    """Write the files, and store the presets if requested."""
    folder, summary = Path(evaluation.output), summarise(plan)
    write_results(folder, summary)  # before the examples, which a slow predictor makes for longer than the scores
    print(format_table(summary))
    examples = keep_examples(folder, plan, summary)
    write_results(folder, summary, examples)
    write_report(folder, summary, examples)
    write_panel(plan, summary, evaluation.panel_path)
    if evaluation.save_presets:
        save_presets(Path(_checkpoint(evaluation)), {name: row.row.settings for name, row in summary.presets.items()})
    print(f"wrote {folder}: open {folder / 'report.html'}")
    return summary, examples


def _checkpoint(evaluation: Evaluation) -> str | None:
    """The checkpoint to score; None if only another program's images are scored."""
    checkpoint = evaluation.checkpoint and locate(evaluation.checkpoint)
    if checkpoint is None and (evaluation.settings or not evaluation.outputs):
        checkpoint = PRETRAINED
    if evaluation.save_presets and not (checkpoint and Path(checkpoint).is_dir()):
        raise ValueError(f"--save_presets needs an exported checkpoint folder to write into, got {checkpoint}")
    return checkpoint


def _networks(
    evaluation: Evaluation, processes: Fabric, checkpoint: str | None
) -> tuple[DeblurPipeline | None, torch.device, str, str]:
    """The pipeline if there is a checkpoint, its device, the device's name, and its precision."""
    on, device = evaluation.device, choose_device(evaluation.device)
    if processes.world_size > 1 and device.type == "cuda":
        on = f"cuda:{processes.local_rank}"
        device = choose_device(on)
    if checkpoint is None:
        return None, device, str(device), resolve_precision(evaluation.precision, device)
    classes = evaluation.classes or ()
    pipeline = load_pipeline(checkpoint, on, evaluation.precision, evaluation.provider, classes)
    return pipeline, pipeline.device, pipeline.place, pipeline.precision


def find_processes() -> Fabric:
    """Lightning Fabric over the processes that torchrun or SLURM started, or over this one alone.

    It is used only for ranks, barriers and a broadcast, so it runs on the CPU wherever the networks run.
    """
    env = os.environ
    here = int(env.get("LOCAL_WORLD_SIZE") or env.get("SLURM_NTASKS_PER_NODE") or 1)
    nodes = int(env.get("GROUP_WORLD_SIZE") or env.get("SLURM_NNODES") or 1)
    try:
        fabric = Fabric(accelerator="cpu", devices=here, num_nodes=nodes)
    except RuntimeError as error:  # inconsistent SLURM variables, such as --ntasks without --ntasks-per-node
        raise ValueError(" ".join(str(error).split())) from error
    fabric.launch()
    return fabric
