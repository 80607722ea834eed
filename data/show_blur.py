"""Show eight samples of each kind of synthetic blur in one picture: python -m data.show_blur --output docs/blur.png

The scene is scikit-image's photograph of a cat, or any picture of yours.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import skimage
import torch
from jsonargparse import auto_cli

from data import images
from data.blur import CameraShake, Defocus, MeasuredKernels, ObjectMotion, SixDegrees, SyntheticBlur, UniformShake
from data.pairs import generator_of

SIDE = 110


def main(output: str, photo: str | None = None, kernels: str | None = None, seed: int = 0) -> None:
    """Write the picture: a row for each kind, eight seeds across, the sharp crop first.

    Args:
        output: the .png file to write.
        photo: a sharp photograph of at least 200 x 200 pixels; none: the one that comes with scikit-image.
        kernels: an .npz file of measured kernels, for a row of them.
        seed: of the samples.
    """
    sharp = images.read(photo or Path(skimage.__file__).parent / "data" / "chelsea.png")
    kinds = {
        "CameraShake": CameraShake((5, 17), noise=(0, 0.01)),
        "UniformShake": SyntheticBlur([UniformShake((5, 17))]),
        "SixDegrees": SyntheticBlur([SixDegrees((4, 16))]),
        "SixDegrees, roll": SyntheticBlur([SixDegrees((24, 40), rotation=0, translation=0, zoom=0)]),
        "SixDegrees, frame": SyntheticBlur([SixDegrees((6, 16), frame=1280)]),
        "Defocus": SyntheticBlur([Defocus((1, 5))]),
        "ObjectMotion": SyntheticBlur(moving=ObjectMotion(1, (9, 21))),
        "response none": SyntheticBlur([UniformShake((5, 17))], response="linear"),
        "saturation": SyntheticBlur([UniformShake((5, 17))], saturation=(3, 8)),
        "shot, read noise": SyntheticBlur(shot_noise=(0, 0.01), read_noise=(0, 0.02)),
        "JPEG": SyntheticBlur(jpeg=(10, 40)),
        "all": SyntheticBlur(
            [SixDegrees((4, 12)), UniformShake((5, 17)), Defocus((1, 3))],
            moving=ObjectMotion(0.5),
            saturation=(0, 4),
            shot_noise=(0, 0.003),
            read_noise=(0, 0.01),
            jpeg=(60, 95),
        ),
    }
    if kernels is not None:
        kinds["MeasuredKernels"] = SyntheticBlur([MeasuredKernels(kernels)])
    widest = max(blur.margin for blur in kinds.values())
    side = SIDE + 2 * widest
    if min(sharp.shape[1:]) < side:
        raise images.ImageError(f"{photo} is smaller than {side} x {side} pixels: give a larger photograph.")
    # The cat's eye; of another photograph the corner.
    top, left = (61, 141) if photo is None else (widest, widest)
    figure, axes = plt.subplots(len(kinds), 9, figsize=(13.5, 1.55 * len(kinds)), layout="constrained")
    for row, (name, blur) in zip(axes, kinds.items(), strict=True):
        margin = blur.margin
        wide = sharp[None, :, top - margin : top + SIDE + margin, left - margin : left + SIDE + margin]
        samples = [wide[0], *blur(wide.repeat(8, 1, 1, 1), [generator_of(seed, name, i) for i in range(8)])]
        for axis, sample in zip(row, samples, strict=True):
            inside = sample[:, margin : margin + SIDE, margin : margin + SIDE]
            axis.imshow(inside.movedim(0, -1).clamp(0, 1), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(name, fontsize=8)
    figure.savefig(output, dpi=72)
    plt.close(figure)
    print(f"wrote {output}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        auto_cli(main, as_positional=False)
    except (images.ImageError, ValueError, OSError) as error:
        print(f"data.show_blur: error: {error}", file=sys.stderr)
        sys.exit(2)
