"""The forward process of the residual, and what the denoiser is asked to predict.

Symbols as in the paper: r_0 is the residual, alpha_bar the continuous noise level, eps standard normal noise. All
arithmetic here is float32 whatever the precision of the networks.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

PredictionType = Literal["v_prediction", "epsilon", "sample"]
PREDICTION_TYPES = get_args(PredictionType)


def residual(sharp: Tensor, x_init: Tensor, residual_scale: Tensor | float) -> Tensor:
    """r_0 = (x - x_init) / s: what the prediction missed, in units of its standard deviation.

    The only place where a residual is made. Inputs (N, 3, H, W) in [-1, 1].
    """
    return (sharp - x_init) / residual_scale


def add_residual(x_init: Tensor, r_0: Tensor, residual_scale: Tensor | float) -> Tensor:
    """x = x_init + s r_0. The only place where a residual is added back; inverse of `residual`."""
    return x_init + residual_scale * r_0


def sample_alpha_bar(alphas_cumprod: Tensor, batch: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw `batch` continuous noise levels (N,): a random step t, then uniform in (alpha_bar_t, alpha_bar_{t-1}).

    Source: WaveGrad (Chen et al. 2021), algorithm 1, in the form SR3 (Saharia et al. 2021) uses: uniform in alpha_bar.

    Args:
        alphas_cumprod: alpha_bar_1 .. alpha_bar_T of the training schedule; its device is the device of the draw.
    """
    device = alphas_cumprod.device
    levels = torch.cat([alphas_cumprod.new_ones(1), alphas_cumprod])
    t = torch.randint(1, len(levels), (batch,), generator=generator, device=device)
    u = torch.rand(batch, generator=generator, device=device, dtype=levels.dtype)
    return torch.lerp(levels[t], levels[t - 1], u).float()


def add_noise(r_0: Tensor, eps: Tensor, alpha_bar: Tensor) -> Tensor:
    """r_t = sqrt(alpha_bar) r_0 + sqrt(1 - alpha_bar) eps, with one alpha_bar a picture (N,)."""
    a = _per_picture(alpha_bar)
    return a.sqrt() * r_0 + (1 - a).sqrt() * eps


def target(r_0: Tensor, eps: Tensor, alpha_bar: Tensor, prediction_type: PredictionType) -> Tensor:
    """What the denoiser's last layer should put out.

    v_prediction: v = sqrt(alpha_bar) eps - sqrt(1 - alpha_bar) r_0 (Salimans & Ho 2022, section 4); epsilon: eps (the
    paper); sample: r_0.
    """
    if prediction_type == "epsilon":
        return eps
    if prediction_type == "sample":
        return r_0
    a = _per_picture(alpha_bar)
    return a.sqrt() * eps - (1 - a).sqrt() * r_0


def estimate_r_0(output: Tensor, r_t: Tensor, alpha_bar: Tensor, prediction_type: PredictionType) -> Tensor:
    """The denoiser's estimate of r_0 from what its last layer put out; inverse of `target` given r_t."""
    if prediction_type == "sample":
        return output
    a = _per_picture(alpha_bar)
    if prediction_type == "epsilon":
        return (r_t - (1 - a).sqrt() * output) / a.sqrt()
    return a.sqrt() * r_t - (1 - a).sqrt() * output


def _per_picture(alpha_bar: Tensor) -> Tensor:
    return alpha_bar.view(-1, 1, 1, 1)
