"""The reverse process: sample a residual step by step, from noise to an image's r_0.

The steps of DDPM and DDIM are functions here; those of DPM-Solver++ and UniPC are diffusers'. A step is given r_t, the
estimate of r_0, the level a of r_t, the next level, and `randn`, which makes standard normal noise of a shape.
"""

import math
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor

from deblur.models.diffusion import clip_residual
from deblur.models.schedules import betas_of

Randn = Callable[[torch.Size], Tensor]
Step = Callable[[Tensor, Tensor, float, float, Randn], Tensor]


def ddpm_step(r_t: Tensor, r_0: Tensor, a: float, a_next: float, randn: Randn) -> Tensor:
    """One ancestral step, from r_t to the residual at the next noise level.

    sqrt(a_next) b / (1 - a) r_0 + sqrt(1 - b) (1 - a_next) / (1 - a) r_t + sqrt(b) z, with b = 1 - a / a_next.
    Source: Ho et al. 2020, equation 7, with the variance b, as in SR3, on which the paper builds.
    """
    b = 1 - a / a_next
    mean = math.sqrt(a_next) * b / (1 - a) * r_0 + math.sqrt(1 - b) * (1 - a_next) / (1 - a) * r_t
    return mean + math.sqrt(b) * randn(r_t.shape)


def ddim_step(r_t: Tensor, r_0: Tensor, a: float, a_next: float, randn: Randn, eta: float = 1.0) -> Tensor:
    """One DDIM step, from r_t to the residual at the next noise level.

    sqrt(a_next) r_0 + sqrt(1 - a_next - sigma^2) eps + sigma z, with eps, the noise in r_t that r_0 leaves, and sigma,
    the share eta of the exact posterior's deviation: 0 is deterministic. Source: Song et al. 2021, equations 12 and 16.
    """
    eps = (r_t - math.sqrt(a) * r_0) / math.sqrt(1 - a)
    sigma = eta * math.sqrt((1 - a_next) / (1 - a) * (1 - a / a_next))
    r_next = math.sqrt(a_next) * r_0 + math.sqrt(1 - a_next - sigma**2) * eps
    return r_next if eta == 0 else r_next + sigma * randn(r_t.shape)


class Multistep:
    """The steps of diffusers' DPM-Solver++ or UniPC, which keep estimates between them: for one sample.

    Attributes:
        solver: diffusers' scheduler, the only one here to which a schedule is given as betas.
    """

    def __init__(self, sampler: Literal["dpmsolver++", "unipc"], levels: Tensor):
        # Imported here: these two import SciPy's statistics.
        from diffusers import DPMSolverMultistepScheduler, UniPCMultistepScheduler

        kind = DPMSolverMultistepScheduler if sampler == "dpmsolver++" else UniPCMultistepScheduler
        self.solver = kind(
            num_train_timesteps=len(levels),
            trained_betas=betas_of(levels).tolist(),
            prediction_type="sample",
            timestep_spacing="trailing",
        )
        # diffusers computes the product in float32, where 1 - 1e-6 loses its digits.
        self.solver.alphas_cumprod = levels.flip(0)
        self.solver.set_timesteps(len(levels))
        self.taken = 0

    def __call__(self, r_t: Tensor, r_0: Tensor, a: float, a_next: float, randn: Randn) -> Tensor:
        t = self.solver.timesteps[self.taken]
        self.taken += 1
        return self.solver.step(r_0, t, r_t).prev_sample


@torch.no_grad()
def sample(
    f: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor],
    y: Tensor,
    x_init: Tensor,
    s: Tensor,
    levels: Tensor,
    step: Step,
    randn: Randn,
    progress: Callable[[Iterable], Iterable] = iter,
    clip: Callable[[Tensor, Tensor, Tensor], Tensor] = clip_residual,
) -> Tensor:
    """Sample the scaled residual r_0 (N, 3, H, W) (the paper's section 3; Ho et al. 2020, algorithm 2).

    It starts at the noisiest level, a, from sqrt(1 - a) eps. That is pure noise if a is near 0, and otherwise noise
    around r_0 = 0, the prediction. Each step goes from r_t and the estimate of r_0 to the next level; the last one ends
    at its estimate.

    Args:
        f: (r_t, y, a, x_init, s) -> an estimate of r_0, such as `diffusion.Estimator`.
        y, x_init: (N, 3, H, W) in [-1, 1].
        s: (N, 1, H, W) or, for r_0 in luma and chroma, (N, 3, H, W).
        levels: float64 (steps,), the noisiest first.
        step: from a level to the next one.
        randn: makes standard normal noise of a shape.
        progress: wraps the levels, e.g. tqdm.
        clip: (r_0, x_init, s) -> the nearest r_0 with which x_init + s r_0 is an image.
    """
    levels = levels.tolist()
    r_t = math.sqrt(1 - levels[0]) * randn(y.shape)
    for k, a in enumerate(progress(levels)):
        r_0 = f(r_t, y, torch.full((len(y),), a, dtype=y.dtype, device=y.device), x_init, s)
        r_0 = clip(r_0, x_init, s)  # r_0 is needed for it, whatever the network predicts
        if k + 1 < len(levels):
            r_t = step(r_t, r_0, a, levels[k + 1], randn)
            del r_0  # before the next one is made: a large photo has no memory for both
    return r_0
