"""The metrics by name, without the libraries that compute them."""

from collections.abc import Iterable
from typing import NamedTuple

from deblur.cli import nearest


class Column(NamedTuple):
    """How a metric is shown: its name with its unit, its decimal places, and the direction of its scale."""

    title: str
    digits: int
    higher_is_better: bool


METRICS = {
    "psnr": Column("PSNR (dB)", 2, True),
    "ssim": Column("SSIM", 4, True),
    "lpips": Column("LPIPS (AlexNet)", 4, False),
    "dists": Column("DISTS", 4, False),
    "niqe": Column("NIQE", 2, False),
    "psnr_aligned": Column("aligned PSNR (dB)", 2, True),
    "ssim_aligned": Column("aligned SSIM", 4, True),
    "cer": Column("CER", 4, False),
}


def require_known(names: Iterable[str]) -> None:
    """Raise ValueError for a name that is not in METRICS; the message suggests the closest one.

    A name with a dot is the path of a user's own metric, which `evaluation.metrics` imports.
    """
    if unknown := sorted(name for name in set(names) - METRICS.keys() if "." not in name):
        raise ValueError(
            f"unknown metric {unknown[0]}" + nearest(unknown[0], [*METRICS], f": it is one of {', '.join(METRICS)}")
        )
