"""Run the prediction of a tools.export_onnx folder without PyTorch.

python -m tools.predict deployed/lite photo.jpg restored.png
python -m tools.predict deployed/lite photo.jpg restored.png --provider cpu

It needs this repository and the packages numpy, pillow, tifffile, imagecodecs, jsonargparse[signatures], onnx, and
openvino or onnxruntime. It reads and writes as sample.py does: depth, transparency, orientation, colours, density and
metadata are kept, and what a format cannot hold is said.
"""

import os
import sys
from pathlib import Path

import numpy as np

from deblur.cli import call, run_command
from deblur.data.files import decoding, encoding, metadata
from deblur.data.files.kinds import WRITTEN_SUFFIXES
from deblur.onnx.engines import Engine, Provider, open_engine
from deblur.onnx.files import GRAPH, GraphFacts, read_facts, read_graph


def predict(folder: str, photo: str, restored: str, provider: Provider | None = None) -> None:
    """Write the prediction for an image file, and on stderr what is notable about it.

    Args:
        folder: of tools.export_onnx, for images of any size, or for tiles that hold the whole image.
        photo: the image file.
        restored: the file to write; its suffix is the format.
        provider: openvino, the default if it is installed; or cpu, cuda or tensorrt of ONNX Runtime.

    Raises:
        CheckpointError: the folder cannot be used.
        ImageError, ValueError, OSError: an image cannot be read or written.
    """
    target = Path(restored)
    if target.suffix.lower() not in WRITTEN_SUFFIXES:
        raise ValueError(f"{restored} has no suffix of an image format that can be written, such as .png")
    if os.path.realpath(restored) == os.path.realpath(photo):
        raise ValueError(f"{restored} is the photograph itself and would be overwritten: give another name")
    image = metadata.kept(decoding.read_file(photo), "keep")
    encoding.require_tellable(target, image)
    network = Path(folder, "predictor")
    facts = read_facts(network)
    engine = open_engine(read_graph(network / GRAPH, "predictor", facts), facts, network, provider)
    colours = image.pixels.astype(np.float32) / np.iinfo(image.pixels.dtype).max
    encoding.write(target, estimate(engine, facts, colours.transpose(1, 2, 0)).transpose(2, 0, 1), image)
    for remark in (*image.remarks, *encoding.remarks_on(image, target.suffix)):
        print(f"tools.predict: {photo}: {remark}", file=sys.stderr)


def estimate(engine: Engine, facts: GraphFacts, image: np.ndarray) -> np.ndarray:
    """The prediction for an image (H, W, 3), input and result in [0, 1]. ValueError if a graph's tiles are smaller."""
    height, width = image.shape[:2]
    more = [(0, facts.padded(length) - length) for length in (height, width)]
    blurry = np.pad(np.float32(image) * 2 - 1, [*more, (0, 0)], "edge").transpose(2, 0, 1)[None]
    output = engine.run({"blurry": np.ascontiguousarray(blurry)})
    x_init = output[0, :3, :height, :width].transpose(1, 2, 0)  # a fourth channel would be the expected error
    return np.clip((x_init + 1) / 2, 0, 1)


def main() -> int:
    """Run the command line and return its exit code; wrong input is reported in one sentence on stderr."""
    return run_command("tools.predict", lambda: call(predict, None, "-m tools.predict", positional=3), "stopped")


if __name__ == "__main__":
    sys.exit(main())
