"""Noise schedules: the levels alpha_bar that a residual passes on its way from noise, as float64 (steps,).

The noisiest level comes first, and the clean residual, of level 1, is left out. Everything else follows from levels: to
take fewer steps is an index into them, to start or end elsewhere an interpolation. SNR is alpha_bar / (1 - alpha_bar),
and sigma^2 its inverse.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

SMALLEST_RATIO = 0.001  # of neighbouring levels; at 0 no signal would be left (Nichol & Dhariwal clip betas at 0.999)
ScheduleName = Literal["linear", "cosine", "sigmoid", "log_snr"]


def linear(steps: int, beta_start: float = 1e-6, beta_end: float = 1e-2) -> Tensor:
    """Betas on a straight line, with 1 - beta the ratio of neighbouring levels (DDPM, Ho et al. 2020).

    The line has steps + 1 points from beta_start to beta_end, of which the first is the clean residual's.

    Defaults: the training schedule of SR3 (Saharia et al. 2021), with steps = 2000.
    """
    return levels_of(torch.linspace(beta_start, beta_end, steps + 1, dtype=torch.float64)[1:])


def sigmoid(steps: int, beta_start: float = 1e-6, beta_end: float = 1e-2) -> Tensor:
    """Betas on a logistic curve over [-6, 6] between beta_start and beta_end."""
    curve = torch.linspace(-6, 6, steps + 1, dtype=torch.float64)[1:].sigmoid()
    return levels_of(beta_start + (beta_end - beta_start) * curve)


def cosine(steps: int, offset: float = 0.008) -> Tensor:
    """Levels on a squared cosine (Nichol & Dhariwal 2021, equation 17)."""
    t = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    f = torch.cos((t + offset) / (1 + offset) * math.pi / 2) ** 2
    levels = f / f[0]
    return torch.maximum(levels[1:], SMALLEST_RATIO * levels[:-1]).flip(0)


def log_snr(steps: int, log_snr_max: float = 10.0, log_snr_min: float = -10.0) -> Tensor:
    """Levels evenly spaced in log-SNR, from log_snr_min to log_snr_max; one step has log_snr_min.

    These are the even steps in lambda of DPM-Solver (Lu et al. 2022, section 3.4), log-SNR being 2 lambda.
    """
    return torch.linspace(log_snr_min, log_snr_max, steps, dtype=torch.float64).sigmoid()


def respace(levels: Tensor, steps: int) -> Tensor:
    """As many evenly spaced levels of a longer schedule, always including the noisiest. ValueError if it has fewer."""
    if not 1 <= steps <= len(levels):
        raise ValueError(f"steps must be between 1 and {len(levels)}, the levels there are to visit, got {steps}")
    t = torch.arange(steps, 0, -1, dtype=torch.float64) * len(levels) / steps  # from the clean end
    return levels[len(levels) - t.round().long()]


def shorten(levels: Tensor, alpha_bar: float) -> Tensor:
    """As many levels along the same curve, cut off where it reaches `alpha_bar`.

    log alpha_bar is interpolated linearly in t. ValueError if the schedule does not reach that level.
    """
    curve = np.concatenate([[0.0], -levels.log().flip(0).numpy()])  # rising in t, from the clean residual
    wanted = -math.log(alpha_bar)
    if curve[-1] < wanted:
        last = math.sqrt(math.expm1(curve[-1]))
        raise ValueError(f"the schedule's noise ends at sigma {last:.3g}: start must not be above it")
    t = np.arange(len(curve))
    end = np.interp(wanted, curve, t)
    visited = np.linspace(end, 0, len(levels), endpoint=False)
    return torch.from_numpy(np.exp(-np.interp(visited, t, curve)))


def narrow(levels: Tensor, sigma_min: float, sigma_max: float) -> Tensor:
    """As many levels along the same curve, none of them outside of sigma_min to sigma_max.

    A schedule within these bounds stays as it is. Otherwise its steps are spread over the part of the curve within
    them, and end at the bound where the curve leaves them; ln sigma is interpolated linearly in t. A single step visits
    the noisiest level.

    Args:
        levels: of the schedule.
        sigma_min, sigma_max: 0 or more, and at most infinite.

    Raises:
        ValueError: the curve has no part within the bounds.
    """
    log_sigma = -levels.logit().flip(0) / 2  # rising in t
    bounds = torch.tensor([sigma_min, sigma_max], dtype=torch.float64).log().tolist()
    ends = log_sigma[[0, -1]].clamp(*bounds).tolist()
    if ends == log_sigma[[0, -1]].tolist():
        return levels
    if log_sigma[-1] < bounds[0] or (len(levels) > 1 and ends[0] == ends[1]):
        first, last = log_sigma[[0, -1]].exp().tolist()
        raise ValueError(
            f"the schedule's noise levels, sigma {first:.3g} to {last:.3g}, lie outside those of the checkpoint's"
            f" training, {sigma_min:g} to {sigma_max:g}"
        )
    t = np.arange(len(levels))
    visited = np.linspace(*np.interp(ends[::-1], log_sigma, t), len(levels))
    return (-2 * torch.from_numpy(np.interp(visited, t, log_sigma)).clamp(*bounds)).sigmoid()


def level_of(sigma: float) -> float:
    """alpha_bar = 1 / (1 + sigma^2), the noise level with (1 - alpha_bar) / alpha_bar = sigma^2."""
    return 1 / (1 + sigma**2)


def levels_of(betas: Tensor) -> Tensor:
    """Levels from DDPM's betas, which files hold, the least noisy first: products of 1 - beta."""
    return (1 - betas).cumprod(0).flip(0)


