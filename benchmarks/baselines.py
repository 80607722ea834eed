"""Restore a test set by classical methods, as images to score: python -m benchmarks.baselines DATA --output FOLDER

FOLDER/unsharp_mask needs only the image. FOLDER/richardson_lucy and FOLDER/wiener are given the true kernel, which only
a synthetic test set with one kernel per image has (tools.make_pairs --uniform true); they show what knowing the blur is
worth. All three are scikit-image's.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from skimage import filters, restoration
from torch import Tensor
from tqdm import tqdm

from base.command_line import call
from base.stop import run_command
from data import images
from data.layouts import find_pairs


def unsharp_mask(blurry: np.ndarray, radius: float, amount: float) -> np.ndarray:
    """Unsharp mask with a Gaussian, on (H, W, 3) in [0, 1], in the file's values."""
    # With channel_axis -1 scikit-image 0.26 leaves most rows uninitialised.
    return filters.unsharp_mask(blurry, radius, amount, channel_axis=2)


def deconvolve(blurry: np.ndarray, kernel: np.ndarray, method: str, strength: float) -> np.ndarray:
    """Invert a known kernel in linear light, where cameras blur. (H, W, 3) sRGB in [0, 1] -> the same.

    Args:
        kernel: the point spread function, odd-sided, of sum 1.
        method: richardson_lucy (strength: iterations) or wiener (strength: balance).
    """
    margin = len(kernel)
    light = np.where(blurry <= 0.04045, blurry / 12.92, ((blurry + 0.055) / 1.055) ** 2.4)  # IEC 61966-2-1
    # Padded by reflection; a black border would cause ringing.
    wide = np.pad(light, ((margin, margin), (margin, margin), (0, 0)), mode="reflect")
    channels = []
    for channel in np.moveaxis(wide, -1, 0):
        if method == "wiener":
            channels.append(restoration.wiener(channel, kernel, strength, clip=False))
        else:
            channels.append(restoration.richardson_lucy(channel, kernel, int(strength), filter_epsilon=1e-3))
    light = np.stack(channels, -1)[margin:-margin, margin:-margin].clip(0, 1)
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def restore(
    data: str,
    output: str,
    split: str = "test",
    radius: float = 1.0,
    amount: float = 1.0,
    iterations: int = 30,
    balance: float = 0.01,
) -> None:
    """Write FOLDER/METHOD/NAME.png for every blurry image.

    Choose the parameters on photographs that are not in the test set.

    Args:
        data: root folder of a dataset of pairs; kernels.npz in it gives the kernels.
        output: folder to write to.
        split: which split of the dataset.
        radius, amount: of the unsharp mask: the Gaussian's standard deviation in pixels, and the strength.
        iterations: of Richardson-Lucy.
        balance: of Wiener, the weight of smoothness against the data.
    """
    pairs = find_pairs(data, split)
    file = Path(data) / "kernels.npz"
    kernels = np.load(file) if file.is_file() else None
    for pair in tqdm(pairs, unit="image", dynamic_ncols=True):
        blurry = images.read(pair.blurry).movedim(0, -1).double().numpy()
        restored = {"unsharp_mask": unsharp_mask(blurry, radius, amount)}
        if kernels is not None:
            if pair.name not in kernels:
                raise ValueError(f"{file} has no kernel for {pair.name}: make the test set again.")
            kernel = kernels[pair.name].astype(float)
            restored["richardson_lucy"] = deconvolve(blurry, kernel, "richardson_lucy", iterations)
            restored["wiener"] = deconvolve(blurry, kernel, "wiener", balance)
        for method, image in restored.items():
            images.write(Path(output) / method / f"{pair.name}.png", _tensor(image))
    print(f"{output}: {', '.join(restored)} of {len(pairs)} images" + ("" if kernels else f"; {file} is not there"))


def _tensor(image: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(image)).movedim(-1, 0)


def main(args: list[str] | None = None) -> None:
    """The command line."""
    call(restore, args, "-m benchmarks.baselines")


if __name__ == "__main__":
    sys.exit(run_command("benchmarks.baselines", main, "stopped"))
