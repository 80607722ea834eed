"""Score a checkpoint over a grid of sampling settings: tables, the perception-distortion plot and a report.

python evaluate.py --checkpoint runs/demo/checkpoint --data GoPro --grid configs/grid/paper.yaml --output scores
torchrun --nproc_per_node 4 evaluate.py --checkpoint ... --data ... --grid ... --output scores
python evaluate.py --checkpoints A/checkpoint B/checkpoint --data GoPro --grid configs/grid/quick.yaml --output ab
python evaluate.py --outputs baseline/results --data GoPro --output baseline/scores
python evaluate.py --data GoPro --output scores    # the presets of pretrained/lite
"""

import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from deblur.cli import Stopped, make_parser, run_command
from deblur.evaluation.catalogue import require_known
from deblur.files import require_writable, sole_user
from deblur.models.hub import PRETRAINED, locate, stored_index
from deblur.models.settings import SamplingSettings, require_device

if TYPE_CHECKING:  # these take seconds to import, and errors in the command line are reported first
    import torch
    from lightning.fabric import Fabric

    from deblur.evaluation.examples import Example
    from deblur.evaluation.scoring import Plan
    from deblur.evaluation.summary import Summary
    from deblur.models.pipeline import DeblurPipeline


@dataclass(frozen=True)
class Evaluation:
    """The command line.

    Writes results.csv and results.json (one row per setting, and the rows blurry, predictor, sharp and two controls),
    per_image.parquet, report.html, pareto.png, panel.png, and journal/, from which a stopped run is resumed. Under
    torchrun or SLURM the processes share the images.

    Args:
        data: root folder of a dataset of pairs, in any layout of docs/data.md, or a CSV manifest.
        output: folder for the results.
        checkpoint: exported folder, hub id (user/name or user/name@revision), or .ckpt file of train.py; default:
            pretrained/lite, which comes with the repository.
        grid: YAML file with the settings to score, such as configs/grid/quick.yaml; default: the checkpoint's presets.
        outputs: folder of images that another program restored, named as the pairs of the dataset. They are scored as
            an additional row, or alone if no grid is given.
        checkpoints: two checkpoints instead of one, A and B: the same grid on the same images and noise, written to the
            folders A and B of the output, and comparison.csv and report.html with the paired differences.
        split: which split of the dataset.
        variant: which blurry images of the dataset, such as blur_gamma; blur is the first variant of every layout.
        seed: the same seed gives the same noise for an image of the same name, in every setting.
        device: cpu, cuda, cuda:1, mps, or auto for the first available of cuda, mps, cpu.
        precision: of the networks; auto is bf16 where the device supports it in hardware.
        provider: what runs an ONNX folder (docs/deployment.md): openvino, the default if it is installed; or cpu, cuda
            or tensorrt of ONNX Runtime.
        classes: your own networks that the checkpoint names, such as mypred.MyPredictor, separated by commas
            (docs/extend.md).
        batch_size: images per batch of the networks; default: chosen by the device and the images' size.
        metrics: names from docs/metrics.md, separated by commas, or functions of your own, such as mymetric.contrast
            (docs/extend.md); psnr and ssim are always included.
        language: of the texts that cer compares with, as Tesseract names it: eng, deu, eng+fra.
        limit: score at most this many pairs, spread evenly over the list.
        panel: file for the comparison of a few images at the most perceptual setting; default: panel.png in the output.
        images: also write the image of every row but the controls, to images/ROW in the output, such as for FID
            (docs/metrics.md).
        save_presets: write the settings with the best PSNR (fidelity), the best LPIPS (perceptual) and the knee between
            them (balanced) into the checkpoint's folder, for sample.py --preset.
        overwrite: discard the scores of another evaluation in the output folder.
    """

    data: str
    output: str
    checkpoint: str | None = None
    grid: str | None = None
    outputs: str | None = None
    checkpoints: tuple[str, str] | None = None
    split: str = "test"
    variant: str = "blur"
    seed: int = 0
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    provider: Literal["openvino", "cpu", "cuda", "tensorrt"] | None = None
    classes: str | None = None
    batch_size: int | None = None
    metrics: str = "psnr,ssim,lpips"
    language: str = "eng"
    limit: int | None = None
    panel: str | None = None
    images: bool = False
    save_presets: bool = False
    overwrite: bool = False

    def __post_init__(self):
        for name in ("batch_size", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be 1 or more, got {value}")
        if self.checkpoints and self.grid is None:
            raise ValueError("--checkpoints needs a --grid: two checkpoints have presets of their own")
        if self.checkpoints and (self.checkpoint or self.outputs or self.save_presets):
            raise ValueError("--checkpoints takes no --checkpoint, --outputs or --save_presets")
        if self.panel_path.suffix != ".png":
            raise ValueError(f"--panel must name a .png file, got {self.panel}")

    @property
    def panel_path(self) -> Path:
        """The file for the panel."""
        return Path(self.panel) if self.panel else Path(self.output) / "panel.png"

    @property
    def metric_names(self) -> set[str]:
        """The requested metrics, and psnr and ssim."""
        return {"psnr", "ssim", *self.metrics.replace(" ", "").split(",")} - {""}

    @cached_property
    def settings(self) -> list[SamplingSettings]:
        """The settings of the grid; empty without a grid."""
        if self.grid is None:
            return []
        from deblur.evaluation.grid import read_grid  # not at the top: help and checks of names do not need it

        return read_grid(self.grid)


def score(evaluation: Evaluation) -> None:
    """Score one checkpoint, or only other programs' images, or compare two checkpoints."""
    check(evaluation)
    processes = find_processes()
    output, writes = Path(evaluation.output), processes.is_global_zero
    with sole_user(output) if writes else nullcontext():
        if evaluation.checkpoints is None:
            _evaluate(evaluation, processes)
            return
        found = {}
        for name, checkpoint in zip("AB", evaluation.checkpoints, strict=True):
            alone = replace(evaluation, checkpoints=None, checkpoint=checkpoint, output=str(output / name), panel=None)
            found[name] = _evaluate(alone, processes)
        if writes:
            from deblur.evaluation.comparison import format_changes, write_comparison
            from deblur.evaluation.report import write_joint_report

            changes = write_comparison(*(summary for summary, _ in found.values()), output, evaluation.seed)
            write_joint_report(output, found, changes)
            a, b = evaluation.checkpoints
            print(f"A: {a}, B: {b}; means over the images, 95 % intervals")
            print(format_changes(changes, found["A"][0].metrics))
            print(f"wrote {output}: open {output / 'report.html'}")


def check(evaluation: Evaluation) -> None:
    """Raise ValueError for a wrong name or path, before the libraries and the data are loaded."""
    require_known(evaluation.metric_names)
    require_device(evaluation.device)
    data = Path(evaluation.data)
    if not (data.is_dir() or data.is_file()):
        raise ValueError(f"--data {data} does not exist: give the root folder of a dataset, or a CSV manifest")
    if evaluation.outputs is not None and not Path(evaluation.outputs).exists():
        raise ValueError(f"--outputs {evaluation.outputs} does not exist")
    checkpoints = evaluation.checkpoints or ([evaluation.checkpoint] if evaluation.checkpoint else [])
    for checkpoint in checkpoints:
        stored_index(checkpoint)
    evaluation.settings  # noqa: B018 (reads the grid)
    require_writable(evaluation.panel_path.parent, "--panel" if evaluation.panel else "--output")
    require_writable(Path(evaluation.output))


def _evaluate(evaluation: Evaluation, processes: "Fabric") -> "tuple[Summary, list[Example]] | None":
    """Evaluate one checkpoint, or only other programs' images: the results, in the first process."""
    from deblur.evaluation.scoring import score_images

    plan = prepare(evaluation, processes)
    try:
        score_images(plan)
        return publish(evaluation, plan) if processes.is_global_zero else None
    except Stopped as stopped:
        done, wanted = len(plan.scored()), len(plan.rows) * len(plan.images)
        raise Stopped(stopped.signal, f"stopped, {done} of {wanted} done; run again to resume") from None


def prepare(evaluation: Evaluation, processes: "Fabric") -> "Plan":
    """Load everything the evaluation needs; errors are raised before anything is restored."""
    checkpoint = _checkpoint(evaluation)

    from deblur.data.pairs import read_pair
    from deblur.data.scored_pairs import read_baselines, scored_pairs
    from deblur.evaluation.journal import open_journal
    from deblur.evaluation.metrics import make_metrics
    from deblur.evaluation.results import provenance
    from deblur.evaluation.rows import rows_of
    from deblur.evaluation.scoring import ImagePair, Plan, depends_on
    from deblur.models.checkpoints import checkpoint_hash

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


def publish(evaluation: Evaluation, plan: "Plan") -> "tuple[Summary, list[Example]]":
    """Write the files, and store the presets if requested."""
    from deblur.evaluation.examples import keep_examples, write_panel
    from deblur.evaluation.report import write_report
    from deblur.evaluation.results import format_table, write_results
    from deblur.evaluation.summary import summarise

    folder, summary = Path(evaluation.output), summarise(plan)
    examples = keep_examples(folder, plan, summary)
    write_results(folder, summary, examples)
    write_report(folder, summary, examples)
    write_panel(plan, summary, evaluation.panel_path)
    if evaluation.save_presets:
        from deblur.models.checkpoints import save_presets

        save_presets(Path(_checkpoint(evaluation)), {name: row.row.settings for name, row in summary.presets.items()})
    print(format_table(summary))
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
    evaluation: Evaluation, processes: "Fabric", checkpoint: str | None
) -> "tuple[DeblurPipeline | None, torch.device, str, str]":
    """The pipeline if there is a checkpoint, its device, the device's name, and its precision."""
    from deblur.models.checkpoints import load_pipeline
    from deblur.models.devices import choose_device, resolve_precision

    on, device = evaluation.device, choose_device(evaluation.device)
    if processes.world_size > 1 and device.type == "cuda":
        on = f"cuda:{processes.local_rank}"
        device = choose_device(on)
    if checkpoint is None:
        return None, device, str(device), resolve_precision(evaluation.precision, device)
    classes = evaluation.classes or ()
    pipeline = load_pipeline(checkpoint, on, evaluation.precision, evaluation.provider, classes)
    return pipeline, pipeline.device, pipeline.place, pipeline.precision


