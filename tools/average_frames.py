"""Make blurry/sharp pairs from sharp frames, as GoPro was made: python -m tools.average_frames VIDEO ROOT

N consecutive frames are averaged to the blurry image, and the middle one is the sharp one (Nah et al., "Deep
multi-scale convolutional neural network for dynamic scene deblurring", CVPR 2017). The output has the GoPro layout:
ROOT/train/SCENE/{blur,sharp}/000001.png. Use footage of at least 120 frames per second: at lower rates the average
shows ghosts instead of blur.
"""

import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from base.command_line import call
from base.progress import ProgressBar
from base.stop import run_command
from data import images, search
from data.blur import from_light, to_light
from data.layouts import DatasetError

VIDEOS = {".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v"}


def average(frames: list[Tensor], response: str = "srgb", gamma: float = 2.2) -> Tensor:
    """Average (3, H, W) frames in [0, 1] as the light of one long exposure, recorded through the response.

    srgb: the standard's curve; gamma: value = light^(1/gamma), GoPro's `blur_gamma`; none: average the file values,
    GoPro's `blur`.
    """
    return from_light(to_light(torch.stack(frames), response, gamma).mean(0), response, gamma)


def read_frames(source: str) -> Iterator[Tensor]:
    """Yield the frames of a video file, or of a folder of images sorted by name, as (3, H, W) in [0, 1].

    Raises DatasetError if the source is neither, or if it is a video and PyAV is missing.
    """
    path = Path(source)
    if path.is_dir():
        yield from map(images.read, search.find(path))
        return
    if not path.is_file() or path.suffix.lower() not in VIDEOS:
        raise DatasetError(f"{path} is neither a video ({' '.join(sorted(VIDEOS))}) nor a folder of frames.")
    try:
        import av
    except ImportError:
        raise DatasetError("Videos need PyAV: pip install -r requirements-extra.txt.") from None
    try:
        with av.open(str(path)) as video:
            if not video.streams.video:
                raise DatasetError(f"{path} has no video in it.")
            for frame in video.decode(video=0):
                yield images.to_float(torch.from_numpy(frame.to_ndarray(format="rgb24")).movedim(-1, 0))
    except av.FFmpegError as error:
        raise DatasetError(f"{path} cannot be decoded, it may be damaged: {error.strerror}.") from None


def main(
    source: str,
    output: str,
    frames: int = 11,
    stride: int | None = None,
    response: Literal["srgb", "gamma", "none"] = "srgb",
    gamma: float = 2.2,
    scene: str | None = None,
    split: Literal["train", "val", "test"] = "train",
) -> None:
    """Write the pairs of one video as one scene of a dataset.

    Args:
        source: a video file, or a folder of frames.
        output: root folder of the dataset to write to; existing scenes are kept.
        frames: sharp frames per blurry image; odd, so that one is in the middle. GoPro has 7 to 13.
        stride: frames from one pair to the next; none: the value of `frames`, so that no frame is used twice.
        response: srgb and gamma average light; none averages the file values.
        gamma: of the response gamma.
        scene: name of the scene's folder; none: the source's name.
        split: split of the dataset.
    """
    if frames < 1 or frames % 2 == 0:
        raise DatasetError(f"frames must be odd and at least 1, not {frames}: the middle one is the sharp image.")
    if stride is not None and stride < 1:
        raise DatasetError(f"stride must be at least 1, not {stride}.")
    folder = Path(output) / split / (scene or Path(source).stem)
    if folder.exists():
        raise DatasetError(f"{folder} is there already: give another --scene.")
    kind = "blur_gamma" if response == "gamma" else "blur"
    last, count, step = deque(maxlen=frames), 0, stride or frames
    for number, frame in enumerate(ProgressBar(read_frames(source), desc="averaging", unit="frame")):
        if last and frame.shape != last[-1].shape:
            raise DatasetError(f"{source} has frames of different sizes, at frame {number}.")
        last.append(frame)
        if number + 1 >= frames and (number + 1 - frames) % step == 0:
            count += 1
            images.write(folder / kind / f"{count:06}.png", average(list(last), response, gamma))
            images.write(folder / "sharp" / f"{count:06}.png", last[frames // 2])
    if not count:
        raise DatasetError(f"{source} has fewer than {frames} frames.")
    print(f"{folder}: {count} pairs of {frames} frames each, variant {kind}, response {response}")


if __name__ == "__main__":
    command = partial(call, main, None, "-m tools.average_frames", positional=2)
    sys.exit(run_command("tools.average_frames", command, "stopped"))
