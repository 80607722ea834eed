"""Score a checkpoint over a grid of sampling settings: tables, the perception-distortion plot and a report.

python evaluate.py --checkpoint runs/demo/checkpoint --data GoPro --grid configs/grid/paper.yaml --output scores
torchrun --nproc_per_node 4 evaluate.py --checkpoint ... --data ... --grid ... --output scores
python evaluate.py --compare first/checkpoint second/checkpoint --data GoPro --grid configs/grid/quick.yaml --output ab
python evaluate.py --outputs rival/results --data GoPro --output rival/scores
python evaluate.py --data GoPro --output scores    # the presets of pretrained/lite
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser

PANEL_SAMPLES = 4
PANEL_IMAGES = 2
# Pixels that the denoiser sees at a time: a GPU is filled, a CPU is fastest with what stays in its caches.
BATCH_PIXELS = {"cpu": 2**16, "gpu": 2**22}
MOST_SLOTS = 32


def main(
    data: str,
    output: str,
    checkpoint: str | None = None,
    grid: str | None = None,
    outputs: str | None = None,
    compare: tuple[str, str] | None = None,
    split: str = "test",
    variant: str = "blur",
    seed: int = 0,
    race: bool = False,
    device: str = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    batch_size: int | None = None,
    metrics: str = "psnr,ssim,lpips",
    lpips_backbone: str | None = None,
    vgg_backbone: str | None = None,
    inception_backbone: str | None = None,
    kernels: str | None = None,
    limit: int | None = None,
    panel: str | None = None,
    save_presets: bool = False,
    wandb_project: str | None = None,
    overwrite: bool = False,
) -> None:
    """Score a checkpoint over a grid of sampling settings.

    Writes results.csv, .parquet and .json (one row a setting, and the rows blurry, predictor and sharp),
    per_image.parquet, report.html, pareto.png, panels, and journal/, out of which a run that was stopped goes on. Under
    torchrun or SLURM each process takes its share of the pictures.

    Args:
        data: root folder of a dataset of pairs, in any layout of docs/data.md, or a CSV manifest.
        output: folder for the results.
        checkpoint: exported folder, hub id (user/name or user/name@revision), or .ckpt file of train.py; default:
            pretrained/lite, which comes with the repository.
        grid: YAML file with the settings to score, as configs/grid/quick.yaml; default: the checkpoint's presets.
        outputs: folder of pictures that another program restored, named as the pairs of the dataset: scored as one
            more row, or alone where no grid is given.
        compare: two checkpoints in place of one, A and B: the same grid on the same pictures and noise, into the
            folders A and B of the output, and comparison.csv with the paired differences.
        split: which split of the dataset.
        variant: which blurry pictures of the dataset, such as blur_gamma; blur is the first of every layout.
        seed: the same seed gives the same noise for a picture of the same name, in every setting.
        race: run all settings on a few pictures, and go on with those that may still be on the Pareto front
            (docs/evaluation.md).
        device: cpu, cuda, cuda:1, mps, or auto for the first of cuda, mps, cpu that is there.
        precision: of the networks; auto is bf16 where the device computes in it.
        batch_size: pictures that the denoiser sees at a time; default: what suits the device and the pictures' size.
        metrics: names, separated by commas, out of docs/metrics.md; psnr and ssim are always there.
        lpips_backbone: AlexNet's feature layers on disk, torchvision's .pth or safetensors; default: those in
            pretrained/metrics.
        vgg_backbone: VGG16's feature layers likewise, for lpips_vgg; default: torchvision's cache or a
            download.
        inception_backbone: torch-fidelity's Inception weights, for fid and kid; default: torch's cache or download.
        kernels: .npz file with the blur kernel of each picture, for consistency.
        limit: score only so many pairs, spread evenly over the list.
        panel: where to write the comparison of a few pictures at the best setting; default: panel.png in the output.
        save_presets: write the settings with the best PSNR (faithful), the best LPIPS (vivid) and the knee between them
            (balanced) into the checkpoint's folder, for sample.py --preset.
        wandb_project: also log table, curve and panels to Weights & Biases, offline where there is no API key.
        overwrite: start anew in a folder that holds the scores of something else.
    """
    given = {name: value for name, value in locals().items() if name not in ("compare", "checkpoint", "output")}
    if compare is None:
        _evaluate(checkpoint, output, **given)
        return
    if given["grid"] is None:
        raise ValueError("--compare needs a --grid: two checkpoints have presets of their own")
    if checkpoint or outputs or save_presets or race:
        raise ValueError("--compare takes no --checkpoint, --outputs, --save_presets or --race")
    from evaluation.comparison import write_comparison

    folders = [Path(output) / name for name in "AB"]
    for folder, one in zip(folders, compare, strict=True):
        processes = _evaluate(one, str(folder), **given | {"panel": None})
    if processes.is_global_zero:
        path = write_comparison(folders, Path(output), seed)
        print(f"wrote {path}")


def _evaluate(
    checkpoint,
    output,
    *,
    data,
    grid,
    outputs,
    split,
    variant,
    seed,
    race,
    device,
    precision,
    batch_size,
    metrics,
    lpips_backbone,
    vgg_backbone,
    inception_backbone,
    kernels,
    limit,
    panel,
    save_presets,
    wandb_project,
    overwrite,
):
    """`main` for one checkpoint, or none; returns the processes that took part."""
    from evaluation.grid import SECONDS_RECIPE, best_sample, choose_presets, label_settings, read_grid
    from models.settings import SamplingSettings

    if race and grid is None:
        raise ValueError("--race needs a --grid")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"--batch_size must be 1 or more, got {batch_size}")
    settings = read_grid(grid, SamplingSettings) if grid else []
    if checkpoint is None and (settings or not outputs):
        from models.checkpoints import pretrained

        checkpoint = pretrained()
    if save_presets and not (checkpoint and Path(checkpoint).is_dir()):
        raise ValueError(f"--save_presets needs an exported checkpoint folder to write into, got {checkpoint}")
    folder = Path(output)
    panel_path = Path(panel) if panel else folder / "panel.png"
    if panel_path.suffix != ".png":
        raise ValueError(f"--panel must name a .png file, got {panel}")

    processes = _processes()
    listing, sizes, hashes = processes.broadcast(
        _checked_pairs(data, split, variant, limit) if processes.is_global_zero else None
    )
    rivals = _rivals(outputs, listing.pairs) if outputs else {}
    for needed in (folder, panel_path.parent):
        _make_writable(needed)

    from data.pairs import read_pair
    from evaluation import statistics
    from evaluation.controls import RECIPES
    from evaluation.grid import Picture, Restorer, run_grid, summarise
    from evaluation.journal import Journal
    from evaluation.metrics import make_metrics
    from evaluation.report import write_report
    from evaluation.results import format_table, write_results
    from models.checkpoints import checkpoint_hash, load_pipeline
    from models.devices import choose_device, has_bf16
    from models.pipeline import cost_of
    from models.presets import save_presets as write_presets

    place = choose_device(device)
    if processes.world_size > 1 and place.type == "cuda":
        place = choose_device(f"cuda:{processes.local_rank}")
    if precision == "auto":
        precision = "bf16" if has_bf16(place) else "fp32"
    wanted = {"psnr", "ssim", *metrics.replace(" ", "").split(",")} - {""}
    metrics = make_metrics(wanted, lpips_backbone, vgg_backbone, inception_backbone, kernels)
    computed = {name: metric for name, metric in metrics.items() if metric.reason is None}
    if processes.is_global_zero:
        for metric in metrics.values():
            if metric.reason is not None:
                print(metric.reason)
    pipeline = load_pipeline(checkpoint, place, precision) if checkpoint else None
    if pipeline and grid is None:
        settings = list(dict.fromkeys(pipeline.preset(name) for name in pipeline.config.presets))
        if not settings:
            raise ValueError(f"checkpoint {checkpoint} has no presets to score: give --grid")

    def slots(size: tuple[int, int]) -> int:
        return batch_size or slots_for(place.type, size)

    def refine(cases, slots, progress):
        return pipeline.refine_all(cases, seed, slots, progress)

    restorer = Restorer(pipeline.predict, refine, cost_of, slots, place) if pipeline else None
    pictures = [
        Picture(pair.name, size, lambda pair=pair: read_pair(pair))
        for pair, size in zip(listing.pairs, sizes, strict=True)
    ]
    names = [picture.name for picture in pictures]
    facts = {
        "checkpoint": checkpoint_hash(checkpoint) if checkpoint else None,
        "seed": seed,
        "precision": precision,
        "device": place.type,
        "batch_size": batch_size or "auto",
        "recipe": {name: metric.recipe or "missing" for name, metric in metrics.items()} | RECIPES,
        "picture": hashes,
        "outputs": {label: folder_hash for label, (_, folder_hash) in rivals.items()},
    }
    if overwrite and processes.is_global_zero:
        shutil.rmtree(folder / "journal", ignore_errors=True)
    processes.barrier()
    if processes.is_global_zero:
        Journal(folder / "journal", facts)  # one of them makes it, or refuses
    processes.barrier()
    journal = Journal(folder / "journal", facts, processes.global_rank)
    outcome = run_grid(
        pictures,
        settings,
        restorer,
        computed,
        journal,
        {label: read for label, (read, _) in rivals.items()},
        race,
        (processes.global_rank, processes.world_size),
        processes.barrier,
        seed,
    )
    if not processes.is_global_zero:
        return processes

    rows = summarise(outcome, names, settings, computed, journal, seed, list(rivals))
    presets = choose_presets(rows)
    described = {
        "command": shlex.join(sys.argv),
        "checkpoint": {"name": checkpoint, "sha256": facts["checkpoint"]} if checkpoint else None,
        "data": {
            "root": data,
            "split": split,
            "layout": listing.layout,
            "variant": listing.variant,
            "images": len(pictures),
            "sha256": hashlib.sha256(repr(sorted(hashes.items())).encode()).hexdigest(),
        },
        "grid": grid,
        "seed": seed,
        "race": race,
        "device": str(place),
        "precision": precision,
        "git_commit": _git_commit(),
        "versions": _versions(),
        "statistics": statistics.RECIPE,
        "seconds": SECONDS_RECIPE,
    }
    by_label = dict(zip(label_settings(settings), settings, strict=True))
    kept = _keep_pictures(folder, rows, outcome, pictures, by_label, restorer)
    files = write_results(folder, rows, outcome, names, settings, metrics, presets, described, kept)
    files += write_report(folder)
    best = best_sample(rows)
    if best is not None:
        count = min(PANEL_IMAGES, len(listing.pairs))
        chosen = [listing.pairs[k * len(listing.pairs) // PANEL_IMAGES] for k in range(count)]
        _write_panel(pipeline, place, chosen, by_label[best.label], seed, panel_path)
        files.append(panel_path)
    if save_presets:
        write_presets(Path(checkpoint), {name: by_label[row.label] for name, row in presets.items()})
        files.append(Path(checkpoint) / "model_index.json")
    if wandb_project:
        _log(wandb_project, folder, rows, described)
    print(format_table(rows))
    print("wrote " + ", ".join(str(file) for file in files))
    return processes


def slots_for(device: str, size: tuple[int, int]) -> int:
    """Pictures of a size (H, W) that the denoiser should see at a time on a kind of device."""
    pixels = BATCH_PIXELS["cpu" if device == "cpu" else "gpu"]
    return max(1, min(MOST_SLOTS, pixels // (size[0] * size[1])))


def _processes():
    """Lightning Fabric over the processes that torchrun or SLURM started, or this one alone.

    It is asked for ranks, barriers and a broadcast only, so it runs on the CPU whatever the networks run on.
    """
    from lightning.fabric import Fabric

    env = os.environ
    here = int(env.get("LOCAL_WORLD_SIZE") or env.get("SLURM_NTASKS_PER_NODE") or 1)
    nodes = int(env.get("GROUP_WORLD_SIZE") or env.get("SLURM_NNODES") or 1)
    try:
        fabric = Fabric(accelerator="cpu", devices=here, num_nodes=nodes)
    except RuntimeError as error:  # SLURM's variables do not fit together, such as --ntasks without --ntasks-per-node
        raise ValueError(" ".join(str(error).split())) from error
    fabric.launch()
    return fabric


def _checked_pairs(data: str, split: str, variant: str, limit: int | None):
    """The listing of the pairs to score, their sizes and hashes, each read once: a bad file stops the run now."""
    from dataclasses import replace

    from tqdm import tqdm

    from data.layouts import list_pairs, paired
    from data.pairs import read_pair

    listing = list_pairs(data, split, variant)
    pairs = paired(listing, data)
    print(f"{split}: {len(pairs)} pairs of {data} (layout {listing.layout}, variant {listing.variant})")
    if limit is not None:
        if limit < 1:
            raise ValueError(f"--limit must be 1 or more, got {limit}")
        limit = min(limit, len(pairs))
        pairs = [pairs[k * len(pairs) // limit] for k in range(limit)]
    sizes, hashes = [], {}
    for pair in tqdm(pairs, desc="checking the pictures", unit="pair", dynamic_ncols=True):
        blurry, _ = read_pair(pair)
        sizes.append(tuple(blurry.shape[1:]))
        hashes[pair.name] = hashlib.sha256(pair.blurry.read_bytes() + pair.sharp.read_bytes()).hexdigest()
    return replace(listing, pairs=pairs), sizes, hashes


def _rivals(outputs: str, pairs: list) -> dict:
    """label -> (function of a pair's name that reads its picture in the folder `outputs`, hash of those pictures)."""
    from data import images

    root, digest = Path(outputs), hashlib.sha256()
    found = {file.relative_to(root).with_suffix("").as_posix(): file for file in images.find(outputs)}
    for pair in pairs:
        if pair.name not in found:
            raise ValueError(f"--outputs {outputs} has no picture {pair.name} (of any suffix), which the dataset has")
        pixels, sharp = images.read(found[pair.name]), images.read(pair.sharp)
        if pixels.shape != sharp.shape:
            ours, theirs = (f"{x.shape[2]}x{x.shape[1]}" for x in (pixels, sharp))
            raise ValueError(f"{found[pair.name]} has {ours} pixels, and {pair.sharp}, its truth, {theirs}")
        digest.update(found[pair.name].read_bytes())
    return {f"outputs {root.resolve().name}": (lambda name: images.read(found[name]), digest.hexdigest())}


def _make_writable(folder: Path) -> None:
    import tempfile

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"cannot write into the folder {folder}: {error.strerror}") from error


