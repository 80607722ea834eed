"""Find the blurry/sharp pairs of a dataset as downloaded. Layouts are recognised by their folders or lists."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name

import yaml
from torch import Tensor

from deblur.data.files import images, search
from deblur.data.files.kinds import skipped_in_words
from deblur.data.files.lists import named_files, read_lines, read_table

SPLITS = ("train", "val", "test")
BLURRY = ("blur", "blurry", "input")
SHARP = ("sharp", "gt", "target", "clean")
LAYOUT_IN_BRACES = "'{class_path: MODULE.CLASS, init_args: {root: FOLDER}}'"
# The kinds of blurry images of a layout; "blur" stands for the first.
VARIANTS = {
    "gopro": ("blur", "blur_gamma"),
    "hide": ("blur",),
    "realblur": ("J", "R"),
    "reds": ("blur", "blur_comp", "blur_jpeg"),
    "rsblur": ("real_blur", "avg65_img"),
    "csv": ("blur",),
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
            sizes = [f"{frame.shape[2]}x{frame.shape[1]}" for frame in (blurry, sharp)]
            raise DatasetError(f"A pair differs in size: {self.blurry} has {sizes[0]}, {self.sharp} has {sizes[1]}.")
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
        weight: share of the decoded files in a mix, relative to the others' weights; none: the number of files.
        split: train, val or test, in place of the split that the run asks for: GoPro has train and test alone.
    """

    root: str | None = None
    blurry: str | None = None
    sharp: str | None = None
    variant: str | None = None
    weight: float | None = None
    split: str | None = None

    def __post_init__(self):
        if (self.root is None) == (self.blurry is None) or (self.blurry is None) != (self.sharp is None):
            raise ValueError("A dataset is given either by its root or by its two folders, blurry and sharp.")
        if self.weight is not None and not self.weight > 0:
            raise ValueError(f"A dataset's weight must be above 0, not {self.weight}.")
        if self.split not in (None, *SPLITS):
            raise ValueError(f"A dataset's split must be one of {', '.join(SPLITS)}, not {self.split}.")

    @classmethod
    def named(cls, name: str) -> "Source":
        """The source of a root, of ROOT:SPLIT, or of what a config of train.py has in braces: {class_path: ...}.

        Raises DatasetError where what stands in braces is no source.
        """
        if name.startswith("{") and not Path(name).exists():
            return _in_braces(name)
        root, _, split = name.rpartition(":")
        return cls(root=root, split=split) if split in SPLITS and not Path(name).exists() else cls(root=name)

    def list_pairs(self, split: str, variant: str = "blur") -> Listing:
        """The pairs of a split. A source of two folders has the same pairs in every split."""
        if self.root is None:
            return _flat("flat", "blur", Path(self.blurry), Path(self.sharp))
        return list_pairs(self.root, self.split or split, self.variant or variant)


