"""The consistency flow's path from noise to the residual, and the noise level that the denoiser is told along it.

It is a second way to train and sample the refiner, in few steps and without a teacher: ELIR (arXiv 2502.03500), after
consistency flow matching (Yang et al. 2024, arXiv 2407.02398). This module imports nothing heavy: its functions accept
numbers and tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

START = 10.0  # noise level that the denoiser is told at tau = 0: sigma, with sigma^2 = (1 - alpha_bar) / alpha_bar


@dataclass(frozen=True)
class Flow:
    """A straight path r_tau = (1 - tau) sigma eps + tau r_0, tau from 0 to 1, in segments of equal length.

    In image space the path is x_init + s r_tau. It starts at the prediction plus noise of the residual's size and ends
    at the sharp image.

    Args:
        sigma: standard deviation of the noise at the start of the path, in units of r_0.
        segments: number of parts of the path. The velocity is trained to be consistent within each, so one step can
            cross it.

    Raises:
        ValueError: sigma is not above 0, or segments is not a positive whole number.
    """

    sigma: float = 0.5
    segments: int = 5

    def __post_init__(self):
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise ValueError(f"a flow's sigma must be a number above 0, got {self.sigma!r}")
        if not isinstance(self.segments, int) or self.segments < 1:
            raise ValueError(f"a flow's segments must be a whole number of 1 or more, got {self.segments!r}")

    def size(self, tau: Tensor | float) -> Tensor | float:
        """Standard deviation of r_tau for an r_0 of unit variance.

        The denoiser is given r_t = r_tau / size. This is also a state of the diffusion, with alpha_bar = tau^2 /
        size^2, so a denoiser trained by diffusion is a good starting point.
        """
        return (tau**2 + ((1 - tau) * self.sigma) ** 2) ** 0.5

    def level(self, tau: Tensor | float) -> Tensor | float:
        """The alpha_bar that the denoiser is told at tau, in (0, 1].

        It is (tau^2 + d^2) / (tau^2 + d^2 + (1 - tau)^2 sigma^2) with d = sigma / START; d = 0 would give the level of
        r_t. Every sample starts at tau = 0, where the log-SNR of r_t falls to minus infinity: d keeps that level close
        to its neighbours'. It also keeps divisions by sqrt(alpha_bar) finite, and lets a denoiser that sees
        sqrt(alpha_bar) r_t see a tenth of the initial noise instead of none.
        """
        signal = tau**2 + (self.sigma / START) ** 2
        return signal / (signal + ((1 - tau) * self.sigma) ** 2)
