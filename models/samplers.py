"""The reverse process: sample a residual step by step, from noise to an image's r_0.

The steps of DDPM and DDIM are functions here; those of DPM-Solver++ and UniPC are diffusers'. All are given estimates
of r_0, whatever the denoiser predicts: r_0 is needed anyway, to be clipped to the image's range.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from deblur.models.diffusion import clip_residual, estimate_r_0
from deblur.models.networks.base import SchedulerMixin, randn_tensor
from deblur.models.schedules import level_of
from deblur.seeds import noise_seed
from deblur.settings import Sampler, SamplingSettings

BAND = 1 << 22  # pixels of a large photo that are stepped together
# Tensors of an image's size that are allocated during a step, the estimate of r_0 among them. Our own steps take bands
# of rows; the multistep solvers of diffusers keep estimates and compute on whole images.
FIELDS: dict[Sampler, int] = {"ddpm": 3, "ddim": 3, "dpmsolver++": 6, "unipc": 10}

Progress = Callable[[Iterable], Iterable]
Tiled = Callable[[Callable[..., Tensor], Sequence[Tensor]], Tensor]


def ddpm_step(r_t: Tensor, r_0: Tensor, a_t: float, a_next: float, z: Tensor) -> Tensor:
    """One ancestral step, from r_t to the residual at the next noise level.

    sqrt(a_next) b / (1 - a_t) r_0 + sqrt(1 - b) (1 - a_next) / (1 - a_t) r_t + sqrt(b) z, with b = 1 - a_t / a_next.
    Source: Ho et al. 2020, equation 7, with the variance b, as in SR3, on which the paper builds.

    Args:
        r_t, r_0: the noisy residual and the estimate of r_0, (N, 3, H, W).
        a_t, a_next: alpha_bar before and after the step.
        z: standard normal noise of that shape.
    """
    b = 1 - a_t / a_next
    mean = math.sqrt(a_next) * b / (1 - a_t) * r_0 + math.sqrt(1 - b) * (1 - a_next) / (1 - a_t) * r_t
    return mean + math.sqrt(b) * z


def ddim_step(r_t: Tensor, r_0: Tensor, a_t: float, a_next: float, eta: float, z: Tensor | None) -> Tensor:
    """One DDIM step, from r_t to the residual at the next noise level.

    sqrt(a_next) r_0 + sqrt(1 - a_next - sigma^2) eps + sigma z, with eps, the noise in r_t that r_0 leaves, and sigma,
    the share eta of the exact posterior's deviation. Source: Song et al. 2021, equations 12 and 16.

    Args:
        r_t, r_0: the noisy residual and the estimate of r_0, (N, 3, H, W).
        a_t, a_next: alpha_bar before and after the step.
        eta: 0 is deterministic, 1 has the variance of the posterior.
        z: standard normal noise of that shape; None for eta 0.
    """
    eps = (r_t - math.sqrt(a_t) * r_0) / math.sqrt(1 - a_t)
    sigma = eta * math.sqrt((1 - a_next) / (1 - a_t) * (1 - a_t / a_next))
    r_next = math.sqrt(a_next) * r_0 + math.sqrt(1 - a_next - sigma**2) * eps
    return r_next if z is None else r_next + sigma * z


def make_solver(sampler: Sampler, betas: Tensor) -> SchedulerMixin:
    """The multistep scheduler of diffusers for `dpmsolver++` or `unipc`, which keeps estimates between its steps.

    Args:
        betas: float64 (steps,) of the schedule, each level of which it visits once, the noisiest first.
    """
    # Imported here: these two import SciPy's statistics.
    from diffusers import DPMSolverMultistepScheduler, UniPCMultistepScheduler

    kind = DPMSolverMultistepScheduler if sampler == "dpmsolver++" else UniPCMultistepScheduler
    solver = kind(
        num_train_timesteps=len(betas),
        trained_betas=betas.tolist(),
        prediction_type="sample",
        timestep_spacing="trailing",
    )
    # diffusers computes the product in float32, where 1 - 1e-6 loses its digits.
    solver.alphas_cumprod = (1 - betas).cumprod(0)
    solver.set_timesteps(len(betas))
    return solver


def noise_generator(seed: int, name: str, sample: int) -> torch.Generator:
    """The random generator of one sample of one image, seeded only by the seed, the name and the sample's number.

    A CPU generator, so the noise is the same on every device, in every batch and in every order.
    """
    return torch.Generator().manual_seed(noise_seed(seed, sample, name))


@torch.no_grad()
def sample_residual(
    denoise: Callable[[Tensor, float], Tensor],
    settings: SamplingSettings,
    betas: Tensor,
    progress: Progress,
    like: Tensor,
    generators: list[torch.Generator],
) -> Tensor:
    """Sample the scaled residual r_0 (the paper's section 3; Ho et al. 2020, algorithm 2).

    It starts at the schedule's noisiest level, alpha_bar_T, from sqrt(1 - alpha_bar_T) eps. That is pure noise if
    alpha_bar_T is near 0, and otherwise noise around r_0 = 0, the prediction. Each step goes from r_t and the estimate
    of r_0 to the next level; the last one ends at its estimate.

    Args:
        denoise: (r_t, alpha_bar) -> the estimate of r_0, all (N, 3, H, W); see `Denoise`.
        settings: the sampler and its eta.
        betas: float64 (steps,) of the schedule, from `SamplingSettings.betas`.
        progress: wraps the steps, e.g. tqdm.
        like: has the shape, device and dtype of r_0.
        generators: one per image.
    """
    levels = (1 - betas).cumprod(0).flip(0).tolist()
    solver = make_solver(settings.sampler, betas) if settings.sampler in ("dpmsolver++", "unipc") else None
    r_t = math.sqrt(1 - levels[0]) * randn_tensor(like.shape, generators, like.device, like.dtype)
    for k, a_t in enumerate(progress(levels)):
        r_0 = denoise(r_t, a_t)
        if k + 1 < len(levels):
            if solver is None:
                _step_bands(r_t, r_0, a_t, levels[k + 1], settings, generators)
            else:
                r_t = solver.step(r_0, solver.timesteps[k], r_t).prev_sample
            del r_0  # before the next one is made: a large photo has no memory for both
    return r_0


def _step_bands(
    r_t: Tensor, r_0: Tensor, a_t: float, a_next: float, settings: SamplingSettings, generators: list[torch.Generator]
) -> None:
    """Replace r_t by the next residual, in bands of rows: steps are elementwise, so their temporaries stay small."""
    rows = max(1, BAND // r_t.shape[-1])
    for band, estimate in zip(r_t.split(rows, dim=-2), r_0.split(rows, dim=-2), strict=True):
        stochastic = settings.sampler == "ddpm" or settings.eta > 0
        z = randn_tensor(band.shape, generators, band.device, band.dtype) if stochastic else None
        if settings.sampler == "ddpm":
            band.copy_(ddpm_step(band, estimate, a_t, a_next, z))
        else:
            band.copy_(ddim_step(band, estimate, a_t, a_next, settings.eta, z))


@dataclass(frozen=True)
class Denoise:
    """The denoiser's estimate of r_0, on whole images or in tiles, clipped so that x_init + s r_0 stays in [-1, 1].

    Args:
        denoiser: f(r_t, blurry, alpha_bar, x_init, s); has an attribute `prediction_type`.
        tiling: calls a function on images (N, C, H, W), as `deblur.tiling.Tiling` does.
        blurry, x_init: (N, 3, H, W) in [-1, 1].
        s: (N, 1, H, W) or, for r_0 in luma and chroma, (N, 3, H, W).
        sigma_min, sigma_max: the least and the noisiest level that the denoiser was trained on. Beyond them it is told
            these: at a level that it never saw its estimate can be far off.
    """

    denoiser: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    tiling: Tiled
    blurry: Tensor
    x_init: Tensor
    s: Tensor
    sigma_min: float = 0.0
    sigma_max: float = math.inf

    def __call__(self, r_t: Tensor, alpha_bar: float) -> Tensor:
        """The estimate (N, 3, H, W) of r_0 from r_t at one noise level."""
        told = min(max(alpha_bar, level_of(self.sigma_max)), level_of(self.sigma_min))
        return self.tiling(partial(self._estimate, told), [r_t, self.blurry, self.x_init, self.s])

    def _estimate(self, told: float, r_t: Tensor, blurry: Tensor, x_init: Tensor, s: Tensor) -> Tensor:
        alpha_bar = torch.full((len(r_t),), told, dtype=r_t.dtype, device=r_t.device)
        output = self.denoiser(r_t, blurry, alpha_bar, x_init, s)
        r_0 = estimate_r_0(output, r_t, alpha_bar, self.denoiser.prediction_type)
        return clip_residual(r_0, x_init, s)
