"""Restore blurry photographs: a file or a folder in, restored pictures out.

python sample.py photo.jpg --checkpoint runs/demo/checkpoint --output restored
python sample.py photos --checkpoint runs/demo/checkpoint --output restored --sampler ddpm --steps 50 --seed 1
torchrun --nproc_per_node 2 sample.py photos --checkpoint runs/demo/checkpoint --output restored
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser

from models.settings import SamplingSettings

COLOUR_DRIFT = 2 / 255  # the most that the mean of a colour channel may move away from the prediction's


def restore(
    input: str,
    settings: SamplingSettings,
    checkpoint: str,
    output: str,
    preset: Literal["faithful", "balanced", "vivid"] | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    tile: int | None = None,
    predictor_tile: int | None = None,
    guard: Literal["warn", "fallback"] = "warn",
    uncertainty: bool = False,
    compare: bool = False,
    overwrite: bool = False,
) -> int:
    """Restore every picture of `input`, in its own format and depth, with its metadata.

    Under torchrun each process takes its share of the list.

    Args:
        input: a picture, or a folder of pictures (searched recursively; its tree is kept).
        settings: how to sample.
        checkpoint: exported folder, hub id (user/name or user/name@revision), or .ckpt file of train.py.
        output: folder to write NAME.SUFFIX into (NAME_0.SUFFIX, NAME_1.SUFFIX, ... for several samples), and
            manifest.json, which says how each was made.
        preset: settings stored with the checkpoint, in place of the numbers.
        seed: the same seed gives the same noise for a picture of the same name.
        device: cpu, cuda, cuda:1, mps, or auto for the first of cuda, mps, cpu that is there.
        precision: of the networks; auto is bf16 where the device computes in it.
        tile: side of the denoiser's tiles for large pictures; default: whole, or what fits into memory.
        predictor_tile: the same for the predictor.
        guard: a sample that is less sharp than its input, or whose mean colour drifts from the prediction's by more
            than 2 of 255 levels, is warned of; with fallback the prediction is written in its place.
        uncertainty: also write the standard deviation of the samples, as NAME_std.png (heat map) and NAME_std.tif
            (float, in units of the [0, 1] range).
        compare: also write NAME_compare.png: blurry, prediction, restored.
        overwrite: restore again what the manifest says is done with the same checkpoint, settings and seed.

    Returns:
        The number of pictures that could not be restored; each is named on stderr.
    """
    from tqdm import tqdm

    from data import images
    from models.checkpoints import checkpoint_hash, choose_device, load_pipeline

    if preset and settings != SamplingSettings():
        raise ValueError("--preset stands in place of the sampling numbers: give it or them")
    pictures = images.find(input)
    targets = _targets(pictures, Path(input), Path(output))
    Path(output).mkdir(parents=True, exist_ok=True)
    pipeline = load_pipeline(checkpoint, choose_device(device), precision)
    settings = pipeline.preset(preset) if preset else settings
    if uncertainty and settings.num_samples == 1:
        raise ValueError("--uncertainty needs several samples: give --num_samples 2 or more")
    facts = {"checkpoint_sha256": checkpoint_hash(checkpoint), "settings": asdict(settings), "seed": seed}
    facts |= {"precision": precision, "guard": guard, "uncertainty": uncertainty, "compare": compare}
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    manifest = Manifest(Path(output), facts, rank if processes > 1 else None)
    work = [
        (picture, target)
        for picture, target in list(zip(pictures, targets, strict=True))[rank::processes]
        if overwrite or not manifest.has(picture)
    ]
    skipped = len(pictures[rank::processes]) - len(work)
    failures = []
    evaluations = settings.num_samples * settings.steps if settings.blend > 0 else 0
    with tqdm(total=len(work) * max(1, evaluations), unit="step", disable=rank > 0) as bar:

        def count(steps):
            for step in steps:
                yield step
                bar.update()

        for index, (path, target) in enumerate(work, start=1):
            bar.set_description(path.name)
            start = time.perf_counter()
            try:
                picture = images.read_picture(path)
                if picture.frames > 1:
                    bar.write(f"{path} has {picture.frames} frames: the first is restored", sys.stderr)
                out = pipeline(
                    picture.pixels, settings, seed, [path.stem], "pt", count, tile=tile, predictor_tile=predictor_tile
                )
                faults = _faults(out.images, out.predictions[0], picture.values) if settings.blend > 0 else []
                for fault in faults:
                    bar.write(f"{path}: {fault}{', the prediction is written' * (guard == 'fallback')}", sys.stderr)
                restored = out.predictions if faults and guard == "fallback" else out.images
                names = [target.name]
                if len(restored) > 1:
                    names = [f"{target.stem}_{k}{target.suffix}" for k in range(len(restored))]
                for name, image in zip(names, restored, strict=True):
                    images.write(target.with_name(name), image, picture)
                if uncertainty:
                    _write_uncertainty(target, out.std[0])
                if compare:
                    from evaluation.plots import panel

                    shown = {"blurry": picture.values, "prediction": out.predictions[0], "restored": restored[0]}
                    panel(shown, target.with_name(f"{target.stem}_compare.png"))
                manifest.add(path, target, names, time.perf_counter() - start, faults)
            except images.ImageError as error:
                failures.append(str(error))
            bar.update(index * max(1, evaluations) - bar.n)
    for failure in failures:
        print(f"sample.py: error: {failure}", file=sys.stderr)
    done = f", {skipped} were done before" if skipped else ""
    print(f"wrote {len(work) - len(failures)} of {len(work)} restored pictures to {output}{done}")
    return len(failures)


class Manifest:
    """manifest.json in the output folder: how each picture was made. Whole after every picture, or not changed.

    Args:
        folder: the output folder.
        facts: what a restoration depends on, beside the picture.
        rank: of this process among several, which each keep a file of their own; None for a single one.
    """

    def __init__(self, folder: Path, facts: dict, rank: int | None = None):
        self.path = folder / ("manifest.json" if rank is None else f"manifest_{rank}.json")
        self.facts, self.folder = facts, folder
        try:
            self.files = json.loads(self.path.read_text(encoding="utf-8")) if self.path.is_file() else {}
        except ValueError as error:
            raise ValueError(f"{self.path} is not JSON ({error}): remove it") from error
        self._earlier = [json.loads(other.read_text(encoding="utf-8")) for other in folder.glob("manifest*.json")]

    def has(self, picture: Path) -> bool:
        """Whether the unchanged picture was restored with the same facts, and what was written is still there."""
        for files in self._earlier:
            entry = files.get(str(picture), {})
            same = all(entry.get(name) == value for name, value in (self.facts | _stamp(picture)).items())
            if same and all((self.folder / name).is_file() for name in entry["written"]):
                return True
        return False

    def add(self, picture: Path, target: Path, names: list[str], seconds: float, faults: list[str]) -> None:
        """Write down one restored picture."""
        written = [target.with_name(name).relative_to(self.folder).as_posix() for name in names]
        entry = {"written": written, "seconds": round(seconds, 3), "faults": faults}
        self.files[str(picture)] = entry | _stamp(picture) | self.facts
        part = self.path.with_name(f".{self.path.name}.part")
        part.write_text(json.dumps(self.files, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(part, self.path)


def _stamp(picture: Path) -> dict:
    status = picture.stat()
    return {"bytes": status.st_size, "modified": status.st_mtime_ns}


def _faults(samples, prediction, blurry) -> list[str]:
    """What is wrong with the first sample: it is less sharp than the input, or its colours drifted."""
    sample, blurry = samples[0].cpu(), blurry.cpu()

    def sharpness(x):  # mean size of the gradient
        return (x.diff(dim=1).abs().sum() + x.diff(dim=2).abs().sum()).item() / x.numel()

    faults = []
    if sharpness(sample) < sharpness(blurry):
        faults.append("the sample is less sharp than the input")
    drift = (sample.mean(dim=(1, 2)) - prediction.cpu().mean(dim=(1, 2))).abs().max().item()
    if drift > COLOUR_DRIFT:
        faults.append(f"the sample's mean colour is {255 * drift:.1f} levels away from the prediction's")
    return faults


def _write_uncertainty(target: Path, std) -> None:
    import matplotlib
    import tifffile
    import torch

    from data import images

    std = std.cpu()
    mean = std.mean(dim=0)
    heat = matplotlib.colormaps["inferno"]((mean / mean.max().clamp(min=1e-6)).numpy())[..., :3]
    images.write(target.with_name(f"{target.stem}_std.png"), torch.from_numpy(heat).movedim(-1, 0))
    part = target.with_name(f".{target.stem}_std.part")
    tifffile.imwrite(part, std.movedim(0, -1).contiguous().numpy(), photometric="rgb")
    os.replace(part, target.with_name(f"{target.stem}_std.tif"))


def _targets(pictures: list[Path], source: Path, output: Path) -> list[Path]:
    """Where each picture's restoration goes; ValueError where two would collide or an input be overwritten."""
    from data import images

    root = source if source.is_dir() else source.parent
    targets = [output / picture.relative_to(root) for picture in pictures]
    targets = [t if t.suffix.lower() in images.FORMATS else t.with_suffix(".png") for t in targets]
    inputs = {picture.resolve() for picture in pictures}
    sources: dict[Path, Path] = {}
    for picture, target in zip(pictures, targets, strict=True):
        if target in sources:
            raise ValueError(f"{sources[target]} and {picture} would both be written to {target}: rename one of them")
        sources[target] = picture
        if target.resolve() in inputs:
            raise ValueError(f"{target} is an input and would be overwritten: choose another --output")
    return targets


def main(args: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = ArgumentParser(description=__doc__, prog="sample.py")
    parser.add_argument("input", help="a picture, or a folder of pictures (searched recursively; its tree is kept)")
    flags = parser.add_function_arguments(restore, skip={"input", "settings"})
    numbers = parser.add_class_arguments(SamplingSettings)
    given = parser.parse_args(args)
    settings = SamplingSettings(**{name: given[name] for name in numbers})
    failures = restore(given.input, settings, **{name: given[name] for name in flags})
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, OSError) as error:
        print(f"sample.py: error: {error}", file=sys.stderr)
        sys.exit(2)