def find_processes() -> "Fabric":
    """Lightning Fabric over the processes that torchrun or SLURM started, or over this one alone.

    It is used only for ranks, barriers and a broadcast, so it runs on the CPU wherever the networks run.
    """
    from lightning.fabric import Fabric

    env = os.environ
    here = int(env.get("LOCAL_WORLD_SIZE") or env.get("SLURM_NTASKS_PER_NODE") or 1)
    nodes = int(env.get("GROUP_WORLD_SIZE") or env.get("SLURM_NNODES") or 1)
    try:
        fabric = Fabric(accelerator="cpu", devices=here, num_nodes=nodes)
    except RuntimeError as error:  # inconsistent SLURM variables, such as --ntasks without --ntasks-per-node
        raise ValueError(" ".join(str(error).split())) from error
    fabric.launch()
    return fabric


def cli(args: list[str] | None = None) -> None:
    """Run the command line. Raises ValueError or OSError if something is wrong with it."""
    parser = make_parser("evaluate.py", __doc__, "--data PATH --output PATH [--FLAG VALUE ...]")
    parser.add_class_arguments(Evaluation)
    score(Evaluation(**parser.given(sys.argv[1:] if args is None else args)))


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code; wrong input is reported in one sentence on stderr."""
    return run_command("evaluate.py", lambda: cli(args), "stopped; run again to resume")


if __name__ == "__main__":
    sys.exit(main())
