"""The forward process of the residual, and the denoiser's prediction target.

Symbols as in the paper: r_0 is the residual, alpha_bar the continuous noise level, eps standard normal noise. All
arithmetic here is float32 whatever the precision of the networks.
"""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

ScaleKind = Literal["global", "local", "learned"]
FLOOR = 0.005  # least value of the maps below, in [-1, 1]: two thirds of an 8-bit level, so that r_0 stays finite
MOST = 2.0  # the range: no error is larger

# Orthonormal: luma, and two of chroma. What is missing is nearly grey, and in RGB a sampler does not know it: it draws
# three channels as if they were independent, which looks like coloured grain. So chroma can stay the prediction's.
AXES = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, 0.0], [1.0, 1.0, -2.0]])
AXES /= AXES.norm(dim=1, keepdim=True)
ResidualColours = Literal["rgb", "luma", "luma_chroma"]

PredictionType = Literal["v_prediction", "epsilon", "sample"]
PREDICTION_TYPES = get_args(PredictionType)


def residual(sharp: Tensor, x_init: Tensor | float, s: Tensor | float) -> Tensor:
    """r_0 = (x - x_init) / s: what the prediction missed, in units of its standard deviation.

    With a scale for each of the AXES, r_0 has the difference along these, one a channel, and 0 where the scale is 0. No
    other code computes a residual.

    Args:
        sharp, x_init: (N, 3, H, W) in [-1, 1].
        s: a number or a map (N, 1, H, W); or a map (N, 3, H, W), a scale for each of the AXES.
    """
    difference = sharp - x_init
    if not along_axes(s):
        return difference / s
    return torch.einsum("kc,nchw->nkhw", AXES.to(difference), difference) / s.masked_fill(s == 0, math.inf)


def add_residual(x_init: Tensor | float, r_0: Tensor, s: Tensor | float) -> Tensor:
    """x = x_init + s r_0, the inverse of `residual` where s is not 0. No other code adds a residual back."""
    difference = s * r_0
    return x_init + (torch.einsum("kc,nkhw->nchw", AXES.to(difference), difference) if along_axes(s) else difference)


def clip_residual(r_0: Tensor, x_init: Tensor, s: Tensor) -> Tensor:
    """The r_0 nearest to this one with which x_init + s r_0 is in [-1, 1]."""
    if along_axes(s):
        return residual(add_residual(x_init, r_0, s).clamp(-1, 1), x_init, s)
    return r_0.clamp(residual(-1.0, x_init, s), residual(1.0, x_init, s))


def along_axes(s: Tensor | float) -> bool:
    """Whether a scale has a channel for each of the AXES."""
    return isinstance(s, Tensor) and s.ndim == 4 and s.shape[1] == 3


def colours_of(residual_scale: float | Sequence[float]) -> ResidualColours:
    """In what colours a checkpoint with this scale c, or these three, has its residual."""
    if isinstance(residual_scale, int | float):
        return "rgb"
    return "luma_chroma" if all(residual_scale) else "luma"


def residual_size(kind: ScaleKind, prediction: Tensor, blurry: Tensor) -> Tensor:
    """m(p) in the residual's scale s(p) = c m(p): the expected size of the residual around a pixel.

    With one s for all pixels, r_0 is almost pure noise in flat regions and too large at edges. With a map it has about
    unit variance everywhere (as in PriorGrad, Lee et al. 2022). The map uses only what is known when sampling:

    - global: 1, so s is a number (the paper's s is 1).
    - local: the mean of |x_init - y| over 9 x 9 pixels and the channels. The predictor misses most where it changes
      most.
    - learned: the predictor's own estimate of |x - x_init| (see `expected_size`), averaged over 5 x 5 pixels.

    Args:
        prediction: x_init (N, 3, H, W) in [-1, 1]; learned needs a fourth channel, the log of that estimate.
        blurry: y (N, 3, H, W) in [-1, 1].

    Returns:
        (N, 1, H, W), at least FLOOR; for global an expanded view that takes no memory.
    """
    if kind == "local":
        return _box_mean((prediction[:, :3] - blurry).abs().mean(1, keepdim=True), 9) + FLOOR
    if kind == "learned":
        return _box_mean(expected_size(prediction[:, 3:]), 5).clamp_min(FLOOR)
    return prediction.new_ones(1, 1, 1, 1).expand(len(prediction), 1, *prediction.shape[-2:])


