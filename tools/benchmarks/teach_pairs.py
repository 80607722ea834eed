"""Make pairs whose target is a trained predictor's output: python -m tools.benchmarks.teach_pairs PAIRS --output TAUGHT

Regression onto the sharp image averages over all sharp images that may belong to a blurry one, and with the few crops
of a small step that average is mostly noise. A trained predictor's output has no such noise. So a new network leaves
the identity within minutes on it, and is then trained on the sharp images themselves (knowledge distillation, Hinton et
al. 2015). If the teacher's output is no nearer to the sharp image than the blurry image is, the sharp image remains the
target, since a network should not learn its teacher's faults.
"""

import shutil
import sys
from pathlib import Path

import torch

from deblur.cli import call, run_command
from deblur.data import images
from deblur.data.layouts import DatasetError, find_pairs
from deblur.data.pairs import read_pair
from deblur.models.checkpoints import checkpoint_hash, load_pipeline
from deblur.models.devices import choose_device
from deblur.models.hub import PRETRAINED
from deblur.progress import ProgressBar
from deblur.tools.resumable import resumable


def main(pairs: str, output: str, checkpoint: str | None = None, split: str = "train", device: str = "auto") -> None:
    """Write OUTPUT/blur and OUTPUT/sharp, 8-bit PNG, and OUTPUT/teacher.json with their origin.

    Repeating a stopped command resumes it.

    Args:
        pairs: root folder of a dataset of pairs.
        output: folder to write to; must be new.
        checkpoint: the teacher: exported folder, hub id or .ckpt file; default: pretrained/lite.
        split: which split of the dataset.
        device: cpu, cuda, cuda:1, mps, or auto for the first available of cuda, mps, cpu.
    """
    folder, found = Path(output), find_pairs(pairs, split)
    if folder.exists():
        raise DatasetError(f"{folder} is there already: give a new folder.")
    on, checkpoint = choose_device(device), checkpoint or PRETRAINED
    pipeline = load_pipeline(checkpoint, on)
    facts = {"pairs": pairs, "split": split, "teacher": checkpoint, "sha256": checkpoint_hash(checkpoint)}
    with resumable(folder, "teacher.json", facts) as part:
        for pair in ProgressBar(found, unit="pair"):
            target = part / "sharp" / f"{pair.name}.png"
            if target.is_file():
                continue
            blurry, sharp = read_pair(pair)
            blurry_copy = part / "blur" / f"{pair.name}{pair.blurry.suffix}"
            blurry_copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(pair.blurry, blurry_copy)
            prediction = pipeline.predict(blurry[None].to(on)).images[0].cpu()
            images.write(target, teach(prediction, blurry, sharp), compress_level=1)
    print(f"{folder}: {len(found)} pairs, their targets from {checkpoint}")


def teach(prediction: torch.Tensor, blurry: torch.Tensor, sharp: torch.Tensor) -> torch.Tensor:
    """The clipped prediction, or the sharp image if the prediction is no nearer to it than the blurry image is.

    All images are (3, H, W) in [0, 1].
    """
    prediction = prediction.clamp(0, 1)
    helped = (prediction - sharp).square().mean() < (blurry - sharp).square().mean()
    return prediction if helped else sharp


if __name__ == "__main__":
    command = "tools.benchmarks.teach_pairs"
    sys.exit(run_command(command, lambda: call(main, None, f"-m {command}"), "stopped; run again to resume"))
