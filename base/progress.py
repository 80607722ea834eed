"""Progress bars."""

from collections.abc import Callable, Iterable, Iterator

from tqdm import tqdm


def counted(bar: tqdm, images: int) -> Callable[[Iterable], Iterator]:
    """A wrapper of denoising steps that advances the bar by `images` per step."""

    def progress(steps: Iterable) -> Iterator:
        for step in steps:
            yield step
            bar.update(images)

    return progress
