"""What the shipped checkpoints make of the images in tests/assets, stored: crops, and the scores of each image.

python -m tests.golden    # after a checkpoint has changed
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from data import images
from evaluation.metrics import Lpips, psnr
from models.checkpoints import load_pipeline
from models.index import PRETRAINED

ASSETS = Path(__file__).parent / "assets"
GOLDEN = ASSETS / "golden"
SCORES = ("image", "of", "psnr", "lpips")
STORED = ("gopro_test_01.png", "page.png")  # those whose crops are
CROP = slice(90, 186)


def restored() -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """(file, "prediction" or "balanced", image, ground truth) of each pair, in float32; images (3, H, W) in [0, 1]."""
    for checkpoint, folder in (("lite", "pairs"), ("text", "page")):
        pipeline = load_pipeline(str(PRETRAINED.with_name(checkpoint)))
        for file in sorted((ASSETS / folder / "blur").iterdir()):
            sharp = images.read(ASSETS / folder / "sharp" / file.name)
            done = pipeline(images.read(file), pipeline.preset("balanced"), names=[file.name], output_type="pt")
            yield file.name, "prediction", done.predictions[0], sharp
            yield file.name, "balanced", done.images[0], sharp


def scores(results) -> list[tuple[str, str, float, float]]:
    """(file, of, PSNR in dB, LPIPS through AlexNet) of what `restored` yields."""
    lpips = Lpips()
    return [(name, of, psnr(x[None], y[None]).item(), lpips(x[None], y[None]).item()) for name, of, x, y in results]


def crop(image: Tensor) -> Tensor:
    """The 96 x 96 pixels of an image that are stored."""
    return image[:, CROP, CROP]


def main() -> None:
    results = list(restored())
    with (GOLDEN / "scores.csv").open("w", newline="") as file:
        rows = [(name, of, f"{p:.4f}", f"{d:.5f}") for name, of, p, d in scores(results)]
        csv.writer(file, lineterminator="\n").writerows([SCORES, *rows])
    for name, of, image, _ in results:
        if name in STORED:
            images.write(GOLDEN / f"{Path(name).stem}_{of}.png", crop(image))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    GOLDEN.mkdir(exist_ok=True)
    main()
