"""Find the blurry/sharp pairs of a dataset as downloaded. Layouts are recognised by their folders or lists."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from data import images, search

SPLITS = ("train", "val", "test")
BLURRY = ("blur", "blurry", "input")
SHARP = ("sharp", "gt", "target", "clean")
HIDE_TEST = ("test-close-ups", "test-long-shot")
# The kinds of blurry images of a layout; "blur" stands for the first.
VARIANTS = {
    "gopro": ("blur", "blur_gamma"),
    "hide": ("blur",),
    "realblur": ("J", "R"),
    "reds": ("blur", "blur_comp", "blur_jpeg"),
    "rsblur": ("real_blur", "avg65_img"),
    "csv": ("blur",),
}
# Numbers of pairs in the complete datasets; docs/data.md gives the sources.
COUNTS = {
    "gopro": {"train": 2103, "test": 1111},
    "hide": {"train": 6397, "test": 2025},
    "realblur": {"train": 3758, "test": 980},
    "reds": {"train": 24000, "val": 3000},
    "rsblur": {"train": 8878, "val": 1120, "test": 3360},
}


class DatasetError(search.DataError):
    """A dataset that cannot be used as it is; the message names the folder or the files."""


class NoSplitError(DatasetError):
    """An intact dataset that does not have the requested split."""


@dataclass(frozen=True)
class Pair:
    """A blurry photograph and its sharp counterpart; `name` has no suffix and is unique in its split."""

    name: str
    blurry: Path
    sharp: Path

    def read(self) -> tuple[Tensor, Tensor]:
        """Read (blurry, sharp) as images.read_raw does; DatasetError if their sizes differ."""
        blurry, sharp = images.read_raw(self.blurry), images.read_raw(self.sharp)
        if blurry.shape != sharp.shape:
            ours, theirs = (f"{frame.shape[2]}x{frame.shape[1]}" for frame in (blurry, sharp))
            raise DatasetError(f"A pair differs in size: {self.blurry} has {ours}, {self.sharp} has {theirs}.")
        return blurry, sharp


@dataclass(frozen=True)
class Listing:
    """A split on disk: its layout and variant, its pairs sorted by name, and the images without a partner."""

    layout: str
    variant: str
    pairs: list[Pair]
    alone: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """A source of pairs or sharp photographs, and its share in a mix of several.

    Args:
        root: folder of a dataset, or a CSV manifest; see data.layouts.list_pairs.
        blurry: instead of root, a folder of blurry images with any name; needs `sharp`.
        sharp: the folder of their sharp counterparts, paired by their path below it without the suffix.
        variant: kind of blurry images, if it differs from that of the run.
        layout: gopro, hide, realblur, reds, rsblur, flat or csv; none: recognised automatically.
        weight: share of the decoded files in a mix, relative to the others' weights; none: the number of files times
            repeat.
        repeat: how often each file is used before all are reshuffled.
        split: train, val or test, in place of the split that the run asks for: GoPro has train and test alone.
        scale: factor on width and height for training, at most 1 (antialiased reduction).
    """

    root: str | None = None
    blurry: str | None = None
    sharp: str | None = None
    variant: str | None = None
    layout: str | None = None
    weight: float | None = None
    repeat: int = 1
    split: str | None = None
    scale: float = 1.0

    def __post_init__(self):
        if (self.root is None) == (self.blurry is None) or (self.blurry is None) != (self.sharp is None):
            raise ValueError("A dataset is given either by its root or by its two folders, blurry and sharp.")
        if self.weight is not None and not self.weight > 0:
            raise ValueError(f"A dataset's weight must be above 0, not {self.weight}.")
        if self.repeat < 1:
            raise ValueError(f"A dataset's repeat must be at least 1, not {self.repeat}.")
        if self.split not in (None, *SPLITS):
            raise ValueError(f"A dataset's split must be one of {', '.join(SPLITS)}, not {self.split}.")
        if not 0 < self.scale <= 1:
            raise ValueError(f"A dataset's scale must be above 0 and at most 1, not {self.scale}.")

    @classmethod
    def named(cls, name: str) -> "Source":
        """The source of a root, or of ROOT:SPLIT."""
        root, _, split = name.rpartition(":")
        return cls(root=root, split=split) if split in SPLITS and not Path(name).exists() else cls(root=name)

    def list_pairs(self, split: str, variant: str = "blur") -> Listing:
        """The pairs of a split. A source of two folders has the same pairs in every split."""
        if self.root is None:
            return _flat("flat", "blur", Path(self.blurry), Path(self.sharp))
        return list_pairs(self.root, self.split or split, self.variant or variant, self.layout)


def find_pairs(root: str | Path, split: str = "test", variant: str = "blur") -> list[Pair]:
    """List the pairs of a split, sorted by name, as `list_pairs`; DatasetError if an image has no partner."""
    return paired(list_pairs(root, split, variant), root)


def paired(listing: Listing, root: str | Path) -> list[Pair]:
    """The pairs of a complete listing; one DatasetError for all files that have no partner."""
    alone = listing.alone
    if alone:
        shown = ", ".join(map(str, alone[:4])) + (" and others" if len(alone) > 4 else "")
        raise DatasetError(f"{root} has {len(alone)} images without a partner of the same name: {shown}.")
    return listing.pairs


def list_pairs(root: str | Path, split: str = "test", variant: str = "blur", layout: str | None = None) -> Listing:
    """List a split of a dataset: pairs and images without a partner. The layout is recognised unless it is named.

    - csv: a manifest with the columns blurry, sharp and, if wanted, split; paths relative to its folder.
    - realblur (Rim et al. 2020): ROOT/RealBlur_{J,R}_{train,test}_list.txt, lines of "SHARP BLURRY" relative to
      ROOT; variant J (also "blur") or R.
    - rsblur (Rim et al. 2022): RSBlur_real_{train,val,test}.txt in ROOT, beside ROOT/RSBlur or in it; variant
      real_blur (also "blur") or avg65_img, the synthetic one.
    - reds (Nah et al. 2019): ROOT/{train,val}_{blur,blur_comp,blur_jpeg,sharp}/000/00000000.png, or one folder
      deeper in ROOT/{train,val}. The sharp test frames are not public.
    - hide (Shen et al. 2019): ROOT/train, ROOT/test/{test-close-ups,test-long-shot} and their sharp sides in ROOT/GT.
    - flat: ROOT/{blur|blurry|input} and ROOT/{sharp|gt|target|clean}, paired by their path below these folders,
      suffix aside.
    - gopro (Nah et al. 2017): ROOT/SCENE/{blur,blur_gamma,sharp}. Names are "SCENE/000001".

    The last two may lie below ROOT/train, ROOT/val, ROOT/test; without such folders ROOT itself is the split.
    `variant` chooses the blurry images: "blur" means the first variant of a layout, any other must exist by that name.

    Raises DatasetError for a missing folder, an unknown layout or variant, or an empty dataset, and its subclass
    NoSplitError if the dataset has only other splits.
    """
    root = Path(root)
    layout = layout or recognise(root, split)
    if layout not in LISTERS:
        raise DatasetError(f"{layout} is no layout: give one of {', '.join(LISTERS)}.")
    if layout in VARIANTS:
        known = VARIANTS[layout]
        variant = known[0] if variant == "blur" else variant
        if variant not in known and layout != "gopro":
            raise DatasetError(f"{root} is of the layout {layout}, which knows {' and '.join(known)}, not {variant}.")
    listing = LISTERS[layout](root, split, variant)
    if not listing.pairs and not listing.alone:
        raise NoSplitError(f"{root} holds no pairs in its {split} split, read as the layout {layout}.")
    return listing


def recognise(root: Path, split: str) -> str:
    """The layout of a dataset, by its name (csv) or by the folders and lists in it."""
    if root.suffix.lower() == ".csv":
        return "csv"
    if any(root.glob("RealBlur_[JR]_*_list.txt")) or any(root.glob("RealBlur-[JR]_*")):
        return "realblur"
    if any(root.glob("RSBlur_real_*.txt")):
        return "rsblur"
    if any((root / folder).is_dir() for name in SPLITS for folder in (f"{name}_sharp", f"{name}/{name}_sharp")):
        return "reds"
    if (root / "GT").is_dir() and ((root / "train").is_dir() or (root / "test").is_dir()):
        return "hide"
    base = split_folder(root, split)
    return "flat" if any((base / name).is_dir() for name in BLURRY + SHARP) else "gopro"


def holds_pairs(root: str | Path, split: str, variant: str = "blur") -> bool:
    """Whether a split has blurry images; otherwise it is a set of sharp photographs."""
    root = Path(root)
    if (root / f"{split}.txt").is_file():
        return False
    if recognise(root, split) not in ("flat", "gopro"):
        return True
    base = split_folder(root, split)
    return any(_sides(folder, variant)[0] for _, folder in [("", base), *_scenes(base)])


def find_sharp(root: str | Path, split: str) -> list[Path]:
    """List a split's sharp photographs: those named in ROOT/train.txt, one per line, else all in ROOT/train or ROOT.

    The same holds for val and test. Raises DatasetError if a listed file does not exist.
    """
    names = Path(root) / f"{split}.txt"
    if not names.is_file():
        return search.find(split_folder(root, split))
    return named_files(names, names.parent)


def named_files(names: Path, root: Path) -> list[Path]:
    """The files below `root` that a text file lists, one per line, sorted; DatasetError if one is missing."""
    if not names.is_file():
        raise DatasetError(f"{names} is no file: give a list of names, one a line.")
    files = sorted(root / line.strip() for line in names.read_text().splitlines() if line.strip())
    if not files:
        raise DatasetError(f"{names} lists no file.")
    for file in files:
        if not file.is_file():
            raise DatasetError(f"{names} lists {file.name}, but {file} is no file.")
    return files


def split_folder(root: str | Path, split: str) -> Path:
    """ROOT/train, ROOT/val or ROOT/test if ROOT has such folders, else ROOT itself; DatasetError if missing."""
    root = Path(root)
    if not root.is_dir():
        raise DatasetError(f"{root} is not a folder: give the root folder of a dataset.")
    present = [name for name in SPLITS if (root / name).is_dir()]
    if present and split not in present:
        raise NoSplitError(
            f"{root} has no {split} folder, only {', '.join(present)}: name one of these, as --data.{split}"
            f" {root}:{present[-1]} for train.py, or --split {present[-1]} for evaluate.py."
        )
    return root / split if present else root


def _list_flat(root: Path, split: str, variant: str) -> Listing:
    base = split_folder(root, split)
    blurry, sharp = _sides(base, variant)
    if blurry is None or sharp is None:
        if blurry is sharp:
            return Listing("flat", variant, [])
        lacking = f"{variant} beside {sharp.name}" if blurry is None else f"sharp beside {blurry.name}"
        raise DatasetError(f"{base} has no folder {lacking}.")
    return _flat("flat", blurry.name, blurry, sharp)


def _list_gopro(root: Path, split: str, variant: str) -> Listing:
    base = split_folder(root, split)
    found: list[dict[str, Path]] = [{}, {}]
    for prefix, scene in _scenes(base):
        for files, folder in zip(found, _sides(scene, variant), strict=True):
            if folder is not None:
                _collect(files, prefix, folder)
    if not any(found):
        raise DatasetError(
            f"{base} holds no pairs: expected images in two folders such as {variant} and sharp, "
            f"or in SCENE/{variant} and SCENE/sharp as in GoPro."
        )
    return _match("gopro", variant, *found)


def _list_hide(root: Path, split: str, variant: str) -> Listing:
    if split == "val":
        raise NoSplitError(f"{root} has no val split: HIDE has train and test.")
    blurry: dict[str, dict[str, Path]] = {"train": {}, "test": {}}
    for part, folder in [("train", root / "train"), *(("test", root / "test" / name) for name in HIDE_TEST)]:
        if folder.is_dir():
            _collect(blurry[part], "", folder)
    sharp: dict[str, Path] = {}
    _collect(sharp, "", root / "GT")
    other = blurry["test" if split == "train" else "train"]
    return _match("hide", variant, blurry[split], {name: file for name, file in sharp.items() if name not in other})


def _list_reds(root: Path, split: str, variant: str) -> Listing:
    if split == "test":
        raise NoSplitError(f"{root} has no test split: the sharp test frames of REDS are not public; use val.")
    base = root / split if (root / split / f"{split}_sharp").is_dir() else root
    folders = [base / f"{split}_{kind}" for kind in (variant, "sharp")]
    if not any(base.glob(f"{split}_*")):
        raise NoSplitError(f"{root} has no {split} split.")
    for folder in folders:
        if not folder.is_dir():
            raise DatasetError(f"{base} has no folder {folder.name}, which REDS has for its {split} split.")
    return _flat("reds", variant, *folders)


def _list_realblur(root: Path, split: str, variant: str) -> Listing:
    file = root / f"RealBlur_{variant}_{split}_list.txt"
    other = "R" if variant == "J" else "J"
    if not file.is_file() and (root / f"RealBlur_{other}_{split}_list.txt").is_file():
        raise DatasetError(f"{root} has no {file.name}, only the list of RealBlur-{other}: choose the variant {other}.")
    rows = _read_list(file)
    named = [(f"{Path(blurry).parts[-3]}/{Path(blurry).stem}", root / blurry, root / sharp) for sharp, blurry in rows]
    return _listed("realblur", variant, named)


def _list_rsblur(root: Path, split: str, variant: str) -> Listing:
    rows = _read_list(root / f"RSBlur_real_{split}.txt")
    base = root if (root / "RSBlur").is_dir() else root.parent  # the lists' paths begin with RSBlur/
    kind = {"real_blur": "real_blur/real_blur.png", "avg65_img": "avg65_img/avg_blur.png"}[variant]
    places = [(base / sharp).parents[1] for sharp, _ in rows]
    named = [(f"{place.parent.name}/{place.name}", place / kind, place / "gt" / "gt_sharp.png") for place in places]
    return _listed("rsblur", variant, named)


def _list_csv(root: Path, split: str, variant: str) -> Listing:
    if not root.is_file():
        raise DatasetError(f"{root} is not a file: give the CSV manifest of a dataset.")
    with open(root, newline="") as file:
        reader = csv.DictReader(file)
        if not {"blurry", "sharp"} <= set(reader.fieldnames or ()):
            raise DatasetError(f"{root} must begin with a line of column names, blurry and sharp among them.")
        rows = [row for row in reader if row.get("split") in (None, split)]
    if any(not (row["blurry"] and row["sharp"]) for row in rows):
        raise DatasetError(f"{root} has a line without the two paths blurry and sharp.")
    files = [(root.parent / row["blurry"], root.parent / row["sharp"]) for row in rows]
    names = [Path(row["blurry"]).with_suffix("").as_posix() for row in rows]
    return _listed("csv", variant, [(name, *both) for name, both in zip(names, files, strict=True)])


LISTERS = {
    "csv": _list_csv,
    "flat": _list_flat,
    "gopro": _list_gopro,
    "hide": _list_hide,
    "realblur": _list_realblur,
    "reds": _list_reds,
    "rsblur": _list_rsblur,
}


def _read_list(file: Path) -> list[list[str]]:
    """The lines of an official list, each SHARP BLURRY."""
    if not file.is_file():
        raise NoSplitError(f"{file} is missing: the official list of this split must lie there.")
    rows = [line.split() for line in file.read_text().splitlines() if line.strip()]
    for row in rows:
        if len(row) != 2:
            raise DatasetError(f"{file} has a line that is not SHARP BLURRY: {' '.join(row)}.")
    return rows


def _listed(layout: str, variant: str, named: Iterable[tuple[str, Path, Path]]) -> Listing:
    """Pairs from a list. If one file of a pair is missing, its partner is reported; if both are, the blurry one is."""
    pairs: dict[str, Pair] = {}
    alone = []
    for name, blurry, sharp in named:
        if name in pairs:
            raise DatasetError(f"{pairs[name].blurry} and {blurry} have the same name: keep one of them.")
        missing = [file for file in (blurry, sharp) if not file.is_file()]
        if missing:
            alone.append(blurry if len(missing) == 2 or missing == [sharp] else sharp)
        else:
            pairs[name] = Pair(name, blurry, sharp)
    return Listing(layout, variant, [pairs[name] for name in sorted(pairs)], sorted(alone))


def _flat(layout: str, variant: str, blurry: Path, sharp: Path) -> Listing:
    """The pairs of two folders."""
    found: list[dict[str, Path]] = [{}, {}]
    for files, folder in zip(found, (blurry, sharp), strict=True):
        if not folder.is_dir():
            raise DatasetError(f"{folder} is not a folder: give two folders of images.")
        _collect(files, "", folder)
    if not any(found):
        raise DatasetError(f"{blurry} holds no pairs with {sharp}: both folders are empty.")
    return _match(layout, variant, *found)


def _match(layout: str, variant: str, blurry: dict[str, Path], sharp: dict[str, Path]) -> Listing:
    alone = [blurry[name] for name in sorted(blurry.keys() - sharp.keys())]
    alone += [sharp[name] for name in sorted(sharp.keys() - blurry.keys())]
    both = sorted(blurry.keys() & sharp.keys())
    return Listing(layout, variant, [Pair(name, blurry[name], sharp[name]) for name in both], alone)


def _scenes(base: Path) -> list[tuple[str, Path]]:
    return [(f"{scene.name}/", scene) for scene in sorted(base.iterdir()) if scene.is_dir() and scene.name[0] != "."]


def _sides(folder: Path, variant: str) -> tuple[Path | None, Path | None]:
    """The folders of blurry and of sharp images directly below `folder`; None for a missing one."""
    names = (variant,) if variant != "blur" or (folder / "blur").is_dir() else BLURRY
    sides = []
    for candidates in (names, SHARP):
        present = [folder / name for name in candidates if (folder / name).is_dir()]
        if len(present) > 1:
            raise DatasetError(f"{folder} has both {present[0].name} and {present[1].name}: keep one of them.")
        sides.append(present[0] if present else None)
    return sides[0], sides[1]


def _collect(files: dict[str, Path], prefix: str, folder: Path) -> None:
    """Add the images below `folder` to `files`, under the name prefix + path below the folder without suffix."""
    if not any(folder.iterdir()):
        return
    for file in search.find(folder):
        name = prefix + file.relative_to(folder).with_suffix("").as_posix()
        if name in files:
            raise DatasetError(f"{files[name]} and {file} have the same name: keep one of them.")
        files[name] = file
