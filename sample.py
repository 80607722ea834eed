"""Restore blurry photographs: files, folders or patterns in, restored pictures out.

python sample.py photo.jpg --checkpoint runs/demo/checkpoint --output restored
python sample.py 'photos/**/*.png' --checkpoint runs/demo/checkpoint --output restored --sampler ddpm --steps 50
torchrun --nproc_per_node 2 sample.py photos --checkpoint runs/demo/checkpoint --output restored
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser

from base.files import locked, replacing
from models.settings import Preset, SamplingSettings

COLOUR_DRIFT = 2 / 255  # the most that the mean of a colour channel may move away from the prediction's
BATCH_PIXELS = 1 << 21  # of the pictures that are restored at once where nothing is said
MOST_AT_ONCE = 16
CPU_MEMORY = 3.5  # GB; a constant, so that the tiles of a photo do not depend on what else the machine does
DETAIL = 480  # side in pixels of what a comparison shows at full size


def restore(
    inputs: list[str],
    numbers: dict,
    output: str,
    checkpoint: str | None = None,
    preset: Preset | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    compile: bool = False,
    batch_size: int | None = None,
    memory: float | None = None,
    tile: int | None = None,
    predictor_tile: int | None = None,
    format: Literal["png", "jpg", "webp", "tif", "bmp"] | None = None,
    depth: Literal[8, 16] | None = None,
    guard: Literal["warn", "fallback"] = "warn",
    uncertainty: bool = False,
    compare: bool = False,
    overwrite: bool = False,
) -> int:
    """Restore pictures, each in its own format and depth, with its metadata.

    Under torchrun each process takes its share of the list.

    Args:
        inputs: pictures, folders of pictures (searched recursively) and patterns such as photos/**/*.png; the tree
            below a folder, or below what stands before a pattern's signs, is kept.
        numbers: sampling numbers, by name of the field of `SamplingSettings`; what is not among them is the preset's.
        checkpoint: exported folder, hub id (user/name or user/name@revision), or .ckpt file of train.py; default:
            pretrained/lite, which comes with the repository.
        output: folder to write NAME.SUFFIX into (NAME_0.SUFFIX, NAME_1.SUFFIX, ... for several samples), and
            manifest.json, which says how each was made.
        preset: settings stored with the checkpoint; numbers given by flag go before them. Default: balanced, where the
            checkpoint has it. faithful and vivid are the old names of fidelity and perceptual.
        seed: the same seed gives the same noise for a picture of the same name.
        device: cpu, cuda, cuda:1, mps, or auto for the first of cuda, mps, cpu that is there.
        precision: of the networks; auto is bf16 where the device computes in it.
        compile: compile the networks; worth its warm-up for many pictures of one size (docs/sampling.md).
        batch_size: pictures of one size that are restored at once; default: as many as make up two megapixels, 16 at
            most. The results do not depend on it.
        memory: GB (1e9 bytes) that the process should stay within, or on a GPU its tensors; tiles are chosen by it.
            Default: 3.5 on a CPU, half of what is free on a GPU.
        tile: side of the denoiser's tiles for large pictures; default: whole, or what fits into memory.
        predictor_tile: the same for the predictor.
        format: of what is written; default: the input's.
        depth: bits a channel of what is written; default: the input's.
        guard: a sample that is less sharp than its input, or whose mean colour drifts from the prediction's by more
            than 2 of 255 levels, is warned of; with fallback the prediction is written in its place.
        uncertainty: also write the standard deviation of the samples, as NAME_std.png (heat map) and NAME_std.tif
            (float, in units of the [0, 1] range); where the checkpoint's predictor has a size head, also the error
            that it expects of its estimate, as NAME_error.png and .tif, for which no sample is needed.
        compare: also write NAME_compare.png: blurry, prediction, restored.
        overwrite: restore again what the manifest says is done with the same checkpoint, settings and seed.

    Returns:
        The number of pictures that could not be restored; each is named on stderr.
    """
    SamplingSettings(**numbers)  # says what is wrong before anything heavy
    for name, value in (("batch_size", batch_size), ("memory", memory)):
        if value is not None and value <= 0:
            raise ValueError(f"--{name} must be above 0, got {value}")

    import torch
    from tqdm import tqdm

    from data import images
    from models.checkpoints import checkpoint_hash, load_pipeline, pretrained
    from models.devices import choose_device

    work = _targets(inputs, Path(output), format, depth)
    checkpoint = checkpoint or pretrained()
    Path(output).mkdir(parents=True, exist_ok=True)
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    place = choose_device(device)
    if place.type == "cuda" and place.index is None and processes > 1:
        place = choose_device(f"cuda:{os.environ['LOCAL_RANK']}")
    pipeline = load_pipeline(checkpoint, place, precision)
    settings = replace(pipeline.preset(preset) if preset else pipeline.default_settings, **numbers)
    if uncertainty and settings.num_samples == 1 and not pipeline.predictor.config.get("size_head"):
        raise ValueError(
            "--uncertainty needs several samples, since this checkpoint's predictor does not say what error it expects:"
            " give --num_samples 2 or more"
        )
    if compile:
        pipeline.compile()
    if memory is None and place.type == "cpu":
        memory = CPU_MEMORY
    facts = {"checkpoint_sha256": checkpoint_hash(checkpoint), "settings": asdict(settings), "seed": seed}
    facts |= {"precision": precision, "guard": guard, "uncertainty": uncertainty, "compare": compare}
    facts |= {"format": format, "depth": depth, "tile": tile, "predictor_tile": predictor_tile}
    manifest = Manifest(Path(output), facts)
    share = work[rank::processes]
    work = [(path, target) for path, target in share if overwrite or not manifest.has(path)]
    skipped, failures, finished = len(share) - len(work), [], 0
    evaluations = settings.num_samples * settings.steps if settings.blend > 0 else 1
    with tqdm(total=len(work) * evaluations, unit="step", disable=rank > 0) as bar:

        def say(path: Path, sentence: str) -> None:
            bar.write(f"{path}: {sentence}", sys.stderr)

        def run(pictures: list[tuple]):
            def count(steps):
                for step in steps:
                    yield step
                    bar.update(len(pictures))

            names = [path.stem for path, _, _ in pictures]
            pixels = torch.stack([picture.pixels for _, _, picture in pictures])
            limit = memory and int(1e9 * memory)
            return pipeline(pixels, settings, seed, names, "pt", count, tile, predictor_tile, limit)

        for batch in _batches(work, batch_size):
            pictures = []
            for path, target in batch:
                try:
                    pictures.append((path, target, images.read_file(path)))
                except images.ImageError as error:
                    failures.append(str(error))
            bar.set_description(batch[0][0].name)
            for (path, target, picture), out, seconds in _restored(run, pictures):
                start = time.perf_counter()
                if out is None:
                    height, width = picture.pixels.shape[-2:]
                    failures.append(f"{path} does not fit into memory ({width} x {height} pixels): lower --memory")
                    continue
                if picture.frames > 1:
                    say(path, f"has {picture.frames} frames, the first is restored")
                if format is None and target.suffix != path.suffix:
                    say(path, f"is written as {target.name}")
                faults = _faults(out.images[0], out.predictions[0], picture) if settings.blend > 0 else []
                for fault in faults:
                    say(path, fault + ", the prediction is written" * (guard == "fallback"))
                restored = out.predictions if faults and guard == "fallback" else out.images
                names = [target.name]
                if len(restored) > 1:
                    names = [f"{target.stem}_{k}{target.suffix}" for k in range(len(restored))]
                for name, image in zip(names, restored, strict=True):
                    images.write(target.with_name(name), image, picture, depth)
                maps = {"std": out.std, "error": out.expected_error} if uncertainty else {}
                extra = {
                    f"{kind}_white": _write_uncertainty(target, kind, values[0])
                    for kind, values in maps.items()
                    if values is not None
                }
                if compare:
                    _write_comparison(target, picture.values, out.predictions[0], restored[0])
                seconds += time.perf_counter() - start
                manifest.add(path, target, names, {"seconds": round(seconds, 3), "faults": faults} | extra)
            finished += len(batch)
            bar.update(finished * evaluations - bar.n)
    for failure in sorted(failures):
        print(f"sample.py: error: {failure}", file=sys.stderr)
    done = f", {skipped} were done before" if skipped else ""
    print(f"wrote {len(work) - len(failures)} of {len(work)} restored pictures to {output}{done}")
    return len(failures)


def _batches(work: list[tuple[Path, Path]], batch_size: int | None) -> Iterator[list[tuple[Path, Path]]]:
    """The work in groups of pictures whose headers tell one size, in the order in which the sizes appear."""
    from tqdm import tqdm

    from data import images

    groups: dict = {}
    for path, target in tqdm(work, "sizes", delay=2, leave=False, disable=batch_size == 1):
        size = images.header_size(path) if batch_size != 1 else None
        groups.setdefault(size or path, []).append((path, target))
    for size, group in groups.items():
        fitting = BATCH_PIXELS // (size[0] * size[1]) if isinstance(size, tuple) else 1
        count = batch_size or max(1, min(MOST_AT_ONCE, fitting))
        yield from (group[i : i + count] for i in range(0, len(group), count))


def _restored(run: Callable, pictures: list[tuple]) -> Iterator[tuple]:
    """Each (path, target, picture) with its `DeblurOutput` of one picture and its share of the seconds.

    Pictures that turn out to differ in size, and those that do not fit into memory together, are run apart; None
    stands for the output of one that does not fit by itself.
    """
    from models.memory import is_out_of_memory
    from models.pipeline import DeblurOutput

    layouts = [(picture.pixels.shape, picture.pixels.dtype) for _, _, picture in pictures]
    out, start = None, time.perf_counter()
    if len(set(layouts)) == 1:
        try:
            out = run(pictures)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
    if out is None and len(pictures) > 1:
        for half in (pictures[: len(pictures) // 2], pictures[len(pictures) // 2 :]):
            yield from _restored(run, half)
        return
    seconds = (time.perf_counter() - start) / max(1, len(pictures))
    for i, picture in enumerate(pictures):
        own = out and DeblurOutput(
            images=out.images.unflatten(0, (len(pictures), -1))[i],
            predictions=out.predictions[i : i + 1],
            std=None if out.std is None else out.std[i : i + 1],
            expected_error=None if out.expected_error is None else out.expected_error[i : i + 1],
        )
        yield picture, own, seconds


class Manifest:
    """manifest.json in the output folder: how each picture was made. Whole after every picture, or not changed.

    Several processes may write it: each adds to what it finds there, one at a time.

    Args:
        folder: the output folder.
        facts: what a restoration depends on, beside the picture.
    """

    def __init__(self, folder: Path, facts: dict):
        self.path, self.facts, self.folder = folder / "manifest.json", facts, folder
        self.files = self._read()

    def _read(self) -> dict:
        try:
            return json.loads(self.path.read_text(encoding="utf-8")) if self.path.is_file() else {}
        except ValueError as error:
            raise ValueError(f"{self.path} is not JSON ({error}): remove it") from error

    def has(self, picture: Path) -> bool:
        """Whether the unchanged picture was restored with the same facts, and what was written is still there."""
        entry = self.files.get(str(picture), {})
        same = all(entry.get(name) == value for name, value in (self.facts | _stamp(picture)).items())
        return same and all((self.folder / name).is_file() for name in entry["written"])

    def add(self, picture: Path, target: Path, names: list[str], found: dict) -> None:
        """Write down one restored picture: the files it was written to, and what was found out on the way."""
        written = [target.with_name(name).relative_to(self.folder).as_posix() for name in names]
        with locked(self.path.with_name(f".{self.path.name}.lock")), replacing(self.path) as part:
            self.files = self._read() | {str(picture): {"written": written} | found | _stamp(picture) | self.facts}
            part.write_text(json.dumps(self.files, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _stamp(picture: Path) -> dict:
    status = picture.stat()
    return {"bytes": status.st_size, "modified": status.st_mtime_ns}


def _faults(sample, prediction, picture) -> list[str]:
    """What is wrong with a sample: it is less sharp than the input, or its colours drifted from the prediction's."""
    import torch

    def sharpness(x, levels=1.0):  # mean size of the gradient; channel by channel, since a photo may be large
        sums = [c.diff(dim=0).abs().sum() + c.diff(dim=1).abs().sum() for c in (channel.float() for channel in x)]
        return sum(sums).item() / levels / x.numel()

    faults = []
    before = sharpness(picture.pixels, torch.iinfo(picture.pixels.dtype).max)
    if sharpness(sample) < before:
        faults.append("the sample is less sharp than the input")
    drift = (sample.mean(dim=(1, 2)) - prediction.mean(dim=(1, 2))).abs().max().item()
    if drift > COLOUR_DRIFT:
        faults.append(f"the sample's mean colour is {255 * drift:.1f} levels away from the prediction's")
    return faults


