"""Small images that are the same everywhere; an evaluation's summary and examples, with the images that they name."""

import random
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from skimage import data

from deblur.evaluation.controls import Verdict
from deblur.evaluation.grid import LABELS, Row
from deblur.evaluation.metrics import METRICS, Metric
from deblur.evaluation.statistics import Estimate
from deblur.evaluation.summary import RowSummary, Summary, choose_examples
from deblur.settings import SamplingSettings

SHARP = data.astronaut()[0:200, 150:350]  # 200 x 200
RESTORED = {"few levels": SHARP // 32 * 32 + 16, "dark and shifted": np.roll(SHARP, (1, 2), (0, 1)) // 8 * 7}
RESTORED["every second row"] = SHARP[::2].repeat(2, axis=0)
SAMPLERS = ("ddim", "ddpm", "unipc")
REASON = "Aligned PSNR is missing: it needs OpenCV's wheel <cv2>; pip install opencv-python-headless."
RECIPES = {"psnr": "PSNR: RGB, 8 bits", "ssim": "SSIM: RGB", "lpips": f"LPIPS: v0.1, sha256 {'ab' * 32}"}
KINDS = {"blurry": "few levels", "predictor": "every second row", "restored": "dark and shifted"}
FACTS = {"command": "evaluate.py --checkpoint runs/demo/checkpoint --data <photos> & more", "seed": 0, "device": "cpu"}
FACTS |= {"checkpoint": {"name": "runs/demo/checkpoint", "sha256": "ab" * 32}, "grid": "configs/grid/demo.yaml"}
FACTS |= {"data": {"root": "photos", "split": "test", "variant": "blur", "images": 6}, "precision": "bf16"}
FACTS |= {"git_commit": "c0ffee", "versions": {"torch": "2.15.0"}}
FACTS["statistics"] = "mean over the images with its 95 % bootstrap interval"


def tensor(image: np.ndarray) -> torch.Tensor:
    """(H, W, 3) uint8 -> (1, 3, H, W) in [0, 1]."""
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float() / 255


def metric(name: str, reason: str | None = None) -> Metric:
    return Metric(METRICS[name], torch.ones_like, None if reason else RECIPES[name], reason)


def around(mean: float, half: float) -> Estimate:
    return Estimate(mean, mean - half, mean + half, 6)


def scored(row: Row, psnr: float, lpips: float, **own) -> RowSummary:
    """A row with planted means; settings and controls have differences to a prediction of 26 dB and 0.32."""
    estimates = {"psnr": around(psnr, 0.25), "lpips": around(lpips, 0.02)}
    gaps = {"psnr": around(psnr - 26.0, 0.25 / 3), "lpips": around(lpips - 0.32, 0.02 / 3)}
    gaps = gaps if row.label != "predictor" else {}
    return RowSummary(row.label, row.settings, 6, own.pop("seconds", 0.11), estimates, gaps, **own)


def of_rows(rows: list[RowSummary], images: int = 6, **changes) -> Summary:
    """A summary whose images have scores around their row's means: image 0 is the worst by LPIPS."""
    metrics = {"psnr": metric("psnr"), "lpips": metric("lpips"), "psnr_aligned": metric("psnr_aligned", REASON)}
    lines = []
    for row in rows:
        for at in range(images):
            spread = at - (images - 1) / 2
            values = {
                "psnr": row.means.get("psnr", np.nan) + spread,
                "lpips": row.means.get("lpips", np.nan) - spread / 100,
            }
            lines.append(
                {"setting": row.label, "image": f"wall</script>{at}", "seconds": 0.1} | values | {"missing": {}}
            )
    scores = pd.DataFrame(lines).assign(psnr_aligned=np.nan)
    given = {"rows": rows, "metrics": metrics, "scores": scores, "facts": FACTS, "steps": 0}
    return Summary(**given | changes)


def summary_of(count: int = 12, images: int = 6, **changes) -> Summary:
    """A cloud of settings around a falling curve, beside the rows that every evaluation has."""
    numbers = random.Random(0)
    rows = [scored(Row("blurry"), 25.7, 0.28, seconds=0.0), scored(Row("predictor"), 26.0, 0.32)]
    rows.append(RowSummary("sharp", None, 6, 0.0, {"psnr": Estimate(float("inf"), None, None, 6)}))
    for slope, labels in zip((0.05, 0.02), LABELS.values(), strict=True):
        rows += [scored(Row(label), 26.0 - k / 2, 0.32 - slope * k) for k, label in enumerate(labels, start=1)]
    for k in range(count):
        sampler, steps = SAMPLERS[k % 3], (2, 5, 10, 20, 50, 100)[k // 3 % 6]
        x, y = 25.9 - steps / 120 + numbers.gauss(0, 0.1), 0.31 - steps / 800 + numbers.gauss(0, 0.008)
        gaps = {"sharpened": around(-0.004 + k / 1000, 0.003), "noised": around(-0.02, 0.003)}
        verdict = Verdict("yes" if k == 0 else "no" if k > 6 else "unclear", gaps)
        row = Row(
            f"{sampler} {steps}" + (f" eta=0.{k // 18}" if k >= 18 else ""), SamplingSettings(sampler, steps=steps)
        )
        rows.append(scored(row, x, y, seconds=steps / 40, verdict=verdict))
    return of_rows(rows, images, **changes)


def write_examples(folder: Path, summary: Summary) -> None:
    """Give a summary its examples, all with the same images in files."""
    (folder / "examples").mkdir(parents=True, exist_ok=True)
    for kind, name in KINDS.items():
        Image.fromarray(RESTORED[name]).save(folder / "examples" / f"{kind}.png")
    Image.fromarray(SHARP).save(folder / "examples" / "sharp.png")
    summary.examples.extend(choose_examples(summary, [summary.typical]))
    for example in summary.examples:
        example.files.update({kind: f"examples/{kind}.png" for kind in (*KINDS, "sharp")})
