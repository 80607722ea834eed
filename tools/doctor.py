"""Find faults of a dataset before training: python -m tools.doctor ROOT [--report FILE.json]

Checks every pair of every split for: images without a partner, files that cannot be decoded, different sizes, swapped
sides, shifts, identical sides, blurry images of different brightness (a gamma mistaken for light), 8 bits against 16,
the same image or scene in two splits, and the number of pairs of published datasets. Exits with 1 if anything is wrong.
Warns if there are no splits, since the run would then validate on its training images.
"""

import hashlib
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from base.command_line import call
from base.files import replacing
from base.stop import run_command
from data import images
from data.layouts import SPLITS, DatasetError, Listing, NoSplitError, Pair, list_pairs
from tools.resumable import on_all_cores

# Numbers of pairs in the complete datasets; docs/data.md gives the sources.
COUNTS = {
    "gopro": {"train": 2103, "test": 1111},
    "hide": {"train": 6397, "test": 2025},
    "realblur": {"train": 3758, "test": 980},
    "reds": {"train": 24000, "val": 3000},
    "rsblur": {"train": 8878, "val": 1120, "test": 3360},
}
# Thresholds, chosen so that the real pairs of GoPro, REDS, RSBlur and RealBlur pass.
SHIFT = 0.25  # ratio of the correlation without a shift to its peak; long motion blur alone gives 0.31 and more
DETAIL = 0.9  # ratio of the sharp side's detail to the blurry side's; below it they are probably swapped
GAMMA = 0.25  # change of log mean brightness; a gamma of 2.2 changes mid-grey by more


@dataclass(frozen=True)
class Fault:
    """A fault of a dataset: its kind, the split and pair, the files, and a sentence."""

    kind: str
    split: str
    name: str
    files: tuple[str, ...]
    sentence: str


def diagnose(root: str, variant: str = "blur", num_workers: int | None = None) -> dict:
    """Check a dataset on all cores (or with `num_workers` processes; 0: in this one).

    Returns {"root", "variant", "layout", "splits": {split: number of pairs}, "undivided": whether there are no splits
    and all pairs count as one, "faults": [Fault as dict]}. Raises DatasetError if no split can be listed or a process
    is killed.
    """
    listings, refused = {}, {}
    for split in SPLITS:
        try:
            listings[split] = list_pairs(root, split, variant)
        except DatasetError as error:
            refused[split] = error
    if not listings:
        raise refused["train"]
    paths = {tuple(str(pair.blurry) for pair in listing.pairs) for listing in listings.values()}
    undivided = len(paths) == 1 and len(listings) > 1  # no split folders: every split has the same pairs
    if undivided:
        listings = {"test": listings["test"]} if "test" in listings else dict([next(iter(listings.items()))])
    prints: dict[bytes, list[tuple[str, Pair]]] = {}
    faults = [
        Fault("split", split, "", (), str(error)) for split, error in refused.items() if type(error) is not NoSplitError
    ]
    for split, listing in listings.items():
        for file in listing.alone:
            faults.append(Fault("unpaired", split, file.stem, (str(file),), f"{file} has no partner."))
        published = COUNTS.get(listing.layout, {}).get(split)
        if published and len(listing.pairs) != published:
            sentence = f"{split} has {len(listing.pairs)} pairs, the published {listing.layout} has {published}."
            faults.append(Fault("count", split, "", (), sentence))
    work = [(split, pair) for split, listing in listings.items() for pair in listing.pairs]
    sides = zip(*work, strict=True) if work else ((), ())
    examined = on_all_cores(examine, *map(list, sides), workers=num_workers, unit="pair", desc="examining")
    for (split, pair), (found, mark) in zip(work, examined, strict=True):
        faults += found
        if mark is not None:
            prints.setdefault(mark, []).append((split, pair))
    faults += _leaks(prints) + _shared_scenes(listings)
    first = next(iter(listings.values()))
    return {
        "root": str(root),
        "layout": first.layout,
        "variant": first.variant,
        "splits": {split: len(listing.pairs) for split, listing in listings.items()},
        "undivided": undivided,
        "faults": [asdict(fault) for fault in faults],
    }


