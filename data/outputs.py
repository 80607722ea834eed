"""Where the restorations of images go."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from data.search import DEEP, PASSED_OVER, SUFFIXES, WRITABLE, ImageError, find, passed_over, tree

BATCH_PIXELS = 1 << 21  # of the images that are restored at once where nothing is said
MOST_AT_ONCE = 16


@dataclass(frozen=True)
class Outputs:
    """What is to be restored, and what is not.

    Args:
        folder: where all of it goes.
        work: each image and the file of its restoration.
        missing: a sentence for each input that is no image, or holds none.
        skipped: images of other formats that stand between the others, by suffix.
    """

    folder: Path
    work: list[tuple[Path, Path]]
    missing: list[str]
    skipped: Counter[str]


def outputs_of(inputs: Sequence[str], output: str, suffix: str | None = None, deep: bool = False) -> Outputs:
    """The images that inputs name, and where their restorations go.

    Args:
        inputs: images, folders and patterns; the tree below a folder, or below what stands before a pattern's signs,
            is kept.
        output: the folder of the restorations. Of one image also its file: an image's suffix says so, where there is
            no folder of that name.
        suffix: of what is written; none: the image's own where it can be written, or else .png.
        deep: whether 16 bits are written.

    Raises:
        ImageError: there is nothing to restore.
        ValueError: two restorations would have one name, an input would be overwritten, or a format cannot hold what
            is asked for.
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
    """The name of a restoration by that of its image, with the suffix that is asked for or one that can be written.

    Raises:
        ValueError: 16 bits are asked for, and its format cannot hold them.
    """
    own = target.suffix.lower()
    if _kind(own) != _kind(suffix) if suffix else own not in WRITABLE:
        target = target.with_suffix(suffix or ".png")
    if deep and target.suffix.lower() not in DEEP:
        raise ValueError(f"{target} cannot hold 16 bits: give --format png or tif with --depth 16")
    return target


def batches(work: Sequence[tuple[Path, Path]], size: int | None) -> Iterator[list[tuple[Path, Path]]]:
    """The work in groups of images whose headers tell one size, in the order in which the sizes appear.

    Args:
        work: each image and the file of its restoration.
        size: of a group; None: as many as make up BATCH_PIXELS, MOST_AT_ONCE at most.
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
    """The output as a file's name, where it is one."""
    path = Path(output)
    own = path.suffix.lower()
    if own not in SUFFIXES | PASSED_OVER or path.is_dir():
        return None
    if count > 1:
        raise ValueError(f"--output {output} is a file's name, and there are {count} images: give a folder")
    if own not in WRITABLE:
        raise ValueError(f"--output {output} cannot be written: its suffix must be one of {' '.join(sorted(WRITABLE))}")
    if suffix and _kind(own) != _kind(suffix):
        raise ValueError(f"--output {output} and --format {suffix[1:]} differ: give one of them")
    return path


def _kind(suffix: str) -> str:
    """One suffix for each format."""
    return {".jpeg": ".jpg", ".tiff": ".tif"}.get(suffix, suffix)
