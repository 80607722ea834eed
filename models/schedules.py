"""Noise schedules: compute betas from a name and a few numbers.

Every schedule returns a 1-D float64 tensor of `steps` betas in (0, 1), first step (least noise) first. The noise
level after step t is alpha_bar_t = (1 - beta_1) ... (1 - beta_t), with alpha_bar_0 = 1.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# A beta of exactly 1 would leave no signal and cause a division by zero; Nichol & Dhariwal clip at the same value.
MAX_BETA = 0.999


def linear(steps: int, beta_start: float = 1e-6, beta_end: float = 1e-2) -> Tensor:
    """Betas on a straight line.

    The line has steps + 1 points from beta_start (t = 0) to beta_end (t = steps). Step 0 is the clean residual
    (alpha_bar_0 = 1), so its beta is never used and is left out.

    Defaults: the training schedule of SR3 (Saharia et al. 2021), with steps = 2000.
    """
    return torch.linspace(beta_start, beta_end, steps + 1, dtype=torch.float64)[1:]


def sigmoid(steps: int, beta_start: float = 1e-6, beta_end: float = 1e-2) -> Tensor:
    """Betas on a logistic curve over [-6, 6] between beta_start and beta_end."""
    curve = torch.linspace(-6, 6, steps + 1, dtype=torch.float64)[1:].sigmoid()
    return beta_start + (beta_end - beta_start) * curve


def cosine(steps: int, offset: float = 0.008) -> Tensor:
    """alpha_bar on a squared cosine (Nichol & Dhariwal 2021, equation 17), betas clipped at 0.999."""
    t = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    f = torch.cos((t + offset) / (1 + offset) * math.pi / 2) ** 2
    return _betas((f / f[0])[1:]).clamp(max=MAX_BETA)


def log_snr(steps: int, log_snr_max: float = 10.0, log_snr_min: float = -10.0) -> Tensor:
    """Noise levels evenly spaced in log-SNR = log(alpha_bar / (1 - alpha_bar)).

    The first step has log_snr_max, the last one log_snr_min; with one step, log_snr_min. These are the even steps in
    lambda of DPM-Solver (Lu et al. 2022, section 3.4), log-SNR being 2 lambda.
    """
    levels = torch.linspace(log_snr_min, log_snr_max, steps, dtype=torch.float64).flip(0)
    return _betas(levels.sigmoid())


def respace(alphas_cumprod: Tensor, steps: int) -> Tensor:
    """Betas of a schedule that visits `steps` evenly spaced levels of a longer one, always including the noisiest.

    Args:
        alphas_cumprod: alpha_bar_1 .. alpha_bar_T of the longer schedule.
        steps: at most T.
    """
    T = len(alphas_cumprod)
    if not 1 <= steps <= T:
        raise ValueError(f"steps must be between 1 and {T}, the levels there are to visit, got {steps}")
    visited = (torch.arange(1, steps + 1, dtype=torch.float64) * T / steps).round().long() - 1
    return _betas(alphas_cumprod.double().cpu()[visited])


def shorten(betas: Tensor, alpha_bar: float) -> Tensor:
    """Betas with as many steps along the same curve, cut off where it reaches `alpha_bar`.

    log alpha_bar is interpolated linearly in t. ValueError if the schedule does not reach that level.
    """
    curve = torch.cat([torch.zeros(1, dtype=torch.float64), (1 - betas).log().cumsum(0)]).neg()  # rising from 0
    wanted = -math.log(alpha_bar)
    if curve[-1] < wanted:
        last = math.sqrt(math.expm1(curve[-1].item()))
        raise ValueError(f"the schedule's noise ends at sigma {last:.3g}: start must not be above it")
    after = int(torch.searchsorted(curve, wanted))
    end = after - 1 + (wanted - curve[after - 1]) / (curve[after] - curve[after - 1])
    t = torch.linspace(0, 1, len(betas) + 1, dtype=torch.float64) * end
    before = t.long().clamp(max=len(betas) - 1)
    levels = torch.lerp(curve[before], curve[before + 1], t - before)
    return _betas(levels.neg().exp()[1:])


def narrow(betas: Tensor, sigma_min: float, sigma_max: float) -> Tensor:
    """Betas with as many steps along the same curve, which visit no noise level outside of sigma_min to sigma_max.

    A schedule within these bounds stays as it is. Otherwise its steps are spread over the part of the curve within
    them, and end at the bound where the curve leaves them; ln sigma is interpolated linearly in t. A single step visits
    the noisiest level.

    Args:
        betas: of the schedule.
        sigma_min, sigma_max: 0 or more, and at most infinite.

    Raises:
        ValueError: the curve has no part within the bounds.
    """
    log_alpha_bar = (-betas).log1p().cumsum(0)
    log_sigma = ((-log_alpha_bar.expm1()).log() - log_alpha_bar) / 2  # rising in t
    bounds = torch.tensor([sigma_min, sigma_max], dtype=torch.float64).log().tolist()
    ends = log_sigma[[0, -1]].clamp(*bounds).tolist()
    if ends == log_sigma[[0, -1]].tolist():
        return betas
    if log_sigma[-1] < bounds[0] or (len(betas) > 1 and ends[0] == ends[1]):
        first, last = log_sigma[[0, -1]].exp().tolist()
        raise ValueError(
            f"the schedule's noise levels, sigma {first:.3g} to {last:.3g}, lie outside those of the checkpoint's"
            f" training, {sigma_min:g} to {sigma_max:g}"
        )
    t = np.arange(len(betas))
    visited = np.linspace(*np.interp(ends, log_sigma, t), len(betas))
    levels = torch.from_numpy(np.interp(visited, t, log_sigma)).clamp(*bounds)
    return _betas((-2 * levels).sigmoid())


def level_of(sigma: float) -> float:
    """alpha_bar = 1 / (1 + sigma^2), the noise level with (1 - alpha_bar) / alpha_bar = sigma^2."""
    return 1 / (1 + sigma**2)


@dataclass(frozen=True)
class NoiseSchedule:
    """A schedule as a config file gives it: a name and numbers.

    Args:
        name: shape of the schedule.
        steps: number of betas.
        beta_start: beta of the first step (linear, sigmoid).
        beta_end: beta of the last, noisiest step (linear, sigmoid).
        log_snr_max: log-SNR of the first step (log_snr).
        log_snr_min: log-SNR of the last step (log_snr).
    """

    name: Literal["linear", "cosine", "sigmoid", "log_snr"] = "linear"
    steps: int = 2000
    beta_start: float = 1e-6
    beta_end: float = 1e-2
    log_snr_max: float = 10.0
    log_snr_min: float = -10.0

    def betas(self) -> Tensor:
        """The betas (steps,), float64. ValueError if a number is out of range."""
        if self.steps < 1:
            raise ValueError(f"steps must be 1 or more, got {self.steps}")
        if self.name == "cosine":
            return cosine(self.steps)
        if self.name == "log_snr":
            if not self.log_snr_max > self.log_snr_min:
                ends = f"{self.log_snr_max} and {self.log_snr_min}"
                raise ValueError(f"log_snr_max must be above log_snr_min, got {ends}")
            return log_snr(self.steps, self.log_snr_max, self.log_snr_min)
        if not 0 < self.beta_start <= self.beta_end < 1:
            ends = f"{self.beta_start} and {self.beta_end}"
            raise ValueError(f"betas must satisfy 0 < beta_start <= beta_end < 1, got {ends}")
        return {"linear": linear, "sigmoid": sigmoid}[self.name](self.steps, self.beta_start, self.beta_end)


def _betas(alpha_bar: Tensor) -> Tensor:
    """beta_t = 1 - alpha_bar_t / alpha_bar_{t-1}, from alpha_bar_1 .. alpha_bar_T."""
    return 1 - alpha_bar / F.pad(alpha_bar[:-1], (1, 0), value=1.0)
