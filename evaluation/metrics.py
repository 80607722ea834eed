"""All metrics by column name, each with the recipe of its numbers or the reason why it is missing.

A grid scores many settings of many images. So a metric takes a batch on the device where it was restored, returns a
value per image, as intervals and paired differences need, and copies only numbers to the host (the aligned scores and
NIQE: images, for OpenCV and SciPy).
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Literal

import torch
from torch import Tensor

from deblur.evaluation.alignment import Aligned
from deblur.evaluation.catalogue import METRICS, Column, require_known
from deblur.evaluation.niqe import Niqe
from deblur.evaluation.perceptual import Dists, Lpips
from deblur.evaluation.pixels import PSNR_RECIPE, SSIM_RECIPE, MetricError, psnr, ssim
from deblur.evaluation.reading import ErrorRate

_PIXELS = 2**22  # scored at once: four frames of 1280 x 720, so that a large batch fits into memory


@dataclass(frozen=True)
class Metric:
    """A metric with one value per image.

    Attributes:
        column: how it is shown.
        function: what computes it, called with its `inputs`; None if the metric is missing.
        recipe: how the number is computed; None if the metric is missing.
        reason: None, or why the metric is missing.
        inputs: the arguments of a call that `function` takes, in its order. A metric that does not take `sharp` also
            scores the ground truth.
    """

    column: Column
    function: Callable[..., Tensor] | None
    recipe: str | None
    reason: str | None = None
    inputs: Sequence[Literal["restored", "sharp", "names"]] = ("restored", "sharp")

    def __call__(self, restored: Tensor, sharp: Tensor, names: Sequence[str] = ()) -> Tensor:
        """Score images of one size.

        Args:
            restored: (N, 3, H, W), about [0, 1].
            sharp: the ground truth, (N, 3, H, W) in [0, 1].
            names: of the N images, for a metric that needs more than pixels.

        Returns:
            (N,) float32 on the images' device; independent of the batch.

        Raises:
            MetricError: the shapes differ, a value is not finite, an image is too small for the metric or cannot be
                scored by it, or the metric is missing.
        """
        if self.reason is not None:
            raise MetricError(self.reason)
        arguments = {"restored": restored, "sharp": sharp, "names": names}
        columns = [arguments[name] for name in self.inputs]
        count = max(1, _PIXELS // (restored.shape[-2] * restored.shape[-1]))
        starts = range(0, len(restored), count)
        return torch.cat([self.function(*(column[at : at + count] for column in columns)) for at in starts])


def make_metrics(names: Iterable[str], data: Path = Path(), language: str = "eng") -> dict[str, Metric]:
    """The metrics with these names, in the order of METRICS. A missing metric is included with its reason.

    Args:
        names: from METRICS, or paths of a user's functions.
        data: the dataset's folder, which has the texts for cer.
        language: of the texts, as in `ErrorRate`.

    Raises:
        ValueError: a name is unknown; names with a dot are paths of functions, which are imported.
        MetricError: a function cannot be imported.
    """
    names = set(names)
    require_known(names)
    classes = {
        "lpips": Lpips,
        "dists": Dists,
        "niqe": Niqe,
        "psnr_aligned": partial(Aligned, "psnr"),
        "ssim_aligned": partial(Aligned, "ssim"),
        "cer": partial(ErrorRate, data, language),
    }
    made = {"psnr": Metric(METRICS["psnr"], psnr, PSNR_RECIPE), "ssim": Metric(METRICS["ssim"], ssim, SSIM_RECIPE)}
    for name in names & classes.keys():
        try:
            function = classes[name]()
            made[name] = Metric(METRICS[name], function, function.recipe, inputs=function.inputs)
        except MetricError as error:
            made[name] = Metric(METRICS[name], None, None, str(error))
    users = sorted(names - METRICS.keys())
    made |= {path: _user_metric(path) for path in users}
    return {name: made[name] for name in (*METRICS, *users) if name in names}


def _user_metric(path: str) -> Metric:
    """A user's function of (restored, sharp), by its path MODULE.FUNCTION; its code belongs to the recipe."""
    try:
        function = resolve_name(path)
    except (ImportError, AttributeError) as error:
        raise MetricError(f"metric {path} cannot be imported ({error}): its folder must be on PYTHONPATH") from None
    code = hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:12]
    higher = not getattr(function, "lower_is_better", False)
    name = path.rpartition(".")[2]
    return Metric(Column(name, 4, higher), function, f"{inspect.getdoc(function) or name} (code {code})")
