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
    """Raise ValueError for a name that is not in METRICS; the message suggests the closest one."""
    if unknown := sorted(set(names) - METRICS.keys()):
        raise ValueError(
            f"unknown metric {unknown[0]}" + nearest(unknown[0], [*METRICS], f": it is one of {', '.join(METRICS)}")
        )
