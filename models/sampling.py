"""The reverse process: build a diffusers scheduler from the settings, and sample a residual step by step."""

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor

from base.seeds import noise_seed
from models.diffusion import estimate_r_0, residual
from models.parts import DDIMScheduler, DDPMScheduler, SchedulerMixin, randn_tensor
from models.settings import SamplingSettings

BAND = 1 << 22  # pixels of a large photo that are stepped together

Progress = Callable[[Iterable], Iterable]
Tiled = Callable[[Callable[..., Tensor], Sequence[Tensor]], Tensor]


def make_scheduler(settings: SamplingSettings, training_betas: Tensor) -> SchedulerMixin:
    """A diffusers scheduler that visits every level of the schedule in `settings` once, noisiest first.

    It is given estimates of r_0 (prediction_type "sample"), whatever the denoiser predicts: r_0 is needed anyway, to be
    clipped to the image's range. DDPM's variance is beta_t, as in SR3, on which the paper builds.
    """
    betas = settings.betas(training_betas)
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


def sample_residual(
    denoiser: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    blurry: Tensor,
    x_init: Tensor,
    scheduler: SchedulerMixin,
    eta: float,
    generators: list[torch.Generator],
    s: Tensor,
    progress: Progress,
    tiling: Tiled,
) -> Tensor:
    """Sample the scaled residual r_0 (the paper's section 3; Ho et al. 2020, algorithm 2).

    It starts at the schedule's noisiest level, alpha_bar_T, from sqrt(1 - alpha_bar_T) eps. That is pure noise if
    alpha_bar_T is near 0, and otherwise noise around r_0 = 0, the prediction. Estimates of r_0 are clipped so that
    x_init + s r_0 stays in [-1, 1]. The noise field is that of the whole image, however it is tiled.

    Args:
        denoiser: f(r_t, blurry, alpha_bar, x_init, s); has an attribute `prediction_type`.
        blurry, x_init: (N, 3, H, W) in [-1, 1].
        scheduler: from `make_scheduler`.
        eta: for DDIM.
        generators: one per image.
        s: (N, 1, H, W).
        progress: wraps the steps, e.g. tqdm.
        tiling: calls the denoiser on images (N, C, H, W), as `models.tiling.Tiling` does.

    Returns:
        r_0 (N, 3, H, W), in the dtype of `blurry`, which all arithmetic outside the denoiser uses.
    """
    levels = scheduler.alphas_cumprod[scheduler.timesteps.cpu()].tolist()
    r_t = randn_tensor(blurry.shape, generators, blurry.device, blurry.dtype)
    r_t *= math.sqrt(1 - levels[0])
    options = {}
    if isinstance(scheduler, DDIMScheduler):
        options = {"eta": eta, "generator": generators}
    elif isinstance(scheduler, DDPMScheduler):
        options = {"generator": generators}
    # A step is elementwise, so it is done in bands of rows to keep its temporaries small.
    rows = max(1, BAND // blurry.shape[-1])
    bands = [(slice(top, top + rows), deepcopy(scheduler)) for top in range(0, blurry.shape[-2], rows)]
    estimate = partial(_estimate, denoiser)
    for t, alpha_bar in zip(scheduler.timesteps.tolist(), progress(levels), strict=True):
        r_0 = tiling(estimate, [r_t, blurry, x_init, _field(alpha_bar, blurry), s])
        for band, own in bands:
            before = r_t[..., band, :].clone()  # multistep schedulers keep it
            r_t[..., band, :] = own.step(r_0[..., band, :], t, before, **options).prev_sample
        del r_0  # free it before the next one is made
    return r_t


def _field(alpha_bar: float, like: Tensor) -> Tensor:
    """A noise level expanded to images (N, 1, H, W), without copies, so that it can be tiled like the other inputs."""
    return torch.tensor(alpha_bar, device=like.device, dtype=like.dtype).expand(len(like), 1, *like.shape[-2:])


def _estimate(denoiser, r_t: Tensor, blurry: Tensor, x_init: Tensor, levels: Tensor, s: Tensor) -> Tensor:
    alpha_bar = levels[:, 0, 0, 0]
    output = denoiser(r_t, blurry, alpha_bar, x_init, s)
    r_0 = estimate_r_0(output, r_t, alpha_bar, denoiser.prediction_type)
    return r_0.clamp(residual(-1.0, x_init, s), residual(1.0, x_init, s))
