"""Write the demo's photographs: python -m tools.demo --output runs/demo/photos

All come with the scikit-image package (skimage.data gives the origin of each): sharp photographs to train on with
synthetic blur, crops of others with fixed blur to validate and test on, and one that was really blurred.
"""

import shutil
import sys
from pathlib import Path

import skimage

from deblur.cli import call, run_command
from deblur.data.blur import CameraShake, SyntheticBlur
from deblur.data.files import images
from deblur.data.pairs import generator_of

# Both motorcycles show one scene, so they are in the same split. Grass and gravel are left out: in so few steps a
# sampler learns from them that a residual looks like noise.
TRAINING_PHOTOS = (
    "astronaut.png",
    "brick.png",
    "coins.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "page.png",
)
CROP_SIDE = 256
HELD_OUT = {  # left, top of the crops
    "val": {"camera.png": [(140, 20), (230, 230)]},
    "test": {
        "chelsea.png": [(15, 20), (180, 30)],
        "coffee.png": [(70, 15), (300, 125)],
        "rocket.jpg": [(190, 155), (360, 150)],
    },
}
REALLY_BLURRED = "clock_motion.png"


def main(output: str) -> None:
    """Write train/, val/ and test/ (each blur/ and sharp/) and clock_motion.png.

    Args:
        output: folder to write to; created if missing.
    """
    source, folder = Path(skimage.__file__).parent / "data", Path(output)
    (folder / "train").mkdir(parents=True, exist_ok=True)
    for name in TRAINING_PHOTOS:
        shutil.copyfile(source / name, folder / "train" / name)
    shutil.copyfile(source / REALLY_BLURRED, folder / REALLY_BLURRED)

    shake = SyntheticBlur([CameraShake(length=(3.0, 11.0))], shot_noise=(0.0, 2e-4))  # the blur of configs/demo.yaml
    for split, photos in HELD_OUT.items():
        for file, corners in photos.items():
            photo = images.read(source / file)
            for number, (left, top) in enumerate(corners, 1):
                name = f"{Path(file).stem}_{number}.png"
                # Blurred with the pixels around the crop, which are then cut off.
                rows, columns = (slice(at - shake.margin, at + CROP_SIDE + shake.margin) for at in (top, left))
                pair = shake(photo[None, :, rows, columns], [generator_of(0, name)])
                for side, (image,) in zip(("blur", "sharp"), pair, strict=True):
                    images.write(folder / split / side / name, image)
    counts = [sum(map(len, photos.values())) for photos in HELD_OUT.values()]
    print(
        f"{folder}: {len(TRAINING_PHOTOS)} sharp photographs in train, {counts[0]} pairs in val, {counts[1]} in test, "
        f"and {REALLY_BLURRED}, really blurred"
    )


if __name__ == "__main__":
    sys.exit(run_command("tools.demo", lambda: call(main, None, "-m tools.demo", positional=0), "stopped"))
