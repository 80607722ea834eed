"""The metrics by name, without the libraries that compute them."""

from collections.abc import Iterable

from base.messages import nearest

METRICS = {
    "psnr": "PSNR (dB)",
    "ssim": "SSIM",
    "lpips": "LPIPS (AlexNet)",
    "psnr_aligned": "aligned PSNR (dB)",
    "ssim_aligned": "aligned SSIM",
}
LOWER_IS_BETTER = ("lpips",)


def require_known(names: Iterable[str]) -> None:
    """Raise ValueError for a name that is not in METRICS; the message suggests the closest one.

    A name with a dot is the path of a user's own metric, which `evaluation.metrics` imports.
    """
    if unknown := sorted(name for name in set(names) - METRICS.keys() if "." not in name):
        raise ValueError(
            f"unknown metric {unknown[0]}" + nearest(unknown[0], [*METRICS], f": it is one of {', '.join(METRICS)}")
        )