def expected_size(log_size: Tensor) -> Tensor:
    """The expected |x - x_init| (N, 1, H, W), of images in [-1, 1], from its log; at most MOST.

    A size head says more where an image has brighter edges than any of training.
    """
    return log_size.exp().clamp_(max=MOST)


def laplace_loss(log_size: Tensor, error: Tensor) -> Tensor:
    """Negative log-likelihood of a residual under a Laplace distribution with mean absolute value exp(log_size).

    It is lowest where exp(log_size) is the expected absolute error (Kendall & Gal 2017, in its L1 form). log(FLOOR)
    is subtracted, so that the loss is positive wherever exp(log_size) is above FLOOR.

    Args:
        log_size: (N, 1, H, W).
        error: x - x_init (N, 3, H, W) in [-1, 1]; it receives no gradient.
    """
    return (error.detach().abs().mean(1, keepdim=True) * (-log_size).exp() + log_size).mean() - math.log(FLOOR)


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


def sample_alpha_bar(alphas_cumprod: Tensor, u: Tensor) -> Tensor:
    """Draw continuous noise levels (N,): a random step t, then uniform in its interval.

    Source: WaveGrad (Chen et al. 2021), algorithm 1, in the form that SR3 (Saharia et al. 2021) uses: uniform in
    (alpha_bar_t, alpha_bar_{t-1}).

    Args:
        alphas_cumprod: alpha_bar_1 .. alpha_bar_T of the training schedule.
        u: uniform random numbers (N,) in [0, 1), float64, on the same device; 0 gives the least noise.
    """
    levels = torch.cat([alphas_cumprod.new_ones(1), alphas_cumprod])
    t = (u * len(alphas_cumprod)).long() + 1
    inside = t - u * len(alphas_cumprod)  # 1 at the less noisy end of the interval
    return torch.lerp(levels[t], levels[t - 1], inside.to(levels.dtype)).float()


def add_noise(r_0: Tensor, eps: Tensor, alpha_bar: Tensor) -> Tensor:
    """r_t = sqrt(alpha_bar) r_0 + sqrt(1 - alpha_bar) eps, with one alpha_bar per image (N,).

    Source: DDPM (Ho et al. 2020), equation 4, applied to the residual instead of the image.
    """
    a = _per_image(alpha_bar)
    return a.sqrt() * r_0 + (1 - a).sqrt() * eps


def target(r_0: Tensor, eps: Tensor, alpha_bar: Tensor, prediction_type: PredictionType) -> Tensor:
    """The training target of the denoiser's output.

    v_prediction: v = sqrt(alpha_bar) eps - sqrt(1 - alpha_bar) r_0 (Salimans & Ho 2022, section 4); epsilon: eps (the
    paper; DDPM, equation 14); sample: r_0.
    """
    if prediction_type == "epsilon":
        return eps
    if prediction_type == "sample":
        return r_0
    a = _per_image(alpha_bar)
    return a.sqrt() * eps - (1 - a).sqrt() * r_0


def estimate_r_0(output: Tensor, r_t: Tensor, alpha_bar: Tensor, prediction_type: PredictionType) -> Tensor:
    """The estimate of r_0 that the denoiser's output implies; the inverse of `target` given r_t.

    Source: for epsilon DDPM (Ho et al. 2020), equation 15; for v_prediction Salimans & Ho 2022, section 4.
    """
    if prediction_type == "sample":
        return output
    a = _per_image(alpha_bar)
    if prediction_type == "epsilon":
        return (r_t - (1 - a).sqrt() * output) / a.sqrt()
    return a.sqrt() * r_t - (1 - a).sqrt() * output


def _per_image(alpha_bar: Tensor) -> Tensor:
    return alpha_bar.view(-1, 1, 1, 1)
