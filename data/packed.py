"""Read datasets packed by tools/pack.py: shards of decoded pixels, on disk or in an object store."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from data.layouts import DatasetError

REMOTE = ("s3://", "gs://", "azure://", "r2://", "hf://")
NEEDED = "Packed shards need litdata: pip install -r requirements-extra.txt."


@dataclass(frozen=True)
class PackedPair:
    """A pair read from a shard, in raw numbers as images.read_raw returns them."""

    name: str
    blurry: Tensor
    sharp: Tensor

    def read(self) -> tuple[Tensor, Tensor]:
        """The pair as (blurry, sharp)."""
        return self.blurry, self.sharp


class Packed:
    """The pairs of a packed dataset by number, from a local disk or an object store.

    Every process opens the shards itself. `shards` has the number of pairs in each. Raises DatasetError if there are no
    shards or litdata is not installed.
    """

    def __init__(self, root: str):
        try:
            from litdata import StreamingDataset
        except ImportError:
            raise DatasetError(NEEDED) from None
        self.root = root
        try:
            self.stream = StreamingDataset(root, shuffle=False)
        except AssertionError:  # litdata raises it for an index without shards
            raise DatasetError(f"{root} holds no shards: pack the dataset again.") from None
        count = len(self.stream)  # fetches the index into the local folder that caches a remote root
        self.shards = shard_sizes(Path(self.stream.input_dir.path))
        if sum(self.shards) != count:
            raise DatasetError(f"{root} has an index that does not fit its shards: pack the dataset again.")
        self.stream.cache = None  # each reading process opens its own

    def __len__(self) -> int:
        return sum(self.shards)

    def __getitem__(self, number: int) -> PackedPair:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")  # it is never written to
            item = self.stream[number]
        return PackedPair(item["name"], item["blurry"].movedim(-1, 0), item["sharp"].movedim(-1, 0))


def is_packed(root: str) -> bool:
    """Whether a root is a folder of shards or the address of one."""
    return root.startswith(REMOTE) or (Path(root) / "index.json").is_file()


def shard_sizes(folder: Path) -> list[int]:
    """The number of pairs in each shard."""
    return [chunk["chunk_size"] for chunk in json.loads((folder / "index.json").read_text())["chunks"]]
