"""Decide where restored images are written."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from deblur.cli import error_in_words
from deblur.data.files.kinds import READ_SUFFIXES, REFUSED_SUFFIXES, SUFFIXES_OF_16_BITS, WRITTEN_SUFFIXES, usual_suffix
from deblur.data.files.search import ImageError, find, passed_over, tree
from deblur.restoration.manifest import Manifest


@dataclass(frozen=True)
class Extras:
    """What is written of each image: how many samples, which maps (std, error, bound), and whether a comparison."""

    samples: int = 1
    maps: tuple[str, ...] = ()
    compare: bool = False


@dataclass(frozen=True)
class Names:
    """The files of one image: its restoration, and those whose names begin with `stem`."""

    target: PurePath
    stem: str

    @classmethod
    def of(cls, target: PurePath) -> "Names":
        """The usual names."""
        return cls(target, target.stem)

    def longer(self) -> "Names":
        """The names in which the suffix stands, too: a_png_compare.png."""
        return Names(self.target, _with_suffix(self.target))

    def restored(self, samples: int) -> list[PurePath]:
        """The restoration, or each of several samples."""
        if samples == 1:
            return [self.target]
        return [self.target.with_name(f"{self.stem}_{k}{self.target.suffix}") for k in range(samples)]

    def map(self, kind: str) -> PurePath:
        """The heat map of a kind; its floats stand beside it, with the suffix .tif."""
        return self.target.with_name(f"{self.stem}_{kind}.png")

    def comparison(self) -> PurePath:
        return self.target.with_name(f"{self.stem}_compare.png")

    def files(self, extras: Extras) -> list[PurePath]:
        """All files, those of the restoration first."""
        maps = [self.map(kind) for kind in extras.maps]
        more = [file for heat in maps for file in (heat, heat.with_suffix(".tif"))]
        return [*self.restored(extras.samples), *more, *([self.comparison()] if extras.compare else [])]


@dataclass(frozen=True)
class Outputs:
    """The images to restore, and inputs that are left out."""

    folder: Path
    is_file: bool  # whether the output is the name of a file in the folder
    work: list[tuple[Path, Path]]  # each image and the file of its restoration
    missing: list[str]  # a sentence for each input that is not an image or contains none
    skipped: Counter[str]  # images in formats that are not read, by suffix

    @property
    def file(self) -> Path | None:
        """The file that the output names; None if it is a folder."""
        return self.work[0][1] if self.is_file else None

    def plan(self, extras: Extras, manifest: Manifest) -> dict[Path, Names]:
        """Every file that is written, by its image; ValueError as `planned`."""
        work = dict(self.work)
        replaced = [Names.of(target).files(extras)[0] for target in work.values()]
        return planned(work, extras, work, manifest.owned(work, replaced))


def outputs_of(inputs: Sequence[str], output: str, suffix: str | None = None, deep: bool = False) -> Outputs:
    """Find the images that the inputs name and the files of their restorations.

    Args:
        inputs: images, folders and patterns; the directory tree below a folder, or below the fixed part of a pattern,
            is kept. If two folders have images of the same name, the folders are kept, too. Folders of restored images
            are left out.
        output: the folder of the restorations. For a single image it may be a file name: it is one if it ends in a
            suffix and no folder has that name.
        suffix: of the written files; none: the image's own if it can be written, otherwise .png.
        deep: whether 16 bits are written.

    Raises:
        ImageError: there is nothing to restore.
        ValueError: two restorations would have the same name, an input would be overwritten, or a format does not
            support the request.
    """
    by_path, missing, skipped = {}, [], Counter()  # by_path: an image's whole path -> the image and its tree
    for given in inputs:
        try:
            for image in find(given, results=False):
                by_path.setdefault(os.path.abspath(image), (image, tree(given)))
            skipped += passed_over(given)
        except (ImageError, OSError) as error:
            missing.append(error_in_words(error))
    if not by_path:
        raise ImageError(missing[0])
    file = _file(output, inputs, len(by_path), suffix)
    folder = file.parent if file else Path(output)
    names = {image: image.relative_to(root) for image, root in by_path.values() if not _lies_in(image, folder, root)}
    if not names:
        raise ImageError(f"{', '.join(inputs)}: all images lie in the output folder {folder}")
    if len(set(names.values())) < len(names):  # of several folders: keep those, too
        common = os.path.commonpath([os.path.abspath(root) for _, root in by_path.values()])
        names = {image: Path(whole).relative_to(common) for whole, (image, _) in by_path.items() if image in names}
    work = {image: folder / name for image, name in targets(names, suffix, deep).items()}
    if file:
        work = {image: named(file, None, deep) for image in names}
    planned(work, Extras(), dict.fromkeys(work, None))  # what is wrong whatever is written is said at once
    return Outputs(folder, file is not None, list(work.items()), missing, skipped)


def targets(names: Mapping[Any, PurePath], suffix: str | None, deep: bool) -> dict[Any, PurePath]:
    """The file names of restorations, by the keys of their images: those of the images, with the suffix of `named`.

    If two would be equal, an image whose suffix changes keeps that, too: a.jpg becomes a_jpg.png. Raises ValueError if
    two are equal nevertheless, or as `named`.
    """
    plain = {key: named(name, suffix, deep) for key, name in names.items()}
    often, taken = Counter(plain.values()), {}
    for key, target in plain.items():
        name = names[key]
        if often[target] > 1 and target.suffix != name.suffix:
            target = target.with_stem(_with_suffix(name))
        if (other := taken.setdefault(target, key)) != key:
            raise ValueError(f"{other} and {key} would both be written to {target}: rename one of them")
    return {key: target for target, key in taken.items()}


def planned(
    work: Mapping[Any, PurePath],
    extras: Extras,
    inputs: Iterable[PurePath],
    owned: Mapping[PurePath, str] | None = None,
) -> dict[Any, Names]:
    """Every file that a job writes, by the keys of its images, so that no two are the same and none is an input.

    An image whose derived names would be another's gets longer ones.

    Args:
        work: the files of the restorations by the keys of their images.
        extras: what is written beside them.
        inputs: of the job.
        owned: files of images that are not in the job, and whose they are; they stay.

    Raises:
        ValueError: an input would be overwritten, or two files have the same name nevertheless.
    """
    taken = {_whole(file): f"{file} is an input" for file in inputs}
    taken |= {_whole(file): f"{file} belongs to {image}" for file, image in (owned or {}).items()}
    names = {key: Names.of(target) for key, target in work.items()}
    often = Counter(_whole(file) for name in names.values() for file in name.files(extras))
    for key, name in names.items():
        derived = [file for file in name.files(extras) if file != name.target]
        if any(often[_whole(file)] > 1 or _whole(file) in taken for file in derived):
            names[key] = name.longer()
    for key, name in names.items():
        for file in name.files(extras):
            if (whole := _whole(file)) in taken:
                raise ValueError(f"{taken[whole]} and would be overwritten: choose another --output")
            taken[whole] = f"{file} is written for {key}"
    return names


def _whole(file: PurePath) -> str:
    """A file by which it is the same under all its names; a key of a bucket is its own."""
    return os.path.realpath(file) if isinstance(file, Path) else str(file)


def _with_suffix(target: PurePath) -> str:
    return f"{target.stem}_{target.suffix[1:]}"


def _lies_in(image: Path, output: Path, root: Path) -> bool:
    """Whether an image is in the output folder, where that is inside a folder of inputs."""
    image, output, root = (Path(os.path.abspath(path)) for path in (image, output, root))
    return output != root and output.is_relative_to(root) and image.is_relative_to(output)


def named(target: PurePath, suffix: str | None, deep: bool) -> PurePath:
    """The file name of a restoration: its image's, with the requested suffix or one that can be written.

    Raises ValueError if 16 bits are requested and the format does not support them.
    """
    suffix_now = target.suffix.lower()
    if usual_suffix(suffix_now) != usual_suffix(suffix) if suffix else suffix_now not in WRITTEN_SUFFIXES:
        target = target.with_suffix(usual_suffix(suffix or ".png"))
    if deep and target.suffix.lower() not in SUFFIXES_OF_16_BITS:
        raise ValueError(f"{target} cannot hold 16 bits: give --format png or tif with --depth 16")
    return target


def _file(output: str, inputs: Sequence[str], count: int, suffix: str | None) -> Path | None:
    """The output as a file name, if it is one: of one image that is named, unless it is a folder or ends in a slash."""
    path = Path(output)
    file_suffix = path.suffix.lower()
    is_known = file_suffix in READ_SUFFIXES | REFUSED_SUFFIXES
    is_named = len(inputs) == 1 and Path(inputs[0]).is_file()
    looks_like_a_file = is_known or (is_named and re.fullmatch(r"\.[a-z]\w{1,4}", file_suffix))
    if not looks_like_a_file or path.is_dir() or output.endswith(("/", os.sep)):
        return None
    if count > 1:
        raise ValueError(f"--output {output} is a file's name, and there are {count} images: give a folder")
    if file_suffix not in WRITTEN_SUFFIXES:
        known = " ".join(sorted(WRITTEN_SUFFIXES))
        raise ValueError(
            f"--output {output} cannot be written: its suffix must be one of {known}; a folder of that name ends in /"
        )
    if suffix and usual_suffix(file_suffix) != usual_suffix(suffix):
        raise ValueError(f"--output {output} and --format {suffix[1:]} differ: give one of them")
    return path