def _in_braces(text: str) -> Source:
    try:
        given = yaml.safe_load(text)
        kind = resolve_name(given.pop("class_path")) if "class_path" in given else Source
        source = kind(**given.pop("init_args", given))
    except (yaml.YAMLError, ImportError, AttributeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DatasetError(f"{text} names no layout: {reason}. Write it as {LAYOUT_IN_BRACES}.") from None
    if not isinstance(source, Source):
        raise DatasetError(f"{text} names no layout: {kind.__name__} is not derived from deblur.data.layouts.Source.")
    return source


def find_pairs(root: str | Path, split: str = "test", variant: str = "blur") -> list[Pair]:
    """The pairs of a split of what `Source.named` names, sorted; DatasetError if an image has no partner."""
    return paired(Source.named(str(root)).list_pairs(split, variant), root)


def paired(listing: Listing, root: str | Path) -> list[Pair]:
    """The pairs of a complete listing; one DatasetError for all files that have no partner, or if it is empty."""
    if alone := listing.alone:
        shown = ", ".join(map(str, alone[:4])) + (" and others" if len(alone) > 4 else "")
        raise DatasetError(f"{root} has {len(alone)} images without a partner of the same name: {shown}.")
    if not listing.pairs:
        raise DatasetError(f"{root} holds no pairs in this split, read as the layout {listing.layout} (docs/data.md).")
    return listing.pairs


def list_pairs(root: str | Path, split: str = "test", variant: str = "blur") -> Listing:
    """List a split of a dataset: pairs and images without a partner. docs/data.md shows the layouts.

    Flat folders and GoPro's scenes may lie below ROOT/train, ROOT/val, ROOT/test; without such folders ROOT itself is
    the split. `variant` chooses the blurry images: "blur" means the first variant of a layout, any other must exist by
    that name.

    Raises DatasetError for a missing folder, an unknown variant, or an empty dataset, and its subclass NoSplitError if
    the dataset has only other splits.
    """
    root = Path(root)
    layout = recognise(root, split)
    if variants := VARIANTS.get(layout):
        variant = variants[0] if variant == "blur" else variant
        if variant not in variants and layout != "gopro":
            raise DatasetError(
                f"{root} is of the layout {layout}, which knows {' and '.join(variants)}, not {variant}."
            )
    listing = LISTERS[layout](root, split, variant)
    if not listing.pairs and not listing.alone:
        if layout == "gopro":  # which is what anything else is taken for
            raise NoSplitError(
                f"{root} holds no pairs: neither it nor a folder in it has the folders blur/ and sharp/ (docs/data.md)."
            )
        raise NoSplitError(f"{root} holds no pairs in its {split} split, read as the layout {layout} (docs/data.md).")
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


def remarks_on_skipped(root: str | Path) -> list[str]:
    """A sentence for each kind of image below a root that is not read, since a part of a dataset may be of it."""
    return [f"{root}: {line}" for line in skipped_in_words(search.passed_over(root))]


def find_sharp(root: str | Path, split: str) -> list[Path]:
    """A split's sharp photographs: those named in ROOT/SPLIT.txt, one per line, else all in ROOT/SPLIT or ROOT."""
    names = Path(root) / f"{split}.txt"
    return named_files(names, names.parent) if names.is_file() else search.find(split_folder(root, split))


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
    """Nah et al. 2017: SCENE/{blur,blur_gamma,sharp}; names are SCENE/000001."""
    scenes = [(prefix, _sides(scene, variant)) for prefix, scene in _scenes(split_folder(root, split))]
    both = [_images(*((prefix, sides[at]) for prefix, sides in scenes if sides[at])) for at in (0, 1)]
    return _match("gopro", variant, *both)


def _list_hide(root: Path, split: str, variant: str) -> Listing:
    """Shen et al. 2019: train, test/{test-close-ups,test-long-shot}, and their sharp sides in GT."""
    if split == "val":
        raise NoSplitError(f"{root} has no val split: HIDE has train and test.")
    test = _images(("", root / "test/test-close-ups"), ("", root / "test/test-long-shot"))
    blurry, other = _images(("", root / "train")), test
    if split == "test":
        blurry, other = other, blurry
    sharp = {name: file for name, file in _images(("", root / "GT")).items() if name not in other}
    return _match("hide", variant, blurry, sharp)


def _list_reds(root: Path, split: str, variant: str) -> Listing:
    """Nah et al. 2019: {train,val}_{blur,blur_comp,blur_jpeg,sharp}/000/00000000.png, or a folder deeper."""
    if split == "test":
        raise NoSplitError(f"{root} has no test split: the sharp test frames of REDS are not public; use val.")
    base = root / split if (root / split / f"{split}_sharp").is_dir() else root
    folders = [base / f"{split}_{kind}" for kind in (variant, "sharp")]
    if not any(base.glob(f"{split}_*")):
        raise NoSplitError(f"{root} has no {split} split.")
    return _flat("reds", variant, *folders)


def _list_realblur(root: Path, split: str, variant: str) -> Listing:
    """Rim et al. 2020: RealBlur_{J,R}_{train,test}_list.txt, lines of "SHARP BLURRY" relative to the root."""
    rows = _read_list(root / f"RealBlur_{variant}_{split}_list.txt")
    named = [(f"{Path(blurry).parts[-3]}/{Path(blurry).stem}", root / blurry, root / sharp) for sharp, blurry in rows]
    return _listed("realblur", variant, named)


def _list_rsblur(root: Path, split: str, variant: str) -> Listing:
    """Rim et al. 2022: RSBlur_real_{train,val,test}.txt in the root, beside RSBlur or in it."""
    rows = _read_list(root / f"RSBlur_real_{split}.txt")
    base = root if (root / "RSBlur").is_dir() else root.parent  # the lists' paths begin with RSBlur/
    kind = {"real_blur": "real_blur/real_blur.png", "avg65_img": "avg65_img/avg_blur.png"}[variant]
    places = [(base / sharp).parents[1] for sharp, _ in rows]
    named = [(f"{place.parent.name}/{place.name}", place / kind, place / "gt" / "gt_sharp.png") for place in places]
    return _listed("rsblur", variant, named)


def _list_csv(root: Path, split: str, variant: str) -> Listing:
    """A manifest with the columns blurry, sharp and, if wanted, split; paths relative to its folder, or absolute."""
    if not root.is_file():
        raise DatasetError(f"{root} is not a file: give the CSV manifest of a dataset.")
    columns, rows = read_table(root)
    if not {"blurry", "sharp"} <= set(columns):
        raise DatasetError(f"{root} must begin with a line of column names, blurry and sharp among them.")
    if "split" in columns:
        splits = [(row["split"] or "").strip().lower() for row in rows]
        if unknown := [name for name in splits if name not in SPLITS]:
            raise DatasetError(
                f"{root} has '{unknown[0]}' as a split, which is none (such lines: {len(unknown)}): write"
                f" {', '.join(SPLITS)} there, or leave the lines out."
            )
        rows = [row for row, name in zip(rows, splits, strict=True) if name == split]
    if any(not (row["blurry"] and row["sharp"]) for row in rows):
        raise DatasetError(f"{root} has a line without the two paths blurry and sharp.")
    named = [(_name_in_table(row["blurry"]), root.parent / row["blurry"], root.parent / row["sharp"]) for row in rows]
    return _listed("csv", variant, named)


def _name_in_table(path: str) -> str:
    """The name of a pair by its blurry path, absolute or not; it leads out of no folder to which files are written."""
    given = Path(path)
    below = Path(*(part for part in given.parts if part not in (given.anchor, "..")))
    return search.name_below(below, Path())


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
    if not file.is_file():
        raise NoSplitError(f"{file} is missing: the official list of this split must lie there.")
    rows = [line.split() for line in read_lines(file)]
    for row in rows:
        if len(row) != 2:
            raise DatasetError(f"{file} has a line that is not SHARP BLURRY: {' '.join(row)}.")
    return rows


def _listed(layout: str, variant: str, named: Iterable[tuple[str, Path, Path]]) -> Listing:
    """Pairs (name, blurry, sharp) from a list; of a pair without files the blurry one counts as alone."""
    blurry, sharp = {}, {}
    for name, *files in named:
        blurry_file, sharp_file = map(search.on_disk, files)
        if first := blurry.get(name) or sharp.get(name):
            raise DatasetError(f"{first} and {blurry_file} have the same name: keep one of them.")
        if sharp_file.is_file():
            sharp[name] = sharp_file
        if blurry_file.is_file() or name not in sharp:
            blurry[name] = blurry_file
    return _match(layout, variant, blurry, sharp)


def _flat(layout: str, variant: str, blurry: Path, sharp: Path) -> Listing:
    for folder in (blurry, sharp):
        if not folder.is_dir():
            raise DatasetError(f"{folder.parent} has no folder {folder.name}.")
    return _match(layout, variant, _images(("", blurry)), _images(("", sharp)))


def _match(layout: str, variant: str, blurry: dict[str, Path], sharp: dict[str, Path]) -> Listing:
    alone = [blurry[name] for name in sorted(blurry.keys() - sharp.keys())]
    alone += [sharp[name] for name in sorted(sharp.keys() - blurry.keys())]
    names = sorted(blurry.keys() & sharp.keys())
    return Listing(layout, variant, [Pair(name, blurry[name], sharp[name]) for name in names], alone)


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


def _images(*places: tuple[str, Path]) -> dict[str, Path]:
    """The images below folders, by the prefix of their folder + path below it without suffix."""
    files: dict[str, Path] = {}
    for prefix, folder in places:
        for file in search.find(folder) if folder.is_dir() and any(folder.iterdir()) else ():
            name = search.normalised(prefix) + search.name_below(file, folder)
            if name in files:
                raise DatasetError(f"{files[name]} and {file} have the same name: keep one of them.")
            files[name] = file
    return files