def betas_of(levels: Tensor) -> Tensor:
    """DDPM's betas, the least noisy first, from levels: the inverse of `levels_of`."""
    rising = levels.flip(0)
    return 1 - rising / torch.cat([rising.new_ones(1), rising[:-1]])


@dataclass(frozen=True)
class NoiseSchedule:
    """A schedule as a config file gives it: a name and numbers.

    Args:
        name: its shape, linear, cosine, sigmoid or log_snr; or the path of your own, such as myschedules.karras: a
            function from the number of steps to levels alpha_bar, the noisiest first (docs/extend.md).
        steps: number of levels.
        beta_start: beta of the first step (linear, sigmoid).
        beta_end: beta of the last, noisiest step (linear, sigmoid).
        log_snr_max: log-SNR of the first step (log_snr).
        log_snr_min: log-SNR of the last step (log_snr).
    """

    name: str = "linear"
    steps: int = 2000
    beta_start: float = 1e-6
    beta_end: float = 1e-2
    log_snr_max: float = 10.0
    log_snr_min: float = -10.0

    def levels(self) -> Tensor:
        """The levels (steps,), float64. ValueError if a number is out of range, or there is no such schedule."""
        if self.steps < 1:
            raise ValueError(f"steps must be 1 or more, got {self.steps}")
        if self.name == "cosine":
            return cosine(self.steps)
        if self.name == "log_snr":
            if not self.log_snr_max > self.log_snr_min:
                ends = f"{self.log_snr_max} and {self.log_snr_min}"
                raise ValueError(f"log_snr_max must be above log_snr_min, got {ends}")
            return log_snr(self.steps, self.log_snr_max, self.log_snr_min)
        if self.name not in get_args(ScheduleName):
            return own_levels(self.name, self.steps)
        if not 0 < self.beta_start <= self.beta_end < 1:
            ends = f"{self.beta_start} and {self.beta_end}"
            raise ValueError(f"betas must satisfy 0 < beta_start <= beta_end < 1, got {ends}")
        return {"linear": linear, "sigmoid": sigmoid}[self.name](self.steps, self.beta_start, self.beta_end)


def own_levels(path: str, steps: int) -> Tensor:
    """The levels of a user's own schedule, from its path. ValueError if it cannot be had, or gives none."""
    known = f"it is one of {', '.join(get_args(ScheduleName))}, or the path of a function, such as myschedules.karras"
    if "." not in path:
        raise ValueError(f"schedule {path!r} is unknown: {known}")
    try:
        schedule: Callable = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"schedule {path} cannot be imported ({error}): {known}, on PYTHONPATH") from None
    levels = torch.as_tensor(schedule(steps), dtype=torch.float64)
    rising = levels.ndim == 1 and bool((levels.diff() > 0).all() and (levels > 0).all() and (levels < 1).all())
    if not rising or len(levels) != steps:
        raise ValueError(
            f"schedule {path} must give {steps} levels alpha_bar between 0 and 1 for {steps} steps, the noisiest first"
        )
    return levels
