"""The consistency flow's path from noise to the residual, and what the denoiser is told along it.

A second way to train and sample the refiner, in few steps and without a teacher: ELIR (arXiv 2502.03500), after
consistency flow matching (Yang et al. 2024, arXiv 2407.02398). Nothing heavy is imported: the functions take numbers
and tensors alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

START = 10.0  # noise level that the denoiser is told at tau = 0, as sigma^2 = (1 - alpha_bar) / alpha_bar


@dataclass(frozen=True)
class Flow:
    """A straight path r_tau = (1 - tau) sigma eps + tau r_0, tau from 0 to 1, in segments of equal length.

    In the image that is x_init + s (1 - tau) sigma eps at first, the prediction with noise of the residual's size, and
    the sharp image in the end.

    Args:
        sigma: standard deviation of the noise that the path starts from, in units of r_0.
        segments: parts of the path, within each of which the velocity was made consistent: one step crosses it.

    Raises:
        ValueError: sigma is not above 0, or segments no whole number of 1 or more.
    """

    sigma: float = 0.5
    segments: int = 5

    def __post_init__(self):
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise ValueError(f"a flow's sigma must be a number above 0, got {self.sigma!r}")
        if not isinstance(self.segments, int) or self.segments < 1:
            raise ValueError(f"a flow's segments must be a whole number of 1 or more, got {self.segments!r}")

    def size(self, tau: Tensor | float) -> Tensor | float:
        """Standard deviation of r_tau where that of r_0 is 1.

        The denoiser is handed r_t = r_tau / size: then it is a state of the diffusion, too, of alpha_bar = tau^2 /
        size^2, and a denoiser trained by diffusion is a good start.
        """
        return (tau**2 + ((1 - tau) * self.sigma) ** 2) ** 0.5

    def level(self, tau: Tensor | float) -> Tensor | float:
        """alpha_bar as the denoiser is told it at tau: (tau^2 + d^2) / (tau^2 + d^2 + (1 - tau)^2 sigma^2), in (0, 1].

        With d = 0 it is that of r_t. d = sigma / START keeps the start, where every sample begins, at a level that
        resembles its neighbours': log-SNR would fall to minus infinity there. It also leaves all that is divided by
        sqrt(alpha_bar) finite, and to a denoiser that sees sqrt(alpha_bar) r_t a tenth of the noise that its sample is
        to be made of, in place of nothing.
        """
        signal = tau**2 + (self.sigma / START) ** 2
        return signal / (signal + ((1 - tau) * self.sigma) ** 2)