def _write_uncertainty(target: Path, kind: str, values) -> float:
    """The heat map, whose brightest colour stands for the 99.5th percentile, which is returned, and the floats."""
    import matplotlib
    import numpy as np
    import tifffile
    import torch

    from data import images

    values = values.cpu()
    mean = values.mean(dim=0).numpy()
    white = float(np.percentile(mean, 99.5))  # a few bright pixels would leave the rest black
    heat = matplotlib.colormaps["inferno"](mean / max(white, 1e-6), bytes=True)[..., :3]
    images.write(target.with_name(f"{target.stem}_{kind}.png"), torch.from_numpy(heat).movedim(-1, 0) / 255)
    with replacing(target.with_name(f"{target.stem}_{kind}.tif")) as part:
        tifffile.imwrite(part, values.expand(3, -1, -1).movedim(0, -1).contiguous().numpy(), photometric="rgb")
    return round(white, 6)


def _write_comparison(target: Path, blurry, prediction, restored) -> None:
    """A panel of the whole pictures and, where those are shown smaller than they are, of their middle."""
    from torch.nn.functional import interpolate

    from evaluation.plots import panel

    columns = {}
    for label, picture in (("blurry", blurry), ("prediction", prediction), ("restored", restored)):
        height, width = picture.shape[-2:]
        columns[label] = [picture]
        if width > DETAIL:
            small = interpolate(picture[None], (max(1, height * DETAIL // width), DETAIL), mode="area")[0]
            top, left = max(0, height - DETAIL) // 2, (width - DETAIL) // 2
            columns[label] = [small, picture[:, top : top + DETAIL, left : left + DETAIL]]
    panel(columns, target.with_name(f"{target.stem}_compare.png"))


def _targets(inputs: list[str], output: Path, format: str | None, depth: int | None) -> list[tuple[Path, Path]]:
    """Each picture and where its restoration goes; ValueError where two collide or an input would be overwritten."""
    from data import images

    work: dict[Path, Path] = {}  # target -> picture
    for given in inputs:
        root = images.tree(given)
        for picture in images.find(given):
            target = output / picture.relative_to(root)
            if format or target.suffix.lower() not in images.FORMATS:
                target = target.with_suffix(f".{format or 'png'}")
            if depth == 16 and target.suffix.lower() not in images.DEEP:
                raise ValueError(f"{target} cannot hold 16 bits: give --format png or tif with --depth 16")
            if work.setdefault(target, picture).resolve() != picture.resolve():
                raise ValueError(f"{work[target]} and {picture} would both be written to {target}: rename one of them")
    pictures = {picture.resolve() for picture in work.values()}
    for target in work:
        if target.resolve() in pictures:
            raise ValueError(f"{target} is an input and would be overwritten: choose another --output")
    return [(picture, target) for target, picture in work.items()]


def main(args: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = ArgumentParser(description=__doc__, prog="sample.py")
    parser.add_argument("inputs", nargs="+", help="pictures, folders (searched recursively) and patterns in quotes")
    flags = parser.add_function_arguments(restore, skip={"inputs", "numbers"})
    numbers = parser.add_class_arguments(SamplingSettings)
    given = parser.parse_args(args)
    told = parser.parse_args(args, defaults=False)  # what stands on the command line, and so goes before a preset
    failures = restore(
        given.inputs,
        {name: told[name] for name in numbers if name in told},
        **{name: given[name] for name in flags},
    )
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, OSError) as error:
        print(f"sample.py: error: {error}", file=sys.stderr)
        sys.exit(2)
