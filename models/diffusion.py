"""The forward process of the residual, and what the denoiser is asked to predict.

Symbols as in the paper: r_0 is the residual, alpha_bar the continuous noise level, eps standard normal noise. All
arithmetic here is float32 whatever the precision of the networks.
"""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

ScaleKind = Literal["global", "local", "learned"]
FLOOR = 0.005  # of the maps below, in [-1, 1]: two thirds of an 8-bit level; keeps r_0 finite where nothing was changed

PredictionType = Literal["v_prediction", "epsilon", "sample"]
PREDICTION_TYPES = get_args(PredictionType)


def residual(sharp: Tensor, x_init: Tensor, residual_scale: Tensor | float) -> Tensor:
    """r_0 = (x - x_init) / s: what the prediction missed, in units of its standard deviation.

    The only place where a residual is made. Inputs (N, 3, H, W) in [-1, 1]; s is a number, or a map (N, 1, H, W).
    """
    return (sharp - x_init) / residual_scale


def add_residual(x_init: Tensor, r_0: Tensor, residual_scale: Tensor | float) -> Tensor:
    """x = x_init + s r_0. The only place where a residual is added back; inverse of `residual`."""
    return x_init + residual_scale * r_0


def residual_size(kind: ScaleKind, prediction: Tensor, blurry: Tensor) -> Tensor:
    """m(p) of the residual's scale s(p) = c m(p): how large the residual is expected to be around a pixel.

    One s for all pixels makes flat regions almost pure noise to remove, and edges too large; with a map r_0 has about
    unit variance everywhere (as in PriorGrad, Lee et al. 2022). The map is made from what is known when sampling:

    - global: 1. s is a number (the paper's s is 1).
    - local: the mean over 9 x 9 pixels and the channels of |x_init - y|: where the predictor changed much, it missed
      much.
    - learned: the predictor's own estimate of |x - x_init| (see `laplace_loss`), as its mean over 5 x 5 pixels.

    Args:
        prediction: x_init (N, 3, H, W) in [-1, 1], with a fourth channel for learned: the log of that estimate.
        blurry: y (N, 3, H, W) in [-1, 1].

    Returns:
        (N, 1, H, W), at least FLOOR; for global without memory of its own.
    """
    if kind == "local":
        return _box_mean((prediction[:, :3] - blurry).abs().mean(1, keepdim=True), 9) + FLOOR
    if kind == "learned":
        return _box_mean(prediction[:, 3:].exp(), 5).clamp_min(FLOOR)
    return prediction.new_ones(1, 1, 1, 1).expand(len(prediction), 1, *prediction.shape[-2:])


def laplace_loss(log_size: Tensor, error: Tensor) -> Tensor:
    """Negative log-likelihood of a residual under a Laplace distribution of mean absolute value exp(log_size).

    Lowest where exp(log_size) is the expected absolute error (Kendall & Gal 2017, in its L1 form). Counted from that of
    a residual of FLOOR, so that it is above 0 wherever the map is.

    Args:
        log_size: (N, 1, H, W).
        error: x - x_init (N, 3, H, W) in [-1, 1]; no gradient reaches it.
    """
    return (error.detach().abs().mean(1, keepdim=True) * (-log_size).exp() + log_size).mean() - math.log(FLOOR)


def _box_mean(x: Tensor, side: int) -> Tensor:
    """Mean over side x side pixels; at the border over those that there are."""
    return F.avg_pool2d(x, side, stride=1, padding=side // 2, count_include_pad=False)


def sample_alpha_bar(alphas_cumprod: Tensor, u: Tensor) -> Tensor:
    """Continuous noise levels (N,) from uniform u (N,) in [0, 1): a random step t, then uniform in its interval.

    Source: WaveGrad (Chen et al. 2021), algorithm 1, in the form SR3 (Saharia et al. 2021) uses: uniform in
    (alpha_bar_t, alpha_bar_{t-1}). u = 0 is the least noise.

    Args:
        alphas_cumprod: alpha_bar_1 .. alpha_bar_T of the training schedule.
        u: float64, on the same device.
    """
    levels = torch.cat([alphas_cumprod.new_ones(1), alphas_cumprod])
    t = (u * len(alphas_cumprod)).long() + 1
    inside = t - u * len(alphas_cumprod)  # 1 at the interval's less noisy end
    return torch.lerp(levels[t], levels[t - 1], inside.to(levels.dtype)).float()


def add_noise(r_0: Tensor, eps: Tensor, alpha_bar: Tensor) -> Tensor:
    """r_t = sqrt(alpha_bar) r_0 + sqrt(1 - alpha_bar) eps, with one alpha_bar per image (N,).

    Source: DDPM (Ho et al. 2020), equation 4, of the residual in place of the image.
    """
    a = _per_image(alpha_bar)
    return a.sqrt() * r_0 + (1 - a).sqrt() * eps


def denoiser_inputs(
    denoiser: Callable[..., Tensor], r_t: Tensor, blurry: Tensor, alpha_bar: Tensor, x_init: Tensor, s: Tensor | None
) -> tuple[Tensor, ...]:
    """What the denoiser is called with for r_t (N, 3, H, W): the scale s (N, 1, H, W), too, where it `sees_scale`."""
    scale = (s,) if getattr(denoiser, "sees_scale", False) else ()
    return r_t, blurry, alpha_bar, x_init, *scale


def denoise(denoiser: Callable[..., Tensor], *known: Tensor | None) -> Tensor:
    """What the denoiser puts out for what `denoiser_inputs` takes after it."""
    return denoiser(*denoiser_inputs(denoiser, *known))


def target(r_0: Tensor, eps: Tensor, alpha_bar: Tensor, prediction_type: PredictionType) -> Tensor:
    """What the denoiser's last layer should put out.

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
    """The denoiser's estimate of r_0 from what its last layer put out; inverse of `target` given r_t.

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