def _keep_pictures(folder: Path, rows: list, outcome, pictures: list, by_label: dict, restorer) -> list[dict]:
    """Restore the best, median and worst picture of each setting on the front again, and write them for the report."""
    from itertools import groupby

    from tqdm import tqdm

    from data import images
    from evaluation.grid import key, pareto_front, perception_metric

    shutil.rmtree(folder / "pictures", ignore_errors=True)
    metric = perception_metric(rows)
    entries, wanted = [], {}
    by_name = {picture.name: picture for picture in pictures}
    # Where blurry or the prediction beats every setting, the settings' own front is shown.
    front = [row for row in pareto_front(rows) if row.settings] or pareto_front([row for row in rows if row.settings])
    for row in front:
        own = key(by_label[row.label])
        scored = {
            n: outcome.scores[own, n].metrics for n in by_name if outcome.scores[own, n].metrics[metric] is not None
        }
        order = sorted(scored, key=lambda name: scored[name][metric] if metric == "lpips" else -scored[name][metric])
        ranks = {"best": order[0], "median": order[(len(order) - 1) // 2], "worst": order[-1]}
        for rank, name in ranks.items():
            if name not in [entry["image"] for entry in entries if entry["setting"] == row.label]:
                values = {m: value for m, value in scored[name].items() if value is not None}
                entries.append({"setting": row.label, "image": name, "rank": rank, "scores": values})
                wanted.setdefault(name, []).append(by_label[row.label])
    numbers = {name: number for number, name in enumerate(sorted(wanted))}
    labels = {setting: label for label, setting in by_label.items()}

    def write(name: str, what: str, picture) -> str:
        images.write(folder / "pictures" / f"{numbers[name]}_{what}.png", picture.cpu().clamp(0, 1))
        return f"pictures/{numbers[name]}_{what}.png"

    files = {}

    def cases(group):
        for picture in group:
            blurry, sharp = (x.to(restorer.device) for x in picture.read())
            prediction = restorer.predict(blurry[None])[0]
            shown = {"blurry": blurry, "predictor": prediction[:3], "sharp": sharp}
            files[picture.name] = {what: write(picture.name, what, x) for what, x in shown.items()}
            yield picture.name, blurry, prediction, wanted[picture.name]

    ordered = sorted((by_name[name] for name in wanted), key=lambda picture: picture.size)
    steps = sum(restorer.cost(chosen)[1] for chosen in wanted.values()) if wanted else 0
    with tqdm(total=steps, desc="pictures of the front", unit="step", dynamic_ncols=True, disable=not steps) as bar:
        for size, group in groupby(ordered, key=lambda picture: picture.size):
            for name, setting, restored, _ in restorer.refine(cases(group), restorer.slots(size), bar.update):
                files[name, labels[setting]] = write(name, str(list(by_label).index(labels[setting])), restored[0])
    for entry in entries:
        entry["files"] = files[entry["image"]] | {"restored": files[entry["image"], entry["setting"]]}
    return entries


def _write_panel(pipeline, device, pairs: list, setting, seed: int, path: Path) -> None:
    from dataclasses import replace

    from tqdm import tqdm

    from data.pairs import read_pair
    from evaluation.plots import panel

    setting = replace(setting, num_samples=PANEL_SAMPLES, average=False)
    columns = {name: [] for name in ("blurry", "prediction", "sample", "mean of samples", "std", "sharp")}
    with tqdm(total=len(pairs) * PANEL_SAMPLES * setting.steps, desc="panel", unit="step", dynamic_ncols=True) as bar:

        def count(steps):
            for step in steps:
                yield step
                bar.update()

        for pair in pairs:
            blurry, sharp = read_pair(pair)
            batch = blurry[None].to(device)
            out = pipeline.refine(batch, pipeline.predict(batch), setting, seed, [pair.name], count)
            shown = (blurry, out.predictions[0], out.images[0], out.images.mean(0), out.std[0], sharp)
            for pictures, picture in zip(columns.values(), shown, strict=True):
                pictures.append(picture.cpu())
    panel(columns, path)


def _log(project: str, folder: Path, rows: list, facts: dict) -> None:
    """The table, the curve and the panels to Weights & Biases; to disk where there is no API key."""
    import wandb

    from evaluation.grid import perception_metric

    if "WANDB_MODE" not in os.environ and not wandb.login(prompt=False):
        wandb.setup(wandb.Settings(mode="offline"))
        print("Weights & Biases: no API key, so the run is logged offline; `wandb sync` uploads it later")
    names = list(rows[0].metrics)
    table = wandb.Table(
        columns=["setting", *names], data=[[row.label, *(row.metrics[name] for name in names)] for row in rows]
    )
    axes = "psnr", perception_metric(rows)
    curve = wandb.plot.scatter(table, *axes, title="Perception and distortion")
    files = {f"panels/{file.stem}": file for file in sorted((folder / "panels").glob("*.png"))}
    files["pareto"] = folder / "pareto.png"
    with wandb.init(project=project, config=facts, dir=folder, job_type="evaluate") as run:
        shown = {name: wandb.Image(str(file)) for name, file in files.items()}
        run.log({"results": table, "curve": curve} | shown)


def _git_commit() -> str | None:
    """The commit of this code, with "-dirty" where files differ from it; None outside git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import version

    packages = ("torch", "torchvision", "diffusers", "lpips", "scikit-image", "numpy", "pillow")
    return {"python": platform.python_version()} | {package: version(package) for package in packages}


def cli(args: list[str] | None = None) -> None:
    """The command line."""
    parser = ArgumentParser(description=__doc__, prog="evaluate.py")
    parser.add_function_arguments(main, as_positional=False, skip={"compare"})
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="two checkpoints in place of one: the same "
        "grid on the same pictures and noise, and the paired differences",
    )
    main(**vars(parser.parse_args(args)))


if __name__ == "__main__":
    try:
        cli()
    except (ValueError, OSError) as error:
        print(f"evaluate.py: error: {error}", file=sys.stderr)
        sys.exit(2)
