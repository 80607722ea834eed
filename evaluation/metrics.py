"""All metrics by column name, each with the recipe of its numbers or the reason why it is missing.

A grid scores many settings of many images. So a metric takes a batch on the device where it was restored, returns a
value per image, as intervals and paired differences need, and copies only numbers to the host (FID and KID: features;
the aligned scores: images, for OpenCV).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from evaluation import fidelity
from evaluation.alignment import Aligned
from evaluation.catalogue import LOWER_IS_BETTER, METRICS, require_known
from evaluation.fidelity import PSNR_RECIPE, SSIM_RECIPE, Consistency, MetricError, psnr, ssim
from evaluation.inception import FID_RECIPE, KID_RECIPE, InceptionPatches, fid, kid
from evaluation.perceptual import Lpips

_PIXELS = 2**22  # scored at once: four frames of 1280 x 720, so that a large batch fits into memory


@dataclass(frozen=True)
class Metric:
    """A metric with one value per image.

    Attributes:
        name: of its column.
        title: display name, with its unit.
        higher_is_better: the direction of the scale.
        function: what computes it, called as the metric itself; without a reference also with `blurry` and `names`.
        recipe: how the number is computed; None if the metric is missing.
        reason: None, or why the metric is missing.
        reference: whether it uses the ground truth; a metric without reference also scores sharp images.
    """

    name: str
    title: str
    higher_is_better: bool
    function: Callable[..., Tensor]
    recipe: str | None
    reason: str | None = None
    reference: bool = True
    is_set: ClassVar[bool] = False

    def __call__(
        self, restored: Tensor, sharp: Tensor, blurry: Tensor | None = None, names: Sequence[str] | None = None
    ) -> Tensor:
        """Score images of one size.

        Args:
            restored: (N, 3, H, W), about [0, 1].
            sharp: the ground truth, (N, 3, H, W) in [0, 1].
            blurry: (N, 3, H, W) in [0, 1], for a metric without reference.
            names: N names, for a metric without reference.

        Returns:
            (N,) float32 on the images' device; independent of the batch.

        Raises:
            MetricError: the shapes differ, a value is not finite, an image is too small for the metric or cannot be
                scored by it, or the metric is missing.
        """
        if self.reason is not None:
            raise MetricError(self.reason)
        columns = [restored, sharp, *([] if self.reference else [blurry, names])]
        count = max(1, _PIXELS // (restored.shape[-2] * restored.shape[-1]))
        starts = range(0, len(restored), count)
        return torch.cat([self.function(*(column[at : at + count] for column in columns)) for at in starts])


@dataclass(frozen=True)
class SetMetric:
    """A metric that compares two sets of images by their features; attributes as for `Metric`.

    Attributes:
        features: (N, 3, H, W) of about [0, 1] -> (N, P, D) for P patches each; the same object in metrics that share
            features.
        function: the features (M, D) of restored and of sharp images -> the distance.
    """

    name: str
    title: str
    features: Callable[[Tensor], Tensor]
    function: Callable[[Tensor, Tensor], float]
    recipe: str | None
    reason: str | None = None
    higher_is_better: ClassVar[bool] = False
    is_set: ClassVar[bool] = True

    def distance(self, restored: Tensor, sharp: Tensor) -> float:
        """The distance between (N, P, D) features of restored and of sharp images.

        Raises:
            MetricError: there are fewer than two patches, or the metric is missing.
        """
        if self.reason is not None:
            raise MetricError(self.reason)
        return self.function(restored.flatten(0, 1), sharp.flatten(0, 1))


def make_metrics(
    names: Iterable[str],
    lpips_backbone: str | Path | None = None,
    vgg_backbone: str | Path | None = None,
    inception_backbone: str | Path | None = None,
    kernels: str | Path | None = None,
) -> dict[str, Metric | SetMetric]:
    """The metrics with these names, in the order of METRICS. A missing metric is included with its reason.

    The files are those of `Lpips`, `InceptionPatches` and `Consistency`.

    Raises:
        ValueError: a name is unknown.
        MetricError: a given file has the wrong content.
    """
    names = set(names)
    require_known(names)
    plain = {
        "psnr": (psnr, PSNR_RECIPE),
        "ssim": (ssim, SSIM_RECIPE),
        "ssim_matlab": (fidelity.ssim_matlab, fidelity.SSIM_MATLAB_RECIPE),
        "sharpness": (fidelity.sharpness, fidelity.SHARPNESS_RECIPE),
    }
    loaded = {
        "lpips": lambda: Lpips(lpips_backbone, flag="--lpips_backbone"),
        "lpips_squeeze": lambda: Lpips(net="squeeze"),
        "lpips_vgg": lambda: Lpips(vgg_backbone, "vgg", "--vgg_backbone"),
        "consistency": lambda: Consistency(kernels),
        "psnr_aligned": lambda: Aligned("psnr"),
        "ssim_aligned": lambda: Aligned("ssim"),
    }
    sets = {"fid": (fid, FID_RECIPE), "kid": (kid, KID_RECIPE)}
    inception = InceptionPatches(inception_backbone) if names & sets.keys() else None
    made = {}
    for name in (name for name in METRICS if name in names):
        if name in sets:
            function, recipe = sets[name]
            recipe = f"{recipe}: {inception.recipe}" if inception.recipe else None
            made[name] = SetMetric(name, METRICS[name], inception.__call__, function, recipe, inception.reason)
            continue
        if name in plain:
            (function, recipe), reason = plain[name], None
        else:
            function = loaded[name]()
            recipe, reason = function.recipe, function.reason
        higher, reference = name not in LOWER_IS_BETTER, name != "consistency"
        made[name] = Metric(name, METRICS[name], higher, function, recipe, reason, reference)
    return made
