"""Blur sharp photographs once: python -m tools.make_pairs PHOTOS ... --config CONFIG --output ROOT

ROOT/blur and ROOT/sharp are a dataset of pairs (8-bit PNG), blurred according to `data.blur` of a training config. It
has whole photographs to test on (and the texts of pages, where there are some), or with --crops that many random
regions of each, to train on without blurring again.
ROOT/pairs.json says how the pairs were made. Repeating a stopped command resumes it.

--predict CHECKPOINT also stores the checkpoint's predictions, for a refiner that is trained on a frozen predictor
(data.predictions of train.py). Without --config and --output it adds them to datasets of pairs that are there:
python -m tools.make_pairs PAIRS --predict CHECKPOINT
"""

import shutil
import sys
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from jsonargparse import ArgumentError, ArgumentParser

from deblur.cli import call, explain, run_command
from deblur.data.blur import SyntheticBlur
from deblur.data.files import images, search
from deblur.data.files.lists import named_files
from deblur.data.layouts import DatasetError
from deblur.data.pairs import FrameSharp, generator_of, reflect_to
from deblur.storage import read_yaml
from deblur.tools.resumable import on_all_cores, resumable


def read_blur(config: str | Path) -> tuple[SyntheticBlur, dict]:
    """The `data.blur` of a config file of train.py, as an object and as it is written there.

    Raises ValueError if it is missing or cannot be built.
    """
    data = read_yaml(config, "the config").get("data")
    section = data.get("blur") if isinstance(data, dict) else None
    if section is None:
        raise ValueError(f"{config} has no data.blur: give a config that blurs sharp photographs.")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--blur", type=SyntheticBlur)
    try:
        return parser.instantiate(parser.parse_object({"blur": deepcopy(section)})).blur, section
    except (ArgumentError, ValueError) as error:
        raise ValueError(f"{config} has a data.blur that cannot be built: {explain(error)}") from None


def find_photos(folders: list[str], names: str | None) -> dict[str, tuple[Path, Path]]:
    """Photographs as {name: (file, folder)}: all in the folders, or those listed in a text file `names` in a folder.

    A name is the path in the folder without suffix, preceded by the folder's own name if there are several. Raises
    DatasetError if no folder has the text file, or two photographs have the same name.
    """
    files: dict[str, tuple[Path, Path]] = {}
    roots = [Path(folder) for folder in folders]
    if names is not None and not any((root / names).is_file() for root in roots):
        raise DatasetError(f"{roots[0] / names} is no file: give a list of names, one a line.")
    for root in roots:
        prefix = f"{root.resolve().name}/" if len(roots) > 1 else ""
        listed = names is not None and (root / names).is_file()
        for file in named_files(root / names, root) if listed else search.find(root):
            name = search.normalised(prefix) + search.name_below(file, root)
            if name in files:
                raise DatasetError(f"{files[name][0]} and {file} would have the same name: rename one of them.")
            files[name] = file, root
    return files


def draw_region(whole: torch.Tensor, side: int, generator: torch.Generator) -> torch.Tensor:
    """A random square of (3, H, W)."""
    top, left = (int(torch.randint(room - side + 1, (), generator=generator)) for room in whole.shape[-2:])
    return whole[:, top : top + side, left : left + side]


def detail(image: torch.Tensor) -> float:
    """Mean absolute difference between neighbouring pixels of (3, H, W): near 0 in a clear sky."""
    return (image.diff(dim=-1).abs().mean() + image.diff(dim=-2).abs().mean()).item()


def copy_texts(files: dict[str, tuple[Path, Path]], target: Path) -> None:
    """Copy the text that belongs to a page (text/NAME.txt in its folder) beside the pairs, for the metric cer."""
    for name, (file, root) in files.items():
        text = root / "text" / file.relative_to(root).with_suffix(".txt")
        if text.is_file():
            (target / f"{name}.txt").parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(text, target / f"{name}.txt")


def write_photo(
    photo: str,
    place: tuple[Path, Path],
    blur: SyntheticBlur,
    folder: Path,
    seed: int,
    crops: int | None,
    size: int | None,
    candidates: int,
) -> None:
    """Blur one photograph, at `place` (file, root), and write its pairs, unless all of them exist."""
    torch.set_num_threads(1)
    names = [photo] if crops is None else [f"{photo}_{at}" for at in range(crops)]
    files = {name: [folder / side / f"{name}.png" for side in ("blur", "sharp")] for name in names}
    if all(file.is_file() for sides in files.values() for file in sides):
        return
    file, root = place
    if crops is None:
        whole = FrameSharp([file], root, blur.margin, seed, size)[0]["sharp"]
    else:
        whole = reflect_to(images.read(file), side := size + 2 * blur.margin)
    for name, sides in files.items():
        places = generator_of(seed, name, "place")
        drawn = [whole] if crops is None else [draw_region(whole, side, places) for _ in range(candidates)]
        pair = blur(max(drawn, key=detail)[None], [generator_of(seed, name)])
        for target, (image,) in zip(sides, pair, strict=True):
            images.write(target, image, compress_level=1)


