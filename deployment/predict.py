"""Run the prediction of a deployment.export folder with numpy and onnxruntime, without PyTorch and this repository.

pip install numpy pillow onnxruntime
python predict.py deployed/lite photo.jpg restored.png

Use it only on folders that you exported: unlike `load_pipeline` it does not check the file before onnxruntime reads it.
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image


def predict(folder: str, image: np.ndarray) -> np.ndarray:
    """The prediction for an image (H, W, 3), input and result in [0, 1].

    Graphs without a fixed size take the whole image. Others take overlapping tiles, whose weights fall off towards
    their edges.
    """
    import onnxruntime

    facts = json.loads(Path(folder, "predictor", "graph.json").read_text())
    session = onnxruntime.InferenceSession(Path(folder, "predictor", "model.onnx"), providers=["CPUExecutionProvider"])
    blurry = np.float32(image).transpose(2, 0, 1)[None] * 2 - 1
    height, width = blurry.shape[2:]
    sides = [facts["side"] or -(-length // facts["multiple"]) * facts["multiple"] for length in (height, width)]
    more = [max(0, side - length) for side, length in zip(sides, (height, width), strict=True)]
    blurry = np.pad(blurry, ((0, 0), (0, 0), (0, more[0]), (0, more[1])), "edge")
    total, weights = np.zeros_like(blurry), np.zeros_like(blurry)
    ramps = [1 - np.abs(np.linspace(-1, 1, side + 2)[1:-1]) for side in sides]
    weight = np.float32(ramps[0][:, None] * ramps[1])
    for top in starts(blurry.shape[2], sides[0]):
        for left in starts(blurry.shape[3], sides[1]):
            place = ..., slice(top, top + sides[0]), slice(left, left + sides[1])
            [output] = session.run(["output"], {"blurry": np.ascontiguousarray(blurry[place])})
            total[place] += weight * output[:, :3]  # a fourth channel would be the expected error
            weights[place] += weight
    x_init = (total / weights)[0, :, :height, :width].transpose(1, 2, 0)
    return np.clip((x_init + 1) / 2, 0, 1)


def starts(length: int, side: int) -> list[int]:
    """Start positions of tiles that overlap by at least a quarter; the last one ends with the image."""
    return [*range(0, length - side, side * 3 // 4), length - side]


if __name__ == "__main__":
    source, photo, target = sys.argv[1:]
    image = Image.open(photo, formats=["PNG", "JPEG", "TIFF", "WEBP", "BMP"])
    restored = predict(source, np.asarray(image.convert("RGB")) / 255)
    Image.fromarray(np.uint8(np.rint(255 * restored))).save(target)
