"""Pack a dataset into shards that are read without decoding: python -m data.pack ROOT SHARDS

The shards hold the decoded pixels (bit for bit, 64 MB a shard), so they take several times the room of PNG files.
Train on them by giving their folder as data.train, or its address in an object store (s3://, gs://, azure://), from
which litdata fetches each shard when it is needed. Needs litdata: pip install -r requirements-extra.txt
"""

import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from jsonargparse import auto_cli
from torch import Tensor

from data.images import ImageError
from data.layouts import DatasetError, Pair, find_pairs

REMOTE = ("s3://", "gs://", "azure://", "r2://", "hf://")
NEEDED = "Packed shards need litdata: pip install -r requirements-extra.txt."


@dataclass(frozen=True)
class PackedPair:
    """One pair out of a shard, already read; raw numbers as images.read_raw gives them."""

    name: str
    blurry: Tensor
    sharp: Tensor

    def read(self) -> tuple[Tensor, Tensor]:
        """The pair as (blurry, sharp)."""
        return self.blurry, self.sharp


class Packed:
    """The pairs of a packed dataset, by number, from local disk or an object store.

    Every process opens the shards for itself. `shards` says how many pairs lie in each. Raises DatasetError where
    there are none or litdata is not installed.
    """

    def __init__(self, root: str):
        try:
            from litdata import StreamingDataset
        except ImportError:
            raise DatasetError(NEEDED) from None
        self.root = root
        self.stream = StreamingDataset(root, shuffle=False)
        count = len(self.stream)  # fetches the index
        index = Path(self.stream.cache._cache_dir if root.startswith(REMOTE) else root) / "index.json"
        self.shards = [chunk["chunk_size"] for chunk in json.loads(index.read_text())["chunks"]]
        if sum(self.shards) != count:
            raise DatasetError(f"{root} has an index that does not fit its shards: pack the dataset again.")
        self.stream.cache = None  # opened anew by each process that reads

    def __len__(self) -> int:
        return sum(self.shards)

    def __getitem__(self, number: int) -> PackedPair:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")  # nobody writes into it
            item = self.stream[number]
        return PackedPair(item["name"], item["blurry"].movedim(-1, 0), item["sharp"].movedim(-1, 0))


def is_packed(root: str) -> bool:
    """Whether a root is a folder of shards, or the address of one."""
    return root.startswith(REMOTE) or (Path(root) / "index.json").is_file()


def sample(pair: Pair) -> dict:
    """What a shard stores of a pair: its name and its pixels, height x width x 3."""
    blurry, sharp = pair.read()
    return {"name": pair.name, "blurry": _pixels(blurry), "sharp": _pixels(sharp)}


def _pixels(frame: Tensor) -> Tensor:
    return frame.movedim(0, -1).contiguous()


def main(
    root: str,
    output: str,
    split: str = "train",
    variant: str = "blur",
    layout: str | None = None,
    num_workers: int = 1,
    shard_bytes: int = 2**26,
) -> None:
    """Pack a split of a dataset.

    Args:
        root: root folder of the dataset, of any layout.
        output: folder to write to; must be new or empty.
        split: train, val or test.
        variant: kind of blurry pictures.
        layout: the dataset's layout; none: it is recognised.
        num_workers: processes that decode and write.
        shard_bytes: size of a shard.
    """
    pairs = find_pairs(root, split, variant, layout)
    if Path(output).is_dir() and any(Path(output).iterdir()):
        raise DatasetError(f"{output} is not empty: give a new folder.")
    for pair in pairs[:1]:
        pair.read()  # a bad file stops the command here in one sentence; later ones are litdata's to report
    try:
        from litdata import optimize
    except ImportError:
        raise DatasetError(NEEDED) from None
    optimize(
        sample,
        pairs,
        output,
        chunk_bytes=shard_bytes,
        num_workers=num_workers,
        reorder_files=False,
        start_method="spawn",
        optimize_dns=False,
    )
    print(f"{output}: {len(pairs)} pairs of {root} ({split}, {variant}) in {len(Packed(output).shards)} shards")


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        from data import pack  # the functions of the importable module, which the writing processes can find

        auto_cli(pack.main, as_positional=True)
    except (DatasetError, ImageError, OSError) as error:
        print(f"data.pack: error: {error}", file=sys.stderr)
        sys.exit(2)