def examine(split: str, pair: Pair) -> tuple[list[Fault], bytes | None]:
    """The faults of one pair, and a mark of the sharp image that equal images share; None if unreadable."""
    faults = []

    def fault(kind: str, sentence: str) -> None:
        faults.append(Fault(kind, split, pair.name, (str(pair.blurry), str(pair.sharp)), sentence))

    sides = []
    for file in (pair.blurry, pair.sharp):
        try:
            sides.append(images.read_raw(file))
        except images.ImageError as error:
            faults.append(Fault("unreadable", split, pair.name, (str(file),), str(error)))
    if len(sides) < 2:
        return faults, None
    blurry, sharp = sides
    mark = hashlib.sha256(sharp.movedim(0, -1).contiguous().numpy().tobytes()).digest()
    if blurry.dtype != sharp.dtype:
        bits = ["8" if side.dtype == torch.uint8 else "16" for side in sides]
        fault("depth", f"{pair.blurry} has {bits[0]} bits and {pair.sharp} has {bits[1]}: save both alike.")
    if blurry.shape != sharp.shape:
        blurry_size, sharp_size = (f"{side.shape[2]}x{side.shape[1]}" for side in sides)
        fault("size", f"{pair.blurry} has {blurry_size} pixels and {pair.sharp} has {sharp_size}.")
        return faults, mark
    if blurry.dtype == sharp.dtype and torch.equal(blurry, sharp):
        fault("identical", f"{pair.blurry} and {pair.sharp} have the same pixels: nothing is blurred.")
        return faults, mark
    blurry, sharp = (images.to_float(side).mean(0) for side in sides)
    right, down, share = find_shift(blurry, sharp)
    change = (blurry.mean().clamp_min(1e-4) / sharp.mean().clamp_min(1e-4)).log().abs().item()
    if change > GAMMA:
        fault("gamma", f"{pair.blurry} is {100 * (torch.tensor(change).exp() - 1):.0f} % brighter or darker than "
              f"{pair.sharp}: one may be in linear light, the other in the file's values.")  # fmt: skip
    if share < SHIFT:
        fault("shift", f"{pair.blurry} is shifted against {pair.sharp} by {right} right and {down} down.")
    elif change <= GAMMA and detail(sharp) < DETAIL * detail(blurry):  # a darker image has less detail
        fault("swapped", f"{pair.sharp} is blurrier than {pair.blurry}: the sides may be swapped.")
    return faults, mark


def find_shift(blurry: Tensor, sharp: Tensor) -> tuple[int, int, float]:
    """The shift of one (H, W) image against the other: (pixels right, pixels down, share).

    It is found by phase correlation (Kuglin and Hines 1975) of the windowed images' low frequencies. `share` is the
    correlation at zero shift over that at the peak: near 1 if the images are aligned, near 0 if they are shifted.
    Motion blur stretches the peak along its path, which includes zero shift; a real shift moves the whole peak away
    from it.
    """
    height, width = blurry.shape
    window = torch.outer(*(torch.hann_window(side, periodic=False) for side in (height, width)))
    first, second = (torch.fft.rfft2((side - side.mean()) * window) for side in (blurry, sharp))
    cross = first * second.conj()
    rows, columns = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None]
    low = torch.exp(-(rows**2 + columns**2) / (2 * 0.08**2))  # frequencies that a blur of a few pixels preserves
    surface = torch.fft.irfft2(cross / cross.abs().clamp_min(1e-12) * low, s=(height, width))
    down, right = divmod(int(surface.argmax()), width)
    share = (surface[0, 0] / surface.max()).item()
    return (right + width // 2) % width - width // 2, (down + height // 2) % height - height // 2, share


def detail(image: Tensor) -> float:
    """Mean absolute second difference of an (H, W) image after 2 x 2 averaging, which suppresses noise."""
    small = F.avg_pool2d(image[None], 2)[0]
    return sum(small.diff(n=2, dim=dim).abs().mean().item() for dim in (0, 1))


def _leaks(prints: dict[bytes, list[tuple[str, Pair]]]) -> list[Fault]:
    """Images that occur in two splits."""
    faults = []
    for places in prints.values():
        splits = {split for split, _ in places}
        if len(splits) > 1:
            files = tuple(str(pair.sharp) for _, pair in places)
            sentence = f"The same image is in {' and '.join(sorted(splits))}: {', '.join(files)}."
            faults.append(Fault("leak", places[0][0], places[0][1].name, files, sentence))
    return faults


def _shared_scenes(listings: dict[str, Listing]) -> list[Fault]:
    """Scenes (folders in names like SCENE/000001) that occur in two splits, for layouts that are split by scene."""
    splits: dict[str, list[str]] = {}
    for split, listing in listings.items():
        if listing.layout in ("gopro", "realblur"):
            for scene in {pair.name.split("/")[0] for pair in listing.pairs}:
                splits.setdefault(scene, []).append(split)
    return [
        Fault("leak", places[0], scene, (), f"The scene {scene} is in {' and '.join(sorted(places))}.")
        for scene, places in sorted(splits.items())
        if len(places) > 1
    ]


def main(root: str, report: str | None = None, variant: str = "blur", num_workers: int | None = None) -> int:
    """Examine a dataset, print a table and return the exit code.

    Args:
        root: root folder of the dataset, in any layout, or a CSV manifest.
        report: JSON file to write all faults to.
        variant: kind of blurry images.
        num_workers: processes; none: one per core.
    """
    found = diagnose(root, variant, num_workers)
    counts = Counter(fault["kind"] for fault in found["faults"])
    where = "" if found["undivided"] else " in {}"
    splits = ", ".join(f"{count} pairs{where.format(split)}" for split, count in found["splits"].items())
    print(f"{root}: layout {found['layout']}, variant {found['variant']}: {splits}")
    if found["undivided"]:
        print(
            "  warning: no folders train/ and val/ (or test/): given as both data.train and data.val, the images that"
            " are trained on would validate; divide them, or give two folders"
        )
    for fault in found["faults"][:50]:
        print(f"  {fault['kind']:<10} {fault['sentence']}")
    if len(found["faults"]) > 50:
        print(f"  and {len(found['faults']) - 50} more; --report writes all of them")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "no faults")
    if report is not None:
        with replacing(Path(report)) as part:
            part.write_text(json.dumps(found, indent=1))
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(run_command("tools.doctor", lambda: call(main, None, "-m tools.doctor"), "stopped"))
