"""Score a checkpoint over a grid of sampling settings: a table, the perception-distortion plot and a panel.

python evaluate.py --checkpoint runs/demo/checkpoint --data GoPro --grid configs/grid/demo.yaml --output scores
"""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Literal

from jsonargparse import auto_cli

PANEL_SAMPLES = 4
PANEL_IMAGES = 2


def main(
    data: str,
    grid: str,
    output: str,
    checkpoint: str | None = None,
    split: str = "test",
    variant: str = "blur",
    seed: int = 0,
    device: str = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    lpips_backbone: str | None = None,
    limit: int | None = None,
    panel: str | None = None,
) -> None:
    """Score a checkpoint over a grid of sampling settings by PSNR, SSIM and LPIPS.

    Writes results.csv (one row a setting, and the rows blurry and predictor), per_image.csv, results.json (with what
    the numbers depend on), pareto.png and panel.png into the output folder.

    Args:
        checkpoint: exported folder, hub id (user/name or user/name@revision), or .ckpt file of train.py; default:
            pretrained/lite, which comes with the repository.
        data: root folder of a dataset of pairs, in any layout of docs/data.md, or a CSV manifest.
        grid: YAML file with the settings to score, as configs/grid/demo.yaml.
        output: folder for the results; files of an earlier run in it are replaced.
        split: which split of the dataset.
        variant: which blurry pictures of the dataset, such as blur_gamma; blur is the first of every layout.
        seed: the same seed gives the same noise for a picture of the same name, in every setting.
        device: cpu, cuda, cuda:1, mps, or auto for the first of cuda, mps, cpu that is there.
        precision: of the networks; auto is bf16 where the device computes in it.
        lpips_backbone: AlexNet's feature layers on disk, torchvision's .pth or safetensors; default: torchvision's
            cache or download.
        limit: score only so many pairs, spread evenly over the list.
        panel: where to write the comparison of a few pictures at the best setting; default: panel.png in the output.
    """
    from evaluation.grid import SECONDS_RECIPE, average, best_sample, label_settings, read_grid, run_grid
    from models.settings import SamplingSettings

    settings = read_grid(grid, SamplingSettings)
    listing = _checked_pairs(data, split, variant, limit)
    pairs = listing.pairs
    folder = Path(output)
    panel_path = Path(panel) if panel else folder / "panel.png"
    if panel_path.suffix != ".png":
        raise ValueError(f"--panel must name a .png file, got {panel}")
    _make_writable(folder)
    _make_writable(panel_path.parent)

    from data.pairs import read_pair
    from evaluation.metrics import PSNR_RECIPE, SSIM_RECIPE, Lpips, psnr, ssim
    from evaluation.plots import plot_pareto
    from evaluation.results import format_table, write_results
    from models.checkpoints import checkpoint_hash, choose_device, has_bf16, load_pipeline, pretrained

    place = choose_device(device)
    checkpoint = checkpoint or pretrained()
    pipeline = load_pipeline(checkpoint, place, precision)
    lpips = Lpips(lpips_backbone)
    if lpips.reason is not None:
        print(lpips.reason)

    def refine(blurry, x_init, setting, name, progress):
        return pipeline.refine(blurry, x_init, setting, seed, [name], progress).images

    metrics = {"psnr": psnr, "ssim": ssim} | ({} if lpips.reason else {"lpips": lpips})
    cases = ((pair.name, *(picture.to(place) for picture in read_pair(pair))) for pair in pairs)
    scores = run_grid(cases, len(pairs), settings, pipeline.predict, refine, metrics)
    rows = average(scores, settings)

    facts = {
        "command": shlex.join(sys.argv),
        "checkpoint": {"name": checkpoint, "sha256": checkpoint_hash(checkpoint)},
        "data": {
            "root": data,
            "split": split,
            "layout": listing.layout,
            "variant": listing.variant,
            "images": len(pairs),
        },
        "grid": grid,
        "seed": seed,
        "device": str(place),
        "precision": precision if precision != "auto" else "bf16" if has_bf16(place) else "fp32",
        "git_commit": _git_commit(),
        "versions": _versions(),
        "recipes": {
            "psnr": PSNR_RECIPE,
            "ssim": SSIM_RECIPE,
            "lpips": lpips.recipe or lpips.reason,
            "seconds": SECONDS_RECIPE,
        },
    }
    files = write_results(folder, rows, scores, facts)
    plot_pareto(rows, folder / "pareto.png", lpips.reason)
    files.append(folder / "pareto.png")
    best = best_sample(rows)
    if best is not None:
        setting = settings[label_settings(settings).index(best.label)]
        chosen = [pairs[k * len(pairs) // PANEL_IMAGES] for k in range(min(PANEL_IMAGES, len(pairs)))]
        _write_panel(pipeline, place, chosen, setting, seed, panel_path)
        files.append(panel_path)
    print(format_table(rows))
    print("wrote " + ", ".join(str(file) for file in files))


def _checked_pairs(data: str, split: str, variant: str, limit: int | None):
    """The listing of the pairs to score, each read once, so that a bad file stops the run now and not after hours."""
    from dataclasses import replace

    from tqdm import tqdm

    from data.layouts import list_pairs, whole
    from data.pairs import read_pair

    listing = list_pairs(data, split, variant)
    pairs = whole(listing, data)
    print(f"{split}: {len(pairs)} pairs of {data} (layout {listing.layout}, variant {listing.variant})")
    if limit is not None:
        if limit < 1:
            raise ValueError(f"--limit must be 1 or more, got {limit}")
        limit = min(limit, len(pairs))
        pairs = [pairs[k * len(pairs) // limit] for k in range(limit)]
    for pair in tqdm(pairs, desc="checking the pictures", unit="pair", dynamic_ncols=True):
        read_pair(pair)
    return replace(listing, pairs=pairs)


def _make_writable(folder: Path) -> None:
    import tempfile

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"cannot write into the folder {folder}: {error.strerror}") from error


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


if __name__ == "__main__":
    try:
        auto_cli(main, as_positional=False)
    except (ValueError, OSError) as error:
        print(f"evaluate.py: error: {error}", file=sys.stderr)
        sys.exit(2)
