"""A results.json as evaluate.py writes it, with the images that it names, to test the curve and the page."""

import json
import random
from pathlib import Path

from PIL import Image

from evaluation.controls import LABELS
from tests.evaluation.images import RESTORED, SHARP

SAMPLERS = ("ddim", "ddpm", "unipc")
REASON = "Aligned PSNR is missing: it needs OpenCV's wheel <cv2>; pip install opencv-python-headless."


def estimate(mean, half, predictor=None):
    entry = {"mean": mean, "low": mean - half, "high": mean + half, "n": 6, "missing": None}
    return entry | {
        "difference": None if predictor is None else mean - predictor,
        "difference_low": None if predictor is None else mean - predictor - half / 3,
        "difference_high": None if predictor is None else mean - predictor + half / 3,
    }


def nothing(missing=None):
    names = ("mean", "low", "high", "difference", "difference_low", "difference_high")
    return dict.fromkeys(names) | {"n": 0, "missing": missing}


def results(count: int = 12) -> dict:
    """The contents of a results.json: a cloud of settings around a falling curve, its front, and images of it."""
    numbers = random.Random(0)
    places = [("blurry", {}, 25.7, 0.28, 0.0), ("predictor", {}, 26.0, 0.32, 0.11)]
    for k in range(count):
        steps = (2, 5, 10, 20, 50, 100)[k // 3 % 6]
        x, y = 25.9 - steps / 120 + numbers.gauss(0, 0.1), 0.31 - steps / 800 + numbers.gauss(0, 0.008)
        places.append((f"{SAMPLERS[k % 3]} {steps}", {"sampler": SAMPLERS[k % 3], "steps": steps}, x, y, steps / 40))
    rows = []
    for k, (label, fields, x, y, seconds) in enumerate(places, start=-2):
        beaten = any(a >= x and b <= y and (a, b) != (x, y) for _, _, a, b, _ in places)
        scores = {
            "psnr": estimate(x, 0.25, 26.0 if fields else None),
            "lpips": estimate(y, 0.02, 0.32 if fields else None),
        }
        rows.append({"setting": label, "fields": fields, "images": 6, "front": not beaten, "preset": None})
        rows[-1] |= {"seconds": seconds, "metrics": scores | {"psnr_aligned": nothing(REASON)}, "verdict": None}
        if fields:
            gaps = {"sharpened": -0.004 + k / 1000, "noised": -0.02}
            entries = {name: {"mean": gap, "low": gap - 0.003, "high": gap + 0.003} for name, gap in gaps.items()}
            word = "yes" if k == 0 else "no" if k > 6 else "unclear"
            rows[-1]["verdict"] = {"perceptual": word, "differences": entries, "missing": None}
    sharp = {"setting": "sharp", "fields": {}, "images": 6, "front": False, "preset": None}
    sharp |= {"seconds": 0.0, "verdict": None}
    sharp["metrics"] = {"psnr": nothing() | {"mean": "inf"}, "lpips": nothing(), "psnr_aligned": nothing(REASON)}
    rows.insert(2, sharp)
    missing = {"psnr_aligned": nothing(REASON)}
    rows[3:3] = [
        rows[1]
        | {"setting": label, "front": False}
        | {"metrics": {"psnr": estimate(x, 0.2, 26.0), "lpips": estimate(y, 0.02, 0.32)} | missing}
        for slope, labels in zip((0.05, 0.02), LABELS.values(), strict=True)
        for label, x, y in ((label, 26.0 - k / 2, 0.32 - slope * k) for k, label in enumerate(labels, start=1))
    ]
    front = [row for row in rows if row["front"]]
    own = [row for row in front if row["fields"]] or [row for row in rows if row["fields"]]
    own[0]["preset"], own[-1]["preset"] = "fidelity, balanced", "perceptual"
    kinds = {"blurry": "few levels", "predictor": "every second row", "restored": "dark and shifted", "sharp": None}
    return {
        "command": "evaluate.py --checkpoint runs/demo/checkpoint --data <photos> & more",
        "checkpoint": {"name": "runs/demo/checkpoint", "sha256": "ab" * 32},
        "data": {"root": "photos", "split": "test", "variant": "blur", "images": 6},
        "grid": "configs/grid/demo.yaml",
        "seed": 0,
        "device": "cpu",
        "precision": "bf16",
        "git_commit": "c0ffee",
        "versions": {"torch": "2.15.0"},
        "metrics": {
            "psnr": {"title": "PSNR (dB)", "recipe": "PSNR: RGB, 8 bits", "reason": None, "higher_is_better": True},
            "lpips": {"title": "LPIPS (AlexNet)", "recipe": "LPIPS: v0.1", "reason": None, "higher_is_better": False},
            "psnr_aligned": {"title": "aligned PSNR (dB)", "recipe": None, "reason": REASON, "higher_is_better": True},
        },
        "axes": {"distortion": "psnr", "perception": "lpips"},
        "controls": {
            "rows": LABELS,
            "recipes": {"sharpened": "an unsharp mask", "noised": "noise & its shape"},
            "verdict": "below both controls",
        },
        "statistics": "Mean over the images with its 95 % bootstrap interval.",
        "rows": rows,
        "examples": [
            {
                "setting": row["setting"],
                "image": image,
                "rank": rank,
                "scores": {"psnr": 27.123, "lpips": 0.1234},
                "files": {kind: f"examples/{kind}.png" for kind in kinds},
            }
            for row in own[:2]
            for rank, image in (("best", "clock/1"), ("median", "wall</script>"), ("worst", "cat"))
        ],
    }


def write(folder: Path, document: dict) -> Path:
    (folder / "examples").mkdir(exist_ok=True)
    names = {"blurry": "few levels", "predictor": "every second row", "restored": "dark and shifted"}
    for kind, name in names.items():
        Image.fromarray(RESTORED[name]).save(folder / "examples" / f"{kind}.png")
    Image.fromarray(SHARP).save(folder / "examples" / "sharp.png")
    (folder / "results.json").write_text(json.dumps(document))
    return folder
