"""Find faults of a dataset before training: python -m tools.doctor ROOT

Checks every pair of every split for: images without a partner, files that cannot be decoded, different sizes, swapped
sides, shifts, identical sides, blurry images of different brightness (a gamma mistaken for light), 8 bits against 16,
and the same image or scene in two splits. Exits with 1 if anything is wrong. Says how many pairs the published dataset
of the layout has, if it is another number. Warns if there are no splits, since the run would then validate on its
training images.
"""

import hashlib
import math
import sys
from collections import Counter, defaultdict
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from deblur.cli import call, run_command
from deblur.data.files import images
from deblur.data.layouts import SPLITS, DatasetError, Listing, NoSplitError, Pair, Source, remarks_on_skipped
from deblur.tools.resumable import on_all_cores

# Numbers of pairs in the complete datasets: of GoPro, HIDE and RealBlur by the READMEs of
# SeungjunNah/DeepDeblur_release, joanshen0508/HA_deblur and ChengxuLiu/MISCFilter (RealBlur-R's lists were not at
# hand), of REDS by SeungjunNah/seungjunnah.github.io, of RSBlur by the lists in rimchang/RSBlur.
COUNTS = {
    "gopro": {"train": 2103, "test": 1111},
    "hide": {"train": 6397, "test": 2025},
    "realblur": {"train": 3758, "test": 980},
    "reds": {"train": 24000, "val": 3000},
    "rsblur": {"train": 8878, "val": 1120, "test": 3360},
}
# Thresholds, chosen so that the real pairs of GoPro, REDS, RSBlur and RealBlur pass.
SHIFT = 0.25  # ratio of the correlation without a shift to its peak; long motion blur alone gives 0.31 and more
LARGEST_GAIN = 0.15  # mean logarithm of the blurry side's amplitudes over the sharp one's; above it they are swapped
TILE = 32  # pixels a side of the tiles over which spectra are averaged
LARGEST_NUMBER_OF_TILES = 64  # along a side
GAMMA = 0.25  # change of log mean brightness; a gamma of 2.2 changes mid-grey by more


class Fault(NamedTuple):
    """A fault of a dataset: its kind, and a sentence that names the files."""

    kind: str
    sentence: str


class Diagnosis(NamedTuple):
    """The splits of a dataset and its faults; `undivided` if there are no splits and all pairs count as one.

    `remarks` are about what may be intended.
    """

    splits: dict[str, Listing]
    undivided: bool
    faults: list[Fault]
    remarks: list[str]


def diagnose(root: str, variant: str = "blur", num_workers: int | None = None) -> Diagnosis:
    """Check a dataset on all cores (or with `num_workers` processes; 0: in this one).

    Raises DatasetError if no split can be listed or a process is killed.
    """
    source, listings, refused = Source.named(root), {}, {}
    for split in SPLITS:
        try:
            listings[split] = source.list_pairs(split, variant)
        except DatasetError as error:
            refused[split] = error
    if not listings:
        raise refused["train"]
    paths = {tuple(str(pair.blurry) for pair in listing.pairs) for listing in listings.values()}
    undivided = len(paths) == 1 and len(listings) > 1  # no split folders: every split has the same pairs
    if undivided:
        listings = {"test": listings["test"]} if "test" in listings else dict([next(iter(listings.items()))])
    faults = [Fault("split", str(error)) for error in refused.values() if type(error) is not NoSplitError]
    remarks = [] if source.root is None else remarks_on_skipped(source.root)
    for split, listing in listings.items():
        faults += [Fault("unpaired", f"{file} has no partner.") for file in listing.alone]
        count, published = len(listing.pairs), COUNTS.get(listing.layout, {}).get(split)
        if published not in (None, count):
            sentence = f"{split} has {count} pairs; the dataset whose layout this is, {listing.layout}, has {published}"
            remarks.append(f"{sentence} as published")
    pairs = [pair for listing in listings.values() for pair in listing.pairs]
    examined = [*on_all_cores(examine, pairs, workers=num_workers, unit="pair", desc="examining")]
    faults += [fault for of_pair, _ in examined for fault in of_pair]
    return Diagnosis(listings, undivided, faults + leaks(listings, [mark for _, mark in examined]), remarks)


