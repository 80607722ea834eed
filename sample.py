"""Restore blurry photographs: a file or a folder in, restored pictures out.

python sample.py photo.jpg --checkpoint runs/demo/checkpoint --output restored
python sample.py photos --checkpoint runs/demo/checkpoint --output restored --sampler ddpm --steps 50 --seed 1
"""

import sys
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser

from models.settings import SamplingSettings


def restore(
    input: str,
    settings: SamplingSettings,
    checkpoint: str,
    output: str,
    seed: int = 0,
    device: str = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
) -> int:
    """Restore every picture of `input`.

    Args:
        input: a picture, or a folder of pictures (searched recursively; its tree is kept).
        settings: how to sample.
        checkpoint: exported folder, hub id (user/name or user/name@revision), or .ckpt file of train.py.
        output: folder to write NAME.png into (NAME_0.png, NAME_1.png, ... for several samples).
        seed: the same seed gives the same noise for a picture of the same name.
        device: cpu, cuda, cuda:1, mps, or auto for the first of cuda, mps, cpu that is there.
        precision: of the networks; auto is bf16 where the device computes in it.

    Returns:
        The number of pictures that could not be restored; each is named on stderr.
    """
    from tqdm import tqdm

    from data import images
    from models.checkpoints import choose_device, load_pipeline

    pictures = images.find(input)
    targets = _targets(pictures, Path(input), Path(output))
    Path(output).mkdir(parents=True, exist_ok=True)
    pipeline = load_pipeline(checkpoint, choose_device(device), precision)
    failures = []
    evaluations = settings.num_samples * settings.steps if settings.blend > 0 else 0
    with tqdm(total=len(pictures) * max(1, evaluations), unit="step") as bar:

        def count(steps):
            for step in steps:
                yield step
                bar.update()

        for picture, target in zip(pictures, targets, strict=True):
            bar.set_description(picture.name)
            try:
                blurry = images.read(picture)
                restored = pipeline(blurry, settings, seed, [picture.stem], output_type="pt", progress=count).images
                target.parent.mkdir(parents=True, exist_ok=True)
                for k, image in enumerate(restored):
                    name = target.name if len(restored) == 1 else f"{target.stem}_{k}{target.suffix}"
                    images.write(target.with_name(name), image)
            except images.ImageError as error:
                failures.append(str(error))
                bar.update(evaluations)
            if evaluations == 0:
                bar.update()
    for failure in failures:
        print(f"sample.py: error: {failure}", file=sys.stderr)
    print(f"wrote {len(pictures) - len(failures)} of {len(pictures)} restored pictures to {output}")
    return len(failures)


def _targets(pictures: list[Path], source: Path, output: Path) -> list[Path]:
    """Where each picture's restoration goes; ValueError where two would collide or an input be overwritten."""
    root = source if source.is_dir() else source.parent
    targets = [(output / picture.relative_to(root)).with_suffix(".png") for picture in pictures]
    sources: dict[Path, Path] = {}
    for picture, target in zip(pictures, targets, strict=True):
        if target in sources:
            raise ValueError(f"{sources[target]} and {picture} would both be written to {target}: rename one of them")
        sources[target] = picture
        if target.resolve() == picture.resolve():
            raise ValueError(f"{picture} would be overwritten by its restoration: choose another --output")
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
