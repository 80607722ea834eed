"""Export a run or a checkpoint as a pipeline folder.

python -m tools.export runs/demo DIR --dtype fp16
python -m tools.export runs/longer DIR --average_with runs/demo,runs/long
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from deblur.cli import call, run_command
from deblur.hub import CheckpointError
from deblur.pipeline import DeblurPipeline, read_pipeline
from deblur.storage import replacing, require_free

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def export_checkpoint(
    source: str,
    output: str,
    dtype: Literal["fp32", "fp16", "bf16"] = "fp16",
    average_with: str | None = None,
    classes: str | None = None,
) -> None:
    """Export a run or a checkpoint as a pipeline folder.

    Args:
        source: a run's folder, whose checkpoints/last.ckpt is used, a .ckpt file, or anything else that
            `load_pipeline` accepts.
        output: folder to write to; it must be new or empty.
        dtype: type of the weights on disk. When loaded, they are converted to float32 or the requested precision.
        average_with: further sources, separated by commas, of the same networks: what is exported has the mean of all
            weights (a model soup, Wortsman et al., ICML 2022). It suits runs that continue one another.
        classes: your own networks that the checkpoint names, such as mypred.MyPredictor, separated by commas.

    Raises:
        CheckpointError, OSError: something cannot be read or stored, or networks differ; no folder is left behind.
    """
    sources = [source, *(average_with.split(",") if average_with else [])]
    last = [Path(place) / "checkpoints" / "last.ckpt" for place in sources]  # of a run
    sources = [str(file) if file.is_file() else place for place, file in zip(sources, last, strict=True)]
    own_classes = classes or ()
    pipelines = [read_pipeline(place, classes=own_classes) for place in sources]
    pipeline = pipelines[0]
    _average(pipelines, sources)
    for part, network in pipeline.networks.items():
        nn.Module.to(network, DTYPES[dtype])  # diffusers' own `to` warns of layers that these networks do not have
        for key, value in network.state_dict().items():
            if not value.isfinite().all():
                raise CheckpointError(
                    f"the {part}'s {key} has values that are not finite in {dtype}: choose another dtype"
                )
    folder = Path(output)
    require_free(folder)
    with replacing(folder) as part:
        pipeline.save_pretrained(part)
        read_pipeline(str(part), classes=own_classes)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
    print(f"wrote {folder}: the weights of {' and '.join(sources)} in {dtype}, {size:.1f} MiB")


def _average(pipelines: Sequence[DeblurPipeline], sources: Sequence[str]) -> None:
    """Give the first pipeline the mean weights and the mean residual scale of all."""
    may_differ = dict.fromkeys(("residual_scale", "working_size"))
    first, *others = (pipeline.describe() | may_differ for pipeline in pipelines)
    for source, other in zip(sources[1:], others, strict=True):
        if other != first:
            raise CheckpointError(
                f"{source} has other networks or another schedule: only like checkpoints are averaged"
            )
    for part, network in pipelines[0].networks.items():
        states = [getattr(pipeline, part).state_dict() for pipeline in pipelines]
        means = {key: torch.stack([state[key] for state in states]).double().mean(0) for key in states[0]}
        network.load_state_dict(means)  # in its own types: BatchNorm's counts of batches are whole numbers
    scales = np.mean([pipeline.config.residual_scale for pipeline in pipelines], axis=0)
    pipelines[0].register_to_config(residual_scale=scales.tolist())


def main(args: list[str] | None = None) -> None:
    """The command line."""
    call(export_checkpoint, args, "-m tools.export", positional=2)


if __name__ == "__main__":
    sys.exit(run_command("tools.export", main, "stopped; nothing is written"))
