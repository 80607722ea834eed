"""Blur sharp photographs once and for all: python -m data.make_test_set PHOTOS --config CONFIG --output ROOT

The blur is that of a training config, with a fixed seed for every picture: ROOT/blur and ROOT/sharp are a dataset of
pairs (8-bit PNG), and ROOT/test_set.json says how they were made. Where one kernel blurs the whole picture, kernels.npz
has it under the picture's name, for methods that need to know it.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser
from torch import Tensor
from tqdm import tqdm

from data import images
from data.blur import CameraShake, SixDegrees, SyntheticBlur
from data.layouts import DatasetError, named_files
from data.pairs import FrameSharp

FRAME = ("Parser key", "Does not validate", "Subtypes:", "Errors:", "Import path", "Problem with", "Given value")


def read_blur(config: str | Path) -> CameraShake | SyntheticBlur:
    """The `data.blur` of a config file of train.py; ValueError where there is none or it cannot be built."""
    try:
        section = (yaml.safe_load(Path(config).read_text()) or {}).get("data", {}).get("blur")
    except (yaml.YAMLError, AttributeError, UnicodeDecodeError):
        raise ValueError(f"{config} is no config file of train.py: it must be YAML with a section data.") from None
    if section is None:
        raise ValueError(f"{config} has no data.blur: give a config that blurs sharp photographs.")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--blur", type=CameraShake | SyntheticBlur)
    try:
        return parser.instantiate(parser.parse_object({"blur": section})).blur
    except (ArgumentError, ValueError) as error:
        # jsonargparse tells all that it tried; what is wrong stands in the first line that is no part of that frame.
        lines = [line.strip(" -") for line in str(error).splitlines()]
        reason = next((line for line in lines if line and not line.startswith(FRAME)), "")
        raise ValueError(f"{config} has a data.blur that cannot be built: {reason}") from None


def only_kernels(blur: CameraShake | SyntheticBlur) -> CameraShake | SyntheticBlur:
    """The same blur without what has no single kernel: a turning camera and moving objects."""
    if isinstance(blur, CameraShake):
        return blur
    kept = [at for at, part in enumerate(blur.camera) if not isinstance(part, SixDegrees)]
    if not kept:
        raise ValueError("data.blur has no camera part with one kernel for the whole picture: leave --uniform away.")
    camera, weights = [blur.camera[at] for at in kept], blur.weights[kept].tolist()
    sensor = blur.saturation, blur.shot_noise, blur.read_noise, blur.jpeg
    return SyntheticBlur(camera, weights, None, blur.response, blur.gamma, *sensor)


def has_kernels(blur: CameraShake | SyntheticBlur) -> bool:
    """Whether every picture is blurred with one kernel."""
    if isinstance(blur, CameraShake):
        return True
    return blur.moving is None and not any(isinstance(part, SixDegrees) for part in blur.camera)


def kernel_of(blur: CameraShake | SyntheticBlur, seed: int) -> Tensor:
    """The (2 margin + 1)^2 kernel of sum 1 by which a blur of `has_kernels` spreads a point of light, for a seed."""
    # The same blur without sensor and file draws the same numbers.
    if isinstance(blur, CameraShake):
        spread = CameraShake(blur.length, blur.curvature, (0.0, 0.0), linear_light=False)
    else:
        spread = SyntheticBlur(blur.camera, blur.weights.tolist(), response="linear")
    point = torch.zeros(1, 3, 2 * blur.margin + 1, 2 * blur.margin + 1)
    point[..., blur.margin, blur.margin] = 1
    return spread(point, [torch.Generator().manual_seed(seed)])[0, 0]


def make(
    photos: str,
    config: str,
    output: str,
    list: str = "test.txt",
    seed: int = 0,
    crop: int | None = None,
    uniform: bool = False,
) -> None:
    """Blur every photograph of a list.

    Args:
        photos: folder of sharp photographs.
        config: config file of train.py, whose data.blur is used.
        output: folder to write to; must be new or empty.
        list: file with the names of the photographs, one a line; in their folder, or given by its full path.
        seed: of the blur; what a picture gets depends on the seed and its name, and is what train.py test gives it.
        crop: take at most so many pixels a side from the centre; none: whole photographs, without the blur's margin.
        uniform: leave out what has no single kernel for the whole picture: a turning camera and moving objects.

    Raises:
        ValueError, ImageError, OSError: one sentence on what cannot be read or written; no folder is left behind.
    """
    root, folder = Path(photos), Path(output)
    blur = read_blur(config)
    blur = only_kernels(blur) if uniform else blur
    files = named_files(root / list, root)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise DatasetError(f"{folder} is not an empty folder: give a new one.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    inside = slice(blur.margin, -blur.margin or None)
    kernels = {}
    try:
        for item in tqdm(FrameSharp(files, root, blur.margin, seed, crop), unit="picture", dynamic_ncols=True):
            name, generator = item["name"], torch.Generator().manual_seed(item["seed"])
            blurry = blur(item["sharp"][None], [generator])[0]
            images.write(part / "blur" / f"{name}.png", blurry[:, inside, inside])
            images.write(part / "sharp" / f"{name}.png", item["sharp"][:, inside, inside])
            if has_kernels(blur):
                kernels[name] = kernel_of(blur, item["seed"]).numpy()
        if kernels:
            np.savez(part / "kernels.npz", **kernels)
        section = yaml.safe_load(Path(config).read_text())["data"]["blur"]
        facts = {"photos": len(files), "list": list, "seed": seed, "crop": crop, "uniform": uniform, "blur": section}
        (part / "test_set.json").write_text(json.dumps(facts, indent=1) + "\n")
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    known = f", and {len(kernels)} kernels" if kernels else ""
    print(f"{folder}: {len(files)} pairs of {root / list}, blurred as in {config} with seed {seed}{known}")


def main(args: list[str] | None = None) -> None:
    """The command line."""
    parser = ArgumentParser(description=__doc__, prog="data.make_test_set")
    parser.add_argument("photos", help="folder of sharp photographs")
    parser.add_function_arguments(make, skip={"photos"})
    make(**parser.parse_args(args).as_dict())


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        main()
    except (images.ImageError, ValueError, OSError) as error:
        print(f"data.make_test_set: error: {error}", file=sys.stderr)
        sys.exit(2)
