"""Decide where restored images are written."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from data.search import DEEP, PASSED_OVER, SUFFIXES, WRITABLE, ImageError, find, passed_over, tree

BATCH_PIXELS = 1 << 21  # default number of pixels restored at once
MOST_AT_ONCE = 16


@dataclass(frozen=True)
class Outputs:
    """The images to restore, and inputs that are left out."""

    folder: Path
    work: list[tuple[Path, Path]]  # each image and the file of its restoration
    missing: list[str]  # a sentence for each input that is not an image or contains none
    skipped: Counter[str]  # images in formats that are not read, by suffix


def outputs_of(inputs: Sequence[str], output: str, suffix: str | None = None, deep: bool = False) -> Outputs:
    """Find the images that the inputs name and the files of their restorations.

    Args:
        inputs: images, folders and patterns; the directory tree below a folder, or below the fixed part of a pattern,
            is kept.
        output: the folder of the restorations. For a single image it may be a file name: it is one if it ends in an
            image's suffix and no folder has that name.
        suffix: of the written files; none: the image's own if it can be written, otherwise .png.
        deep: whether 16 bits are written.

    Raises:
        ImageError: there is nothing to restore.
        ValueError: two restorations would have the same name, an input would be overwritten, or a format does not
            support the request.
    """
    found, missing, skipped = [], [], Counter()
    for given in inputs:
        try:
            found += [(image, tree(given)) for image in find(given)]
            skipped += passed_over(given)
        except ImageError as error:
            missing.append(str(error))
    if not found:
        raise ImageError(missing[0])
    file = _file(output, len({image.resolve() for image, _ in found}), suffix)
    folder = file.parent if file else Path(output)
    work: dict[Path, Path] = {}  # restoration -> image
    for image, root in found:
        target = named(file, None, deep) if file else named(folder / image.relative_to(root), suffix, deep)
        if work.setdefault(target, image).resolve() != image.resolve():
            raise ValueError(f"{work[target]} and {image} would both be written to {target}: rename one of them")
    images = {image.resolve() for image in work.values()}
    for target in work:
        if target.resolve() in images:
            raise ValueError(f"{target} is an input and would be overwritten: choose another --output")
    return Outputs(folder, [(image, target) for target, image in work.items()], missing, skipped)


def named(target: PurePath, suffix: str | None, deep: bool) -> PurePath:
    """The file name of a restoration: its image's, with the requested suffix or one that can be written.

    Raises:
        ValueError: 16 bits are requested and the format does not support them.
    """
    own = target.suffix.lower()
    if usual(own) != usual(suffix) if suffix else own not in WRITABLE:
        target = target.with_suffix(usual(suffix or ".png"))
    if deep and target.suffix.lower() not in DEEP:
        raise ValueError(f"{target} cannot hold 16 bits: give --format png or tif with --depth 16")
    return target


def usual(suffix: str) -> str:
    """The usual suffix of a format that has several."""
    return {".jpeg": ".jpg", ".tiff": ".tif"}.get(suffix, suffix)


def batches(work: Sequence[tuple[Path, Path]], size: int | None) -> Iterator[list[tuple[Path, Path]]]:
    """Group the work by the image size in the file headers, in the order in which the sizes appear.

    Args:
        work: each image and the file of its restoration.
        size: images per group; None: as many as fit into BATCH_PIXELS, at most MOST_AT_ONCE.
    """
    from tqdm import tqdm

    from data.images import header_size

    groups: dict = {}
    for path, target in tqdm(work, "sizes", delay=2, leave=False, disable=size == 1):
        groups.setdefault((header_size(path) if size != 1 else None) or path, []).append((path, target))
    for shape, group in groups.items():
        fitting = BATCH_PIXELS // (shape[0] * shape[1]) if isinstance(shape, tuple) else 1
        count = size or max(1, min(MOST_AT_ONCE, fitting))
        yield from (group[i : i + count] for i in range(0, len(group), count))


def _file(output: str, count: int, suffix: str | None) -> Path | None:
    """The output as a file name, if it is one."""
    path = Path(output)
    own = path.suffix.lower()
    if own not in SUFFIXES | PASSED_OVER or path.is_dir():
        return None
    if count > 1:
        raise ValueError(f"--output {output} is a file's name, and there are {count} images: give a folder")
    if own not in WRITABLE:
        raise ValueError(f"--output {output} cannot be written: its suffix must be one of {' '.join(sorted(WRITABLE))}")
    if suffix and usual(own) != usual(suffix):
        raise ValueError(f"--output {output} and --format {suffix[1:]} differ: give one of them")
    return path