def examine(pair: Pair) -> tuple[list[Fault], bytes | None]:
    """The faults of one pair, and a mark of the sharp image that equal images share; None if unreadable."""
    sides, faults = [], []
    for file in (pair.blurry, pair.sharp):
        try:
            sides.append(images.read_raw(file))
        except images.ImageError as error:
            faults.append(Fault("unreadable", str(error)))
    if faults:
        return faults, None
    blurry, sharp = sides
    mark = hashlib.sha256(sharp.movedim(0, -1).contiguous().numpy().tobytes()).digest()
    if blurry.dtype != sharp.dtype:
        bits = ["8" if side.dtype == torch.uint8 else "16" for side in sides]
        sentence = f"{pair.blurry} has {bits[0]} bits and {pair.sharp} has {bits[1]}: save both alike."
        faults.append(Fault("depth", sentence))
    if blurry.shape != sharp.shape:
        sizes = [f"{side.shape[2]}x{side.shape[1]}" for side in sides]
        return [*faults, Fault("size", f"{pair.blurry} has {sizes[0]} pixels and {pair.sharp} has {sizes[1]}.")], mark
    if blurry.dtype == sharp.dtype and torch.equal(blurry, sharp):
        return [Fault("identical", f"{pair.blurry} and {pair.sharp} have the same pixels: nothing is blurred.")], mark
    blurry, sharp = (images.to_float(side).mean(0) for side in sides)
    right, down, share = find_shift(blurry, sharp)
    change = (blurry.mean().clamp_min(1e-4) / sharp.mean().clamp_min(1e-4)).log().abs().item()
    if change > GAMMA:
        sentence = f"{pair.blurry} is {100 * math.expm1(change):.0f} % brighter or darker than {pair.sharp}: one may be"
        faults.append(Fault("gamma", f"{sentence} in linear light, the other in the file's values."))
    if share < SHIFT:
        sentence = f"{pair.blurry} is shifted against {pair.sharp} by {right} right and {down} down."
        faults.append(Fault("shift", sentence))
    elif change <= GAMMA and gain(blurry, sharp) > LARGEST_GAIN:  # a brighter image has more detail
        faults.append(Fault("swapped", f"{pair.sharp} is blurrier than {pair.blurry}: the sides may be swapped."))
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


def gain(blurry: Tensor, sharp: Tensor) -> float:
    """The mean logarithm of the amplitudes of one (H, W) image over those of the other: below 0 for a blur.

    Frequencies count by their coherence (Welch 1967), squared: little where one image has noise that the other has not.
    """
    side = min(TILE, *blurry.shape)
    step = max(1, side // 2, max(blurry.shape) // LARGEST_NUMBER_OF_TILES)
    window = torch.hann_window(side)
    spectra = []
    for image in (blurry, sharp):
        tiles = image.unfold(0, side, step).unfold(1, side, step)
        tiles = tiles - tiles.mean((-1, -2), keepdim=True)
        spectra.append(torch.fft.rfft2(tiles * torch.outer(window, window)))
    cross = (spectra[0] * spectra[1].conj()).mean((0, 1)).abs().clamp_min(1e-6)
    blurry_power, sharp_power = (spectrum.abs().square().mean((0, 1)).clamp_min(1e-6) for spectrum in spectra)
    coherence = cross.square() / (blurry_power * sharp_power)
    weight = coherence.square()
    return ((weight * (blurry_power / sharp_power).log()).sum() / weight.sum()).item() / 2


def leaks(listings: dict[str, Listing], marks: list[bytes | None]) -> list[Fault]:
    """Images in several splits, by the marks of all pairs (see `examine`), and scenes, of layouts split by scene."""
    places: dict[str | bytes, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    pairs = [(split, listing.layout, pair) for split, listing in listings.items() for pair in listing.pairs]
    for (split, layout, pair), mark in zip(pairs, marks, strict=True):
        scene = pair.name.split("/")[0] if layout in ("gopro", "realblur") else None  # names are SCENE/000001
        for key in filter(None, (mark, scene)):
            places[key][split].append(str(pair.sharp))
    faults = []
    for key, files in places.items():
        if len(files) > 1:
            what = f"scene {key}" if isinstance(key, str) else f"image {', '.join(chain(*files.values()))}"
            faults.append(Fault("leak", f"The {what} is in {' and '.join(sorted(files))}."))
    return faults


def main(root: str, variant: str = "blur", num_workers: int | None = None) -> int:
    """Examine a dataset, print its faults and return the exit code.

    Args:
        root: root folder of the dataset, in any layout, or a CSV manifest.
        variant: kind of blurry images.
        num_workers: processes; none: one per core.
    """
    diagnosis = diagnose(root, variant, num_workers)
    where = "" if diagnosis.undivided else " in {}"
    splits = ", ".join(
        f"{len(listing.pairs)} pairs{where.format(split)}" for split, listing in diagnosis.splits.items()
    )
    first = next(iter(diagnosis.splits.values()))
    print(f"{root}: layout {first.layout}, variant {first.variant}: {splits}")
    if diagnosis.undivided:
        print(
            "  warning: no folders train/ and val/ (or test/): given as both data.train and data.val, the images that"
            " are trained on would validate; divide them, or give two folders"
        )
    for remark in diagnosis.remarks:
        print(f"  remark: {remark}")
    for fault in diagnosis.faults:
        print(f"  {fault.kind:<10} {fault.sentence}")
    counts = Counter(fault.kind for fault in diagnosis.faults)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "no faults")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(run_command("tools.doctor", lambda: call(main, None, "-m tools.doctor"), "stopped"))
