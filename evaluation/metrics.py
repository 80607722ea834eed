"""The metrics by name: how each is shown, what computes it, and its recipe or the reason why it is missing.

A grid scores many settings of many images. So a metric takes a batch on the device where it was restored, returns a
value per image, as intervals and paired differences need, and copies only numbers to the host (the aligned scores and
NIQE: images, for OpenCV and SciPy).

torch and what computes the metrics is imported by the functions, so that a command line can check names at once.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal, NamedTuple

from deblur.cli import nearest

if TYPE_CHECKING:
    from torch import Tensor


class Column(NamedTuple):
    """How a metric is shown: its name with its unit, its decimal places, and the direction of its scale."""

    title: str
    digits: int
    higher_is_better: bool

    @property
    def short_title(self) -> str:
        """The name without its unit."""
        return self.title.partition(" (")[0]


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
    function: "Callable[..., Tensor] | None"
    recipe: str | None
    reason: str | None = None
    inputs: Sequence[Literal["restored", "sharp", "names"]] = ("restored", "sharp")

    def __call__(self, restored: "Tensor", sharp: "Tensor", names: Sequence[str] = ()) -> "Tensor":
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
        from deblur.evaluation.pixels import MetricError

        if self.reason is not None:
            raise MetricError(self.reason)
        arguments = {"restored": restored, "sharp": sharp, "names": names}
        return self.function(*(arguments[name] for name in self.inputs))


def require_known(names: Iterable[str]) -> None:
    """Raise ValueError for a name that is not in METRICS; the message suggests the closest one.

    A name with a dot is the path of a user's own metric, which `make_metrics` imports.
    """
    if unknown := sorted(name for name in set(names) - METRICS.keys() if "." not in name):
        raise ValueError(
            f"unknown metric {unknown[0]}" + nearest(unknown[0], [*METRICS], f": it is one of {', '.join(METRICS)}")
        )


def make_metrics(names: Iterable[str], data: Path = Path(), language: str = "eng") -> dict[str, Metric]:
    """The metrics with these names, in the order of METRICS. A missing metric is included with its reason.

    Args:
        names: from METRICS, or paths of a user's functions.
        data: the dataset's folder, which has the texts for cer.
        language: of the texts, as in `ErrorRate`.

    Raises:
        ValueError: a name is unknown, or a function cannot be imported.
    """
    from deblur.evaluation import perceptual, pixels, text

    names = set(names)
    require_known(names)
    classes = {
        "lpips": perceptual.Lpips,
        "dists": perceptual.Dists,
        "niqe": perceptual.Niqe,
        "psnr_aligned": partial(pixels.Aligned, "psnr"),
        "ssim_aligned": partial(pixels.Aligned, "ssim"),
        "cer": partial(text.ErrorRate, data, language),
    }
    made = {
        "psnr": Metric(METRICS["psnr"], pixels.psnr, pixels.PSNR_RECIPE),
        "ssim": Metric(METRICS["ssim"], pixels.ssim, pixels.SSIM_RECIPE),
    }
    for name in names & classes.keys():
        try:
            function = classes[name]()
            made[name] = Metric(METRICS[name], function, function.recipe, inputs=function.inputs)
        except pixels.MetricError as error:
            made[name] = Metric(METRICS[name], None, None, str(error))
    own = sorted(names - METRICS.keys())
    made |= {path: _user_metric(path) for path in own}
    return {name: made[name] for name in (*METRICS, *own) if name in names}


def _user_metric(path: str) -> Metric:
    """A user's function of (restored, sharp), by its path MODULE.FUNCTION; its code belongs to the recipe."""
    try:
        function = resolve_name(path)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"metric {path} cannot be imported ({error}): its folder must be on PYTHONPATH") from None
    code = hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:12]
    higher = not getattr(function, "lower_is_better", False)
    name = path.rpartition(".")[2]
    return Metric(Column(name, 4, higher), function, f"{inspect.getdoc(function) or name} (code {code})")
