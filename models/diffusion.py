"""Predict, then diffuse what is missed: x_init = g(y), the residual r_0 = (x - x_init) / s, and its noisy r_t.

Read this first, then schedules.py, losses.py and samplers.py; docs/method.py is all of it on a page. y is the blurry
and x the sharp image, (N, 3, H, W) in [-1, 1]; a = alpha_bar is the noise level, (N,). All arithmetic here is float32
whatever the precision of the networks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST_SIZE = 0.005  # of the residual, in [-1, 1]: two thirds of an 8-bit level, so that r_0 stays finite
LARGEST_SIZE = 2.0  # the range: no error is larger

# Orthonormal: luma, and two of chroma. What is missing is nearly grey, and in RGB a sampler does not know it: it draws
# three channels as if they were independent, which looks like coloured grain. So chroma can stay the prediction's.
AXES = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, 0.0], [1.0, 1.0, -2.0]])
AXES /= AXES.norm(dim=1, keepdim=True)

ScaleKind = Literal["global", "local", "learned"]
ResidualColours = Literal["rgb", "luma", "luma_chroma"]
PredictionType = Literal["v_prediction", "epsilon", "sample"]
PREDICTION_TYPES = get_args(PredictionType)


def to_network(x: Tensor) -> Tensor:
    """[0, 1] -> [-1, 1]."""
    return (x * 2).sub_(1)


def to_world(x: Tensor) -> Tensor:
    """[-1, 1] -> [0, 1], clipped."""
    return (x + 1).div_(2).clamp_(0, 1)


def predict(g: Callable, *images: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
    """x_init = g(y), and the log of the expected |x - x_init| (N, 1, H, W), if g has a size head; otherwise None."""
    output = g(*images, **options)
    return (output, None) if isinstance(output, Tensor) else output


def expected_size(log_size: Tensor) -> Tensor:
    """The expected |x - x_init| (N, 1, H, W), of images in [-1, 1], from its log; at most LARGEST_SIZE.

    A size head says more where an image has brighter edges than any of training.
    """
    return log_size.exp().clamp_(max=LARGEST_SIZE)


def residual_size(kind: ScaleKind, y: Tensor, x_init: Tensor, log_size: Tensor | None = None) -> Tensor:
    """m(p) in the residual's scale s(p) = c m(p): the expected size of the residual around a pixel.

    With one s for all pixels, r_0 is almost pure noise in flat regions and too large at edges. With a map it has about
    unit variance everywhere (as in PriorGrad, Lee et al. 2022). The map uses only what is known when sampling:

    - global: 1, so s is a number (the paper's s is 1).
    - local: the mean of |x_init - y| over 9 x 9 pixels and the channels. The predictor misses most where it changes
      most.
    - learned: the predictor's own estimate of |x - x_init| (see `expected_size`), averaged over 5 x 5 pixels.

    Returns:
        (N, 1, H, W), at least SMALLEST_SIZE; for global an expanded view that takes no memory.
    """
    if kind == "local":
        return _box_mean((x_init - y).abs().mean(1, keepdim=True), 9) + SMALLEST_SIZE
    if kind == "learned":
        return _box_mean(expected_size(log_size), 5).clamp_min(SMALLEST_SIZE)
    return y.new_ones(1, 1, 1, 1).expand(len(y), 1, *y.shape[-2:])


def _box_mean(x: Tensor, side: int) -> Tensor:
    """Mean over side x side pixels; at the border, over those inside the image."""
    rows, columns = (_box_sum(torch.ones_like(line), side) for line in (x[:1, :1, :, :1], x[:1, :1, :1]))
    return _box_sum(x, side) / (rows * columns)


def _box_sum(x: Tensor, side: int) -> Tensor:
    """Sums over side x side pixels, by shifted images: avg_pool2d takes several times as long on a CPU."""
    half = side // 2
    for axis, padding in ((-1, (half, half)), (-2, (0, 0, half, half))):
        padded = F.pad(x, padding)
        x = sum(padded.narrow(axis, k, x.shape[axis]) for k in range(side))
    return x


def residual(x: Tensor | float, x_init: Tensor | float, s: Tensor) -> Tensor:
    """r_0 = (x - x_init) / s: what the prediction missed, in units of its standard deviation.

    With a scale for each of the AXES, r_0 has the difference along these, one a channel, and 0 where the scale is 0. No
    other code computes a residual.

    Args:
        x, x_init: (N, 3, H, W) in [-1, 1].
        s: (N, 1, H, W), or (N, 3, H, W), a scale for each of the AXES.
    """
    difference = x - x_init
    if s.shape[1] == 1:
        return difference / s
    return torch.einsum("kc,nchw->nkhw", AXES.to(difference), difference) / s.masked_fill(s == 0, math.inf)


def add_residual(x_init: Tensor, r_0: Tensor, s: Tensor) -> Tensor:
    """x = x_init + s r_0, the inverse of `residual` where s is not 0. No other code adds a residual back."""
    difference = s * r_0
    if s.shape[1] == 3:
        difference = torch.einsum("kc,nkhw->nchw", AXES.to(difference), difference)
    return x_init + difference


def clip_residual(r_0: Tensor, x_init: Tensor, s: Tensor) -> Tensor:
    """The r_0 nearest to this one with which x_init + s r_0 is in [-1, 1]."""
    if s.shape[1] == 3:
        return residual(add_residual(x_init, r_0, s).clamp(-1, 1), x_init, s)
    r_0 = torch.maximum(r_0, residual(-1.0, x_init, s))
    return torch.minimum(r_0, residual(1.0, x_init, s))


def colours_of(residual_scale: float | Sequence[float]) -> ResidualColours:
    """In what colours a checkpoint with this scale c, or these three, has its residual."""
    if isinstance(residual_scale, int | float):
        return "rgb"
    return "luma_chroma" if all(residual_scale) else "luma"


def add_noise(r_0: Tensor, eps: Tensor, a: Tensor) -> Tensor:
    """r_t = sqrt(a) r_0 + sqrt(1 - a) eps: DDPM (Ho et al. 2020), equation 4, of the residual instead of the image."""
    a = a.view(-1, 1, 1, 1)
    return a.sqrt() * r_0 + (1 - a).sqrt() * eps


@dataclass(frozen=True)
class Estimator:
    """The denoiser f(r_t, y, a, x_init, s): an estimate of r_0, whatever the network predicts.

    The only code that asks for a network's `prediction_type`: v_prediction, v = sqrt(a) eps - sqrt(1 - a) r_0 (Salimans
    & Ho 2022, section 4); epsilon, eps (the paper); or sample, r_0.

    Args:
        network: called as f is; has an attribute `prediction_type`.
    """

    network: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

    def __call__(self, r_t: Tensor, y: Tensor, a: Tensor, x_init: Tensor, s: Tensor) -> Tensor:
        output, a = self.network(r_t, y, a, x_init, s), a.view(-1, 1, 1, 1)
        if self.network.prediction_type == "sample":
            return output
        if self.network.prediction_type == "epsilon":
            return (r_t - (1 - a).sqrt() * output) / a.sqrt()  # DDPM, equation 15
        return a.sqrt() * r_t - (1 - a).sqrt() * output

    def weight(self, a: Tensor) -> Tensor:
        """By which a squared error of r_0 (N, 3, H, W) is the squared error of the network's output, (N, 1, 1, 1)."""
        a = a.view(-1, 1, 1, 1)
        kind = self.network.prediction_type
        return torch.ones_like(a) if kind == "sample" else a / (1 - a) if kind == "epsilon" else 1 / (1 - a)
