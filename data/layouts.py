"""Find the blurry/sharp pairs of a dataset as it lies on disk."""

from dataclasses import dataclass
from pathlib import Path

from data import images

SPLITS = ("train", "val", "test")
BLURRY = ("blur", "blurry", "input")
SHARP = ("sharp", "gt", "target", "clean")


class DatasetError(ValueError):
    """A dataset that cannot be used as it is; the message is one sentence naming the folder or the files."""

    def __init__(self, sentence: str):
        # A DataLoader repeats a worker's error with the whole traceback as its message: keep the sentence.
        super().__init__(sentence.rpartition("DatasetError: ")[2].strip())


@dataclass(frozen=True)
class Pair:
    """One blurry photograph and its sharp counterpart; `name` is unique in its split, without suffix."""

    name: str
    blurry: Path
    sharp: Path


def find_pairs(root: str | Path, split: str = "test", variant: str = "blur") -> list[Pair]:
    """List the pairs of a split, sorted by name; the layout is recognised by itself.

    - Two flat folders: ROOT/{blur|blurry|input} and ROOT/{sharp|gt|target|clean}, pictures paired by their
      path below these folders, suffix aside. Names are "000001" or "subfolder/000001".
    - GoPro (Nah et al. 2017): ROOT/SCENE/{blur,blur_gamma,sharp}. Names are "SCENE/000001".

    Either may lie below ROOT/train, ROOT/val, ROOT/test; without such folders ROOT itself is the split.
    `variant` names the blurry folder: "blur" also stands for the other flat names, anything else
    ("blur_gamma") must exist by that name.

    Raises DatasetError with one sentence: for a missing folder or split, an unknown layout, an empty dataset,
    and one for all files that have no partner.
    """
    base = split_folder(root, split)
    flat = _sides(base, variant)
    if (flat[0] is None) != (flat[1] is None):
        lacking = f"{variant} beside {flat[1].name}" if flat[0] is None else f"sharp beside {flat[0].name}"
        raise DatasetError(f"{base} has no folder {lacking}.")
    scenes = [("", base)] if flat[0] else _scenes(base)
    found: list[dict[str, Path]] = [{}, {}]
    for prefix, scene in scenes:
        for files, folder in zip(found, _sides(scene, variant), strict=True):
            if folder is not None:
                _collect(files, prefix, folder)
    blurry, sharp = found
    if not blurry and not sharp:
        raise DatasetError(
            f"{base} holds no pairs: expected pictures in two folders such as {variant} and sharp, "
            f"or in SCENE/{variant} and SCENE/sharp as in GoPro."
        )
    alone = [str(blurry[name]) for name in sorted(blurry.keys() - sharp.keys())]
    alone += [str(sharp[name]) for name in sorted(sharp.keys() - blurry.keys())]
    if alone:
        shown = ", ".join(alone[:4]) + (" and others" if len(alone) > 4 else "")
        raise DatasetError(f"{base} has {len(alone)} pictures without a partner of the same name: {shown}.")
    return [Pair(name, blurry[name], sharp[name]) for name in sorted(blurry)]


def holds_pairs(root: str | Path, split: str, variant: str = "blur") -> bool:
    """Whether there are folders of blurry pictures in a split, so that it is no set of sharp photographs."""
    base = split_folder(root, split)
    return any(_sides(folder, variant)[0] for _, folder in [("", base), *_scenes(base)])


def split_folder(root: str | Path, split: str) -> Path:
    """ROOT/train, ROOT/val or ROOT/test where ROOT has such folders, else ROOT itself; DatasetError if missing."""
    root = Path(root)
    if not root.is_dir():
        raise DatasetError(f"{root} is not a folder: give the root folder of a dataset.")
    present = [name for name in SPLITS if (root / name).is_dir()]
    if present and split not in present:
        raise DatasetError(f"{root} has no {split} folder, only {', '.join(present)}.")
    return root / split if present else root


def _scenes(base: Path) -> list[tuple[str, Path]]:
    return [(f"{scene.name}/", scene) for scene in sorted(base.iterdir()) if scene.is_dir() and scene.name[0] != "."]


def _sides(folder: Path, variant: str) -> tuple[Path | None, Path | None]:
    """The folders of the blurry and of the sharp pictures directly below `folder`, None where missing."""
    names = (variant,) if variant != "blur" or (folder / "blur").is_dir() else BLURRY
    sides = []
    for candidates in (names, SHARP):
        present = [folder / name for name in candidates if (folder / name).is_dir()]
        if len(present) > 1:
            raise DatasetError(f"{folder} has both {present[0].name} and {present[1].name}: keep one of them.")
        sides.append(present[0] if present else None)
    return sides[0], sides[1]


def _collect(files: dict[str, Path], prefix: str, folder: Path) -> None:
    """Add the pictures below `folder` to `files` by name: prefix + path below the folder, without suffix."""
    if not any(folder.iterdir()):
        return
    for file in images.find(folder):
        name = prefix + file.relative_to(folder).with_suffix("").as_posix()
        if name in files:
            raise DatasetError(f"{files[name]} and {file} have the same name: keep one of them.")
        files[name] = file