def make(
    photos: list[str],
    config: str | None = None,
    output: str | None = None,
    names: str | None = None,
    crops: int | None = None,
    size: int | None = None,
    candidates: int = 1,
    seed: int = 0,
    workers: int | None = None,
    predict: str | None = None,
    first: bool = False,
    stages: int | None = None,
    split: Literal["train", "val", "test"] = "train",
    variant: str = "blur",
    device: str = "auto",
    classes: str | None = None,
) -> None:
    """Blur photographs and write the pairs, or store predictions beside pairs.

    Args:
        photos: folders of sharp photographs; with --predict alone, roots of datasets of pairs (docs/data.md).
        config: config file of train.py; its data.blur is used.
        output: folder to write to; must be new or empty.
        names: text file, such as test.txt, in a folder of photographs that lists the ones to use, one per line. A
            folder without it is used completely. None: use all photographs of every folder.
        crops: random regions per photograph; none: one pair of the whole photograph, without the blur's margin.
        size: side in pixels of the regions; for whole photographs the largest side of a centre crop.
        candidates: positions drawn for each region; the one with the most detail is used. A blurred clear sky is the
            same sky and teaches little.
        seed: of the regions and the blur. A pair depends on the seed and its name. Whole photographs of one folder are
            blurred as in train.py test.
        workers: processes; none: one per core, but at most one for every four photographs.
        predict: checkpoint whose predictions are stored: exported folder, hub id, .ckpt file, or a name in pretrained/.
        first: store the predictions of a cascade's first network, to train its second network on.
        stages: of the predictor, such as 1 for MAXIM's first; none: all.
        split: of the datasets, for --predict alone.
        variant: kind of blurry images, for --predict alone; see data.variant of train.py.
        device: that predicts: cpu, cuda, cuda:1, mps, or auto for the first available of cuda, mps, cpu.
        classes: your own predictor that the checkpoint names, such as mypred.MyPredictor.

    Raises:
        ValueError, ImageError, OSError: something cannot be read or written. Finished pairs stay in a hidden folder
            beside `output`, from which the same command resumes.
    """
    if predict is not None:
        from deblur.tools.predictions import store_predictions  # networks, which a process that blurs does not need
    if config is None and output is None and predict is not None:
        for root in photos:
            pairs = store_predictions(root, predict, split, variant, device, classes, first, stages)
            print(f"{root}: the predictions of {pairs} pairs by {predict}")
        return
    if config is None or output is None:
        raise ValueError("give --config and --output, to blur photographs, or --predict alone, to predict pairs.")
    if crops is not None and (crops < 1 or size is None):
        raise ValueError("crops needs to be at least 1, and a size: the side of the regions in pixels.")
    if candidates < 1 or (size is not None and size < 1):
        raise ValueError(f"candidates and size must be 1 or more, got {candidates} and {size}.")
    blur, section = read_blur(config)
    files, folder = find_photos(photos, names), Path(output)
    # Not how many photographs there are: one that cannot be read may be taken away before the command is repeated.
    facts = {"folders": photos, "names": names, "crops": crops, "size": size, "candidates": candidates}
    facts |= {"seed": seed, "blur": section}
    with resumable(folder, "pairs.json", facts) as part:
        work = partial(write_photo, blur=blur, folder=part, seed=seed, crops=crops, size=size, candidates=candidates)
        list(on_all_cores(work, list(files), list(files.values()), workers=workers, unit="photo"))
        if crops is None:
            copy_texts(files, part / "text")
        if predict is not None:
            store_predictions(part, predict, "train", "blur", device, classes, first, stages)
    pairs = len(files) * (crops or 1)
    predicted = "" if predict is None else f", with the predictions of {predict}"
    print(f"{folder}: {pairs} pairs of {len(files)} photographs, blurred as in {config} with seed {seed}{predicted}")


def main(args: list[str] | None = None) -> None:
    """The command line."""
    call(make, args, "-m tools.make_pairs", nargs="+")


if __name__ == "__main__":
    sys.exit(run_command("tools.make_pairs", main, "stopped; run again to resume"))
