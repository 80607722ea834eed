"""What a progress bar is told."""

from collections.abc import Callable, Iterable, Iterator

from tqdm import tqdm


def counted(bar: tqdm, images: int) -> Callable[[Iterable], Iterator]:
    """Wraps the denoising steps of so many images, and tells them to the bar."""

    def progress(steps: Iterable) -> Iterator:
        for step in steps:
            yield step
            bar.update(images)

    return progress
