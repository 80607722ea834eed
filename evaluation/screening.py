"""Screening: run all settings on a share of the images, then on the rest only those near the Pareto front."""

from collections.abc import Sequence

import numpy as np

from evaluation.grid import key
from evaluation.scoring import ImagePair, Plan
from evaluation.statistics import estimates

SHARE = 4  # one in this many images is used
FEWEST = 8  # at least this many images are used, since fewer are not conclusive


def first_and_rest(images: Sequence[ImagePair]) -> tuple[list[ImagePair], list[ImagePair]]:
    """Split into the images on which all settings are run, and the rest. The split depends only on the images."""
    order = [images[at] for at in np.random.default_rng(0).permutation(len(images))]
    count = min(len(images), max(FEWEST, len(images) // SHARE))
    return order[:count], order[count:]


def screen(plan: Plan, images: Sequence[ImagePair]) -> dict[str, str]:
    """Label -> reason, for settings that another one beats in both PSNR and LPIPS (SSIM if LPIPS is missing).

    Args:
        plan: its journal has the scores of all settings on `images`.
    """
    scores, computed = plan.journal.scores(), plan.computed
    axes = []
    for metric in ("psnr", "lpips" if "lpips" in computed else "ssim"):
        values = [[scores[key(s), image.name].metrics[metric] for s in plan.settings] for image in images]
        axes.append((1 if computed[metric].higher_is_better else -1) * np.array(values, dtype=float))  # None: nan
    labels = list(plan.by_label)
    return {
        label: f"on {len(images)} of {len(plan.images)} images: beaten by {labels[winner]}"
        for label, winner in zip(labels, beaten_by(axes, plan.seed), strict=True)
        if winner is not None
    }


def beaten_by(axes: Sequence[np.ndarray], seed: int = 0) -> list[int | None]:
    """For each setting the index of one that beats it on every axis, or None.

    One setting beats another if the 95 % interval of their difference, paired by image, is above 0 on every axis. So
    the unbeaten settings are the front of these images and its neighbours.

    Args:
        axes: one (images, settings) array per axis, higher is better; images with a value that is not finite are
            ignored.
        seed: of the bootstrap.
    """
    axes = np.stack(axes)
    axes = axes[:, np.isfinite(axes).all(axis=(0, 2))]
    if axes.shape[1] < 2:
        return [None] * axes.shape[2]
    found = []
    for setting in range(axes.shape[2]):
        gains = axes - axes[:, :, [setting]]
        lows = np.array([[estimate.low for estimate in estimates(gain, seed)] for gain in gains])
        certain = (lows > 0).all(axis=0)
        found.append(int(certain.argmax()) if certain.any() else None)
    return found
