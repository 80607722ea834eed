"""The reverse process: settings -> a diffusers scheduler over the wanted betas -> a residual sampled step by step."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import partial

import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    SchedulerMixin,
    UniPCMultistepScheduler,
)
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from models.diffusion import estimate_r_0, residual
from models.settings import SamplingSettings
from models.tiling import whole

BAND = 1 << 22  # pixels of a large photo that take a step together


def make_scheduler(settings: SamplingSettings, training_betas: Tensor) -> SchedulerMixin:
    """A diffusers scheduler that visits every level of `settings`' schedule once, noisiest first.

    It is handed estimates of r_0 (prediction_type "sample"), whatever the denoiser puts out: r_0 has to be made anyway
    to be clipped by the image's range. DDPM's variance is beta_t, as in the paper's kin SR3.
    """
    betas = settings.betas(training_betas)
    table = {"num_train_timesteps": len(betas), "trained_betas": betas.tolist(), "prediction_type": "sample"}
    if settings.sampler == "ddpm":
        scheduler = DDPMScheduler(**table, clip_sample=False, variance_type="fixed_large")
    elif settings.sampler == "ddim":
        scheduler = DDIMScheduler(**table, clip_sample=False)
    elif settings.sampler == "dpmsolver++":
        scheduler = DPMSolverMultistepScheduler(**table, timestep_spacing="trailing")
    else:
        scheduler = UniPCMultistepScheduler(**table, timestep_spacing="trailing")
    # diffusers multiplies the table up in float32, where 1 - 1e-6 has lost its digits.
    scheduler.alphas_cumprod = (1 - betas).cumprod(0)
    scheduler.set_timesteps(len(betas))
    return scheduler


def noise_generator(seed: int, name: str, sample: int) -> torch.Generator:
    """The random numbers of one sample of one picture: from the seed, its name and the sample's number alone.

    A CPU generator, so the noise is the same on every device, in every batch and in every order.
    """
    return torch.Generator().manual_seed(seed_of(f"{seed}/{sample}/{name}"))


def seed_of(key: str) -> int:
    """A generator's seed out of a text, the same on every machine; texts that differ give unrelated seeds."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little", signed=True)


def sample_residual(
    denoiser: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    blurry: Tensor,
    x_init: Tensor,
    scheduler: SchedulerMixin,
    eta: float = 0.0,
    generator: torch.Generator | list[torch.Generator] | None = None,
    residual_scale: float | None = None,
    progress: Callable[[Iterable], Iterable] = iter,
    tiling: Callable[[Callable[..., Tensor], Sequence[Tensor]], Tensor] = whole,
) -> Tensor:
    """Sample the scaled residual r_0 from pure noise (the paper's section 3; Ho et al. 2020, algorithm 2).

    Args:
        denoiser: f(r_t, blurry, alpha_bar, x_init), with an attribute `prediction_type`.
        blurry, x_init: (N, 3, H, W) in [-1, 1].
        scheduler: from `make_scheduler`.
        eta: for DDIM.
        generator: one, or one a picture.
        residual_scale: s; estimates of r_0 are clipped so that x_init + s r_0 stays in [-1, 1]. None: no clipping.
        progress: wraps the steps, e.g. tqdm.
        tiling: `models.tiling.Tiling` of the denoiser for pictures too large to be denoised whole. The noise field is
            always that of the whole picture.

    Returns:
        r_0 (N, 3, H, W), in the dtype of `blurry`, which all arithmetic outside the denoiser uses.
    """
    r_t = randn_tensor(blurry.shape, generator=generator, device=blurry.device, dtype=blurry.dtype)
    options = {}
    if isinstance(scheduler, DDIMScheduler):
        options = {"eta": eta, "generator": generator}
    elif isinstance(scheduler, DDPMScheduler):
        options = {"generator": generator}
    levels = scheduler.alphas_cumprod.to(blurry.device, blurry.dtype)
    # A step is arithmetic on each value alone, so it is taken in bands of rows: its terms then take little memory.
    rows = max(1, BAND // blurry.shape[-1])
    bands = [(slice(top, top + rows), deepcopy(scheduler)) for top in range(0, blurry.shape[-2], rows)]
    for t in progress(scheduler.timesteps.tolist()):
        r_0 = tiling(partial(_estimate, denoiser, residual_scale, levels[t]), [r_t, blurry, x_init])
        for band, own in bands:
            before = r_t[..., band, :].clone()  # schedulers of several steps keep it
            r_t[..., band, :] = own.step(r_0[..., band, :], t, before, **options).prev_sample
    return r_t


def _estimate(denoiser, s: float | None, level: Tensor, r_t: Tensor, blurry: Tensor, x_init: Tensor) -> Tensor:
    alpha_bar = level.expand(len(r_t))
    output = denoiser(r_t, blurry, alpha_bar, x_init)
    r_0 = estimate_r_0(output, r_t, alpha_bar, denoiser.prediction_type)
    return r_0 if s is None else r_0.clamp(residual(-1.0, x_init, s), residual(1.0, x_init, s))
