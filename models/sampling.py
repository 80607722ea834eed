"""The reverse process: build a diffusers scheduler from the settings, and sample a residual step by step."""

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from base.seeds import noise_seed
from models.diffusion import clip_residual, estimate_r_0
from models.parts import DDIMScheduler, DDPMScheduler, SchedulerMixin, randn_tensor
from models.schedules import level_of
from models.settings import SamplingSettings

BAND = 1 << 22  # pixels of a large photo that are stepped together

Progress = Callable[[Iterable], Iterable]
Tiled = Callable[[Callable[..., Tensor], Sequence[Tensor]], Tensor]


def make_scheduler(
    settings: SamplingSettings, training_betas: Tensor, sigma_min: float = 0.0, sigma_max: float = math.inf
) -> SchedulerMixin:
    """A diffusers scheduler that visits every level of the schedule in `settings` once, noisiest first.

    The levels stay between sigma_min and sigma_max, which the denoiser was trained on.
    It is given estimates of r_0 (prediction_type "sample"), whatever the denoiser predicts: r_0 is needed anyway, to be
    clipped to the image's range. DDPM's variance is beta_t, as in SR3, on which the paper builds.
    """
    betas = settings.betas(training_betas, sigma_min, sigma_max)
    table = {"num_train_timesteps": len(betas), "trained_betas": betas.tolist(), "prediction_type": "sample"}
    if settings.sampler == "ddpm":
        scheduler = DDPMScheduler(**table, clip_sample=False, variance_type="fixed_large")
    elif settings.sampler == "ddim":
        scheduler = DDIMScheduler(**table, clip_sample=False)
    elif settings.sampler == "dpmsolver++":
        from diffusers import DPMSolverMultistepScheduler  # imported here: these two import SciPy's statistics

        scheduler = DPMSolverMultistepScheduler(**table, timestep_spacing="trailing")
    else:
        from diffusers import UniPCMultistepScheduler

        scheduler = UniPCMultistepScheduler(**table, timestep_spacing="trailing")
    # diffusers computes the product in float32, where 1 - 1e-6 loses its digits.
    scheduler.alphas_cumprod = (1 - betas).cumprod(0)
    scheduler.set_timesteps(len(betas))
    return scheduler


def noise_generator(seed: int, name: str, sample: int) -> torch.Generator:
    """The random generator of one sample of one image, seeded only by the seed, the name and the sample's number.

    A CPU generator, so the noise is the same on every device, in every batch and in every order.
    """
    return torch.Generator().manual_seed(noise_seed(seed, sample, name))


@torch.no_grad()
def sample_residual(
    denoise: Callable[[Tensor, float], Tensor],
    scheduler: SchedulerMixin,
    eta: float,
    progress: Progress,
    like: Tensor,
    generators: list[torch.Generator],
) -> Tensor:
    """Sample the scaled residual r_0 (the paper's section 3; Ho et al. 2020, algorithm 2).

    It starts at the schedule's noisiest level, alpha_bar_T, from sqrt(1 - alpha_bar_T) eps. That is pure noise if
    alpha_bar_T is near 0, and otherwise noise around r_0 = 0, the prediction. Each step goes from r_t and the estimate
    of r_0 to r_{t-1}.

    Args:
        denoise: (r_t, alpha_bar) -> the estimate of r_0, all (N, 3, H, W); see `Denoise`.
        scheduler: from `make_scheduler`.
        eta: for DDIM.
        progress: wraps the steps, e.g. tqdm.
        like: has the shape, device and dtype of r_0.
        generators: one per image.
    """
    levels = scheduler.alphas_cumprod[scheduler.timesteps.cpu()].tolist()
    r_t = math.sqrt(1 - levels[0]) * randn_tensor(like.shape, generators, like.device, like.dtype)
    step = Stepper(scheduler, eta, generators)
    for t, alpha_bar in zip(scheduler.timesteps.tolist(), progress(levels), strict=True):
        r_0 = denoise(r_t, alpha_bar)
        if t > 0:  # the last step of every sampler ends at its estimate
            step(r_0, t, r_t)
            del r_0  # before the next one is made: a large photo has no memory for both
    return r_0


class Stepper:
    """A scheduler's step on images in bands of rows: it is elementwise, and so its temporaries stay small.

    Multistep schedulers keep estimates between steps, so each band has a scheduler of its own.
    """

    def __init__(self, scheduler: SchedulerMixin, eta: float, generators: list[torch.Generator]):
        self.scheduler, self.bands, self.options = scheduler, [], {}
        if isinstance(scheduler, DDIMScheduler):
            self.options = {"eta": eta, "generator": generators}
        elif isinstance(scheduler, DDPMScheduler):
            self.options = {"generator": generators}

    def __call__(self, r_0: Tensor, t: int, r_t: Tensor) -> None:
        """Replace r_t by r_{t-1}, given the estimate of r_0; all (N, 3, H, W)."""
        rows = max(1, BAND // r_t.shape[-1])
        self.bands = self.bands or [deepcopy(self.scheduler) for _ in range(0, r_t.shape[-2], rows)]
        parts = zip(self.bands, r_0.split(rows, dim=-2), r_t.split(rows, dim=-2), strict=True)
        for scheduler, estimate, band in parts:
            before = band.clone()  # multistep schedulers keep it
            band.copy_(scheduler.step(estimate, t, before, **self.options).prev_sample)


@dataclass(frozen=True)
class Denoise:
    """The denoiser's estimate of r_0, on whole images or in tiles, clipped so that x_init + s r_0 stays in [-1, 1].

    Args:
        denoiser: f(r_t, blurry, alpha_bar, x_init, s); has an attribute `prediction_type`.
        tiling: calls a function on images (N, C, H, W), as `models.tiling.Tiling` does.
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
        # The level is an image without memory of its own, which is tiled like the others.
        level = torch.tensor(told, device=r_t.device, dtype=r_t.dtype).expand_as(self.s[:, :1])
        return self.tiling(self._estimate, [r_t, self.blurry, self.x_init, level, self.s])

    def _estimate(self, r_t: Tensor, blurry: Tensor, x_init: Tensor, level: Tensor, s: Tensor) -> Tensor:
        alpha_bar = level[:, 0, 0, 0]
        output = self.denoiser(r_t, blurry, alpha_bar, x_init, s)
        r_0 = estimate_r_0(output, r_t, alpha_bar, self.denoiser.prediction_type)
        return clip_residual(r_0, x_init, s)
