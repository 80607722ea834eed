"""Pack a dataset into shards that are read without decoding: python -m tools.pack ROOT SHARDS

The shards hold the decoded pixels without loss (64 MB per shard), so they are several times larger than PNG files. To
train on them, give their folder as data.train, or its address in an object store (s3://, gs://, azure://), from which
litdata fetches each shard when it is needed. Needs litdata: pip install -r requirements-extra.txt
"""

import multiprocessing
import sys
from pathlib import Path

import torch
from jsonargparse import auto_cli

from base.files import replacing, require_free
from base.stop import run_command
from data.checks import check_files
from data.images import ImageError
from data.layouts import DatasetError, Pair, list_pairs, paired
from data.packed import NEEDED, shard_sizes


def sample(pair: Pair) -> dict:
    """The shard's entry for a pair: its name and its pixels, height x width x 3."""
    blurry, sharp = pair.read()
    sides = {"blurry": blurry, "sharp": sharp}
    return {"name": pair.name} | {side: frame.movedim(0, -1).contiguous() for side, frame in sides.items()}


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
        root: root folder of the dataset, in any layout.
        output: folder to write to; must be new or empty. It appears under its name when it is complete.
        split: train, val or test.
        variant: kind of blurry images.
        layout: the dataset's layout; none: recognised automatically.
        num_workers: processes that decode and write.
        shard_bytes: size of a shard.
    """
    try:
        from litdata import optimize
    except ImportError:
        raise DatasetError(NEEDED) from None
    target = Path(output)
    require_free(target)
    listing = list_pairs(root, split, variant, layout)
    pairs = paired(listing, root)
    check_files(pairs)  # finds damaged headers and truncated files at once; other faults are found on decoding
    target.parent.mkdir(parents=True, exist_ok=True)
    options = {"chunk_bytes": shard_bytes, "num_workers": num_workers, "reorder_files": False}
    options |= {"start_method": "spawn", "optimize_dns": False}
    before = multiprocessing.get_start_method()
    try:
        with replacing(target) as part:
            optimize(sample, pairs, str(part), **options)
            shards = shard_sizes(part)
            if sum(shards) != len(pairs):
                raise DatasetError(
                    f"Only {sum(shards)} of {len(pairs)} pairs of {root} were packed, since a process was killed: give "
                    "fewer num_workers or free memory."
                )
    except RuntimeError as error:  # of litdata, with the traceback of the process that failed
        raise _first_cause(str(error)) or error from None
    finally:
        multiprocessing.set_start_method(before, force=True)  # litdata changes it for the whole process
    kind = f"{split}, layout {listing.layout}, variant {listing.variant}"
    print(f"{output}: {len(pairs)} pairs of {root} ({kind}) in {len(shards)} shards")


def _first_cause(traceback: str) -> ValueError | None:
    """The fault of an image or pair, from the traceback of another process; None for other errors."""
    for kind in (ImageError, DatasetError):
        _, found, rest = traceback.partition(f"{kind.__module__}.{kind.__name__}: ")
        if found:
            return kind(rest.splitlines()[0])
    return None


if __name__ == "__main__":
    torch.set_num_threads(1)
    from tools import pack  # imports this file as a module, so that the writing processes find its functions

    sys.exit(run_command("tools.pack", lambda: auto_cli(pack.main, as_positional=True), "stopped; nothing is written"))
