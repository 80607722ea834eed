"""Export a run or a checkpoint as a pipeline folder.

python -m models.export runs/demo DIR --dtype fp16
"""

import sys
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from base.files import is_free, replacing
from base.stop import run_command
from models.checkpoints import Weights, from_ckpt, from_folder, networks
from models.hub import find_folder
from models.weights import CheckpointError

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def export(
    source: str,
    output: str,
    weights: Weights = "ema",
    dtype: Literal["fp32", "fp16", "bf16"] = "fp16",
    max_shard_size: str = "10GB",
) -> None:
    """Export a run or a checkpoint as a pipeline folder.

    Args:
        source: a run's folder, whose checkpoints/last.ckpt is used, a .ckpt file, or anything else that
            `load_pipeline` accepts.
        output: folder to write to; it must be new or empty.
        weights: ema for the averaged weights, raw for the weights being optimised; only a .ckpt has both.
        dtype: type of the weights on disk. When loaded, they are converted to float32 or the requested precision.
        max_shard_size: largest weight file, such as 15MB; larger networks are split into several.

    Raises:
        CheckpointError: something cannot be read or stored; no folder is left behind.
    """
    last = Path(source) / "checkpoints" / "last.ckpt"
    source = str(last) if last.is_file() else source
    if weights == "raw" and not source.endswith(".ckpt"):
        raise CheckpointError(
            f"{source} has only one kind of weights: give a run's folder or a .ckpt for --weights raw"
        )
    pipeline = from_ckpt(Path(source), weights) if source.endswith(".ckpt") else from_folder(find_folder(source))
    for part, network in networks(pipeline).items():
        nn.Module.to(network, DTYPES[dtype])  # diffusers' own `to` warns of layers that these networks do not have
        for key, value in network.state_dict().items():
            if not value.isfinite().all():
                raise CheckpointError(
                    f"the {part}'s {key} has values that are not finite in {dtype}: choose another dtype"
                )
    folder = Path(output)
    if not is_free(folder):
        raise CheckpointError(f"{folder} is not an empty folder: give a new one")
    with replacing(folder) as part:
        pipeline.save_pretrained(part, max_shard_size=max_shard_size)
        from_folder(part)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
    print(f"wrote {folder}: the {weights} weights of {source} in {dtype}, {size:.1f} MiB")


def main(args: list[str] | None = None) -> None:
    """The command line."""
    from jsonargparse import auto_cli

    auto_cli(export, args=args, as_positional=True, prog="models.export")


if __name__ == "__main__":
    sys.exit(run_command("models.export", main, "stopped; nothing is written"))
