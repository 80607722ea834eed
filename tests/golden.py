"""What the shipped checkpoints make of the images in tests/assets, stored: crops, and the scores of each image; and
the pages that seeds print, small.

python -m tests.golden    # after a checkpoint, or a kind of page, has changed
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from deblur.data.files import images
from deblur.evaluation.perceptual import Lpips
from deblur.evaluation.pixels import psnr
from deblur.hub import SHIPPED
from deblur.pipeline import load_pipeline
from deblur.tools.pages.kinds import PAGE_KINDS
from tests.tools.printed import digest, photographed, small

ASSETS = Path(__file__).parent / "assets"
GOLDEN = ASSETS / "golden"
SCORES = ("checkpoint", "image", "of", "psnr", "lpips")
STORED = ("gopro_test_01.png", "page.png")  # those whose crops are
CROP = slice(90, 186)
RESTORED = [("lite", "pairs", "*"), ("text", "page", "*"), ("u2net", "pairs", "*")]
RESTORED.append(("maxim", "pairs", "realblur_*"))  # the smallest: a frame takes half a minute
RESTORED.append(("swift", "pairs", "rsblur_*"))  # large enough to be seen at half its size


def restored() -> Iterator[tuple[str, str, str, Tensor, Tensor]]:
    """(checkpoint, file, "prediction" or "balanced", image, ground truth) of each pair, in float32; images (3, H, W) in
    [0, 1]."""
    for checkpoint, folder, wanted in RESTORED:
        pipeline = load_pipeline(str(SHIPPED / checkpoint), precision="fp32")  # alike on all processors
        for file in sorted((ASSETS / folder / "blur").glob(wanted)):
            sharp = images.read(ASSETS / folder / "sharp" / file.name)
            done = pipeline(images.read(file), pipeline.preset("balanced"), names=[file.name], output_type="pt")
            yield checkpoint, file.name, "prediction", done.predictions[0], sharp
            yield checkpoint, file.name, "balanced", done.images[0], sharp


def scores(results) -> list[tuple[str, str, str, float, float]]:
    """(checkpoint, file, of, PSNR in dB, LPIPS through AlexNet) of what `restored` yields."""
    lpips = Lpips()
    return [(*names, psnr(x[None], y[None]).item(), lpips(x[None], y[None]).item()) for *names, x, y in results]


def crops(results) -> dict[str, Tensor]:
    """The 96 x 96 pixels of the images that are stored, by their files' stems."""
    found = {}
    for checkpoint, name, of, image, _ in results:
        if name in STORED:
            found[f"{checkpoint}_{Path(name).stem}_{of}"] = image[:, CROP, CROP]
    return found


def main() -> None:
    results = list(restored())
    with (GOLDEN / "scores.csv").open("w", newline="") as file:
        rows = [(*names, f"{p:.4f}", f"{d:.5f}") for *names, p, d in scores(results)]
        csv.writer(file, lineterminator="\n").writerows([SCORES, *rows])
    for stem, image in crops(results).items():
        images.write(GOLDEN / f"{stem}.png", image)
    with TemporaryDirectory() as folder:
        for kind in PAGE_KINDS:
            images.write(ASSETS / "printed" / f"{kind}.png", small(photographed(kind, Path(folder))[1]))
    digests = {kind: digest(kind) for kind in PAGE_KINDS}
    (ASSETS / "printed" / "digests.json").write_text(json.dumps(digests, indent=2) + "\n")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    GOLDEN.mkdir(exist_ok=True)
    main()
