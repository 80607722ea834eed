"""Write the demo's photographs: python -m data.demo --output runs/demo/photos

All come with the scikit-image package (its skimage.data says where each is from): sharp ones to train on
with synthetic blur, crops of others, blurred once and for all, to test on, and one that is really blurred.
"""

import shutil
import sys
from pathlib import Path

import skimage
from jsonargparse import auto_cli

from data import images
from data.blur import CameraShake
from data.pairs import generator_of

# Both motorcycles are one scene: they stay on one side.
TRAIN = (
    "astronaut.png",
    "brick.png",
    "camera.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "page.png",
)
CROP = 256
TEST = {  # left, top of the crops
    "chelsea.png": [(15, 20), (180, 30)],
    "coffee.png": [(70, 15), (300, 125)],
    "rocket.jpg": [(190, 155), (360, 150)],
}
REALLY_BLURRED = "clock_motion.png"


def main(output: str, seed: int = 0) -> None:
    """Write train/, test/blur/, test/sharp/ and clock_motion.png.

    Args:
        output: folder to write to; made where missing.
        seed: of the test pictures' blur.
    """
    source, folder = Path(skimage.__file__).parent / "data", Path(output)
    (folder / "train").mkdir(parents=True, exist_ok=True)
    for name in TRAIN:
        shutil.copyfile(source / name, folder / "train" / name)
    shutil.copyfile(source / REALLY_BLURRED, folder / REALLY_BLURRED)

    shake = CameraShake()
    crops = [(name, i, corner) for name, corners in TEST.items() for i, corner in enumerate(corners, 1)]
    for file, i, (left, top) in crops:
        name = f"{Path(file).stem}_{i}.png"
        # Blurred with real surroundings, which the crop then leaves out.
        photo = images.read(source / file)
        photo = images.read(source / file)
        rows, columns = (slice(at - shake.margin, at + CROP + shake.margin) for at in (top, left))
        blurry = shake(photo[None, :, rows, columns], [generator_of(seed, name)])[0]
        inside = slice(shake.margin, shake.margin + CROP)
        images.write(folder / "test" / "blur" / name, blurry[:, inside, inside])
        images.write(folder / "test" / "sharp" / name, photo[:, top : top + CROP, left : left + CROP])
    print(f"{folder}: {len(TRAIN)} sharp photographs in train, {len(crops)} pairs in test, {REALLY_BLURRED}")


if __name__ == "__main__":
    try:
        auto_cli(main, as_positional=False)
    except OSError as error:
        print(f"The photographs cannot be written: {error}.", file=sys.stderr)
        sys.exit(2)
