"""The pairs that an evaluation scores, and the outputs of other programs that it scores beside them."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from deblur.data.files import images, search
from deblur.data.layouts import Listing, Pair, list_pairs, paired
from deblur.data.pairs import read_pair
from deblur.progress import ProgressBar


@dataclass(frozen=True)
class ScoredPairs:
    """A listing of readable pairs, with their sizes (H, W) and the SHA-256 of each pair's two files."""

    listing: Listing
    sizes: list[tuple[int, int]]
    hashes: dict[str, str]

    @property
    def facts(self) -> dict[str, str | int]:
        """What identifies the pairs; `sha256` covers all names and hashes in sorted order."""
        sha256 = hashlib.sha256(repr(sorted(self.hashes.items())).encode()).hexdigest()
        source = {"layout": self.listing.layout, "variant": self.listing.variant}
        return source | {"images": len(self.sizes), "sha256": sha256}


def scored_pairs(root: str, split: str, variant: str, limit: int | None) -> ScoredPairs:
    """The pairs of a split, each read once; `limit` keeps at most that many, spread evenly over the list.

    Raises:
        DatasetError, ImageError: a pair is missing, or cannot be read.
    """
    listing = list_pairs(root, split, variant)
    pairs = paired(listing, root)
    print(f"{split}: {len(pairs)} pairs of {root} (layout {listing.layout}, variant {listing.variant})")
    count = min(limit or len(pairs), len(pairs))
    pairs = [pairs[k * len(pairs) // count] for k in range(count)]
    sizes, hashes = [], {}
    for pair in ProgressBar(pairs, desc="checking the images", unit="pair"):
        blurry, _ = read_pair(pair)
        sizes.append(tuple(blurry.shape[1:]))
        hashes[pair.name] = hashlib.sha256(pair.blurry.read_bytes() + pair.sharp.read_bytes()).hexdigest()
    return ScoredPairs(replace(listing, pairs=pairs), sizes, hashes)


def read_baselines(
    folder: str | None, pairs: Sequence[Pair]
) -> tuple[dict[str, Callable[[str], Tensor]], dict[str, str]]:
    """The images that another program restored: {row label: function of a pair's name}, and their SHA-256.

    Both dicts are empty without a folder.

    Raises:
        ValueError: an image is missing, or its size differs from its ground truth's.
    """
    if folder is None:
        return {}, {}
    root, digest = Path(folder), hashlib.sha256()
    label = f"outputs {root.resolve().name}"
    files = {search.name_below(file, root): file for file in search.find(folder)}
    for pair in pairs:
        if pair.name not in files:
            raise ValueError(f"--outputs {folder} has no image {pair.name} (of any suffix), which the dataset has")
        restored, sharp = images.read(files[pair.name]), images.read(pair.sharp)
        if restored.shape != sharp.shape:
            size, wanted = (f"{x.shape[2]}x{x.shape[1]}" for x in (restored, sharp))
            raise ValueError(f"{files[pair.name]} has {size} pixels, and {pair.sharp}, its ground truth, {wanted}")
        digest.update(files[pair.name].read_bytes())
    return {label: lambda name: images.read(files[name])}, {label: digest.hexdigest()}
