"""Run the prediction of a tools.export_onnx folder without PyTorch: numpy, Pillow and one of the two engines.

python -m tools.predict deployed/lite photo.jpg restored.png
python -m tools.predict deployed/lite photo.jpg restored.png --provider cpu

It needs this repository, which checks the files before Pillow or an engine reads them, and the packages numpy, pillow,
jsonargparse, onnx, and openvino or onnxruntime. Transparency, orientation, colour profile and EXIF data are kept, and
grey of 16 bits stays so; Pillow reads colour of 16 bits with 8.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from deblur.cli import call, run_command
from deblur.data.formats import opened
from deblur.data.search import ImageError
from deblur.files import replacing
from deblur.models.onnx.engines import Engine, Provider, open_engine
from deblur.models.onnx.files import GRAPH, GraphFacts, read_facts, read_graph


def predict(folder: str, photo: str, restored: str, provider: Provider | None = None) -> None:
    """Write the prediction for an image file.

    Args:
        folder: of tools.export_onnx, for images of any size, or for tiles that hold the whole image.
        photo: the image file.
        restored: the file to write; its suffix is the format.
        provider: openvino, the default if it is installed; or cpu, cuda or tensorrt of ONNX Runtime.

    Raises:
        CheckpointError: the folder cannot be used.
        ImageError, ValueError, OSError: an image cannot be read or written.
    """
    kind = Image.registered_extensions().get(Path(restored).suffix.lower())
    if kind not in Image.SAVE:
        raise ValueError(f"{restored} has no suffix of an image format that can be written, such as .png")
    image = upright(photo)
    network = Path(folder, "predictor")
    facts = read_facts(network)
    engine = open_engine(read_graph(network / GRAPH, "predictor", facts), facts, network, provider)
    deep = image.mode.startswith("I")
    if deep:
        colours = np.repeat(np.float32(image)[..., None] / 65535, 3, axis=2)
    else:
        colours = np.float32(image.convert("RGB")) / 255
    values = estimate(engine, facts, colours)
    if deep:
        result = Image.fromarray(np.uint16(np.rint(65535 * values.mean(2))))
    else:
        result = Image.fromarray(np.uint8(np.rint(255 * values)))
        result = result.convert("L") if image.mode in ("1", "L", "LA") else result
        if image.has_transparency_data:
            result.putalpha(image.convert("RGBA").getchannel("A"))
    with replacing(Path(restored)) as part:
        result.save(part, kind, exif=image.getexif(), icc_profile=image.info.get("icc_profile"))


def upright(photo: str) -> Image.Image:
    """An image file, rotated as its EXIF says. ImageError if it cannot be read."""
    try:
        with opened(Path(photo)) as image:
            image = ImageOps.exif_transpose(image)
            image.load()
            return image
    except (ImageError, FileNotFoundError):
        raise
    except Exception as error:  # of Pillow's decoders
        raise ImageError(f"{photo} cannot be decoded, it may be damaged: {error}") from None


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
