"""The reverse process: settings -> a diffusers scheduler over the wanted betas -> a residual sampled step by step."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

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

from models.diffusion import estimate_r_0
from models.schedules import NoiseSchedule, respace

Sampler = Literal["ddpm", "ddim", "dpmsolver++", "unipc"]
Schedule = Literal["training", "linear", "quadratic", "cosine", "sigmoid", "log_snr"]


@dataclass(frozen=True)
class SamplingSettings:
    """How to sample: one point of a grid, one preset, one set of command-line flags.

    Args:
        sampler: ddpm (ancestral, the paper), ddim, dpmsolver++ (second order) or unipc.
        schedule: noise levels to visit. training: those the checkpoint was trained with, in even strides. The others
            are made anew with exactly `steps` steps, as in the paper's search over noise schedules.
        steps: denoiser evaluations a sample.
        beta_start: beta of the first step, for linear, quadratic and sigmoid.
        beta_end: beta of the last (noisiest) step, for linear, quadratic and sigmoid.
        log_snr_max: log-SNR of the first step, for log_snr.
        log_snr_min: log-SNR of the last (noisiest) step, for log_snr.
        eta: noise of ddim's steps: 0 deterministic, 1 the variance of the exact posterior.
        num_samples: samples drawn for each picture.
        average: return the mean of the samples instead of each one (the paper's DvSR-SA).
        blend: 0 is the prediction alone, 1 the full sample, between them a pixelwise blend.
    """

    sampler: Sampler = "ddim"
    schedule: Schedule = "training"
    steps: int = 20
    beta_start: float = 1e-4
    beta_end: float = 0.5
    log_snr_max: float = 10.0
    log_snr_min: float = -10.0
    eta: float = 0.0
    num_samples: int = 1
    average: bool = False
    blend: float = 1.0

    def __post_init__(self):
        for field, allowed in (("sampler", get_args(Sampler)), ("schedule", get_args(Schedule))):
            value = getattr(self, field)
            if value not in allowed:
                raise ValueError(f"{field} must be one of {', '.join(allowed)}, got {value!r}")
        for field in ("steps", "num_samples"):
            value = getattr(self, field)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{field} must be a whole number of 1 or more, got {value!r}")
        for field in ("eta", "blend"):
            value = getattr(self, field)
            if not 0 <= value <= 1:
                raise ValueError(f"{field} must be between 0 and 1, got {value!r}")
        if self.eta > 0 and self.sampler != "ddim":
            raise ValueError(f"eta belongs to the sampler ddim; leave it at 0 for {self.sampler}")
        if self.schedule != "training":
            end = (1 - self._new_betas()).prod().item()
            if end > 0.5:
                raise ValueError(
                    f"schedule {self.schedule} with {self.steps} steps ends at alpha_bar {end:.3g}, but sampling starts"
                    " from pure noise (alpha_bar near 0): raise steps or the noise of the last step"
                )

    def betas(self, training_betas: Tensor) -> Tensor:
        """The float64 betas (steps,) of this sampling schedule, given those of the training schedule."""
        if self.schedule == "training":
            return respace((1 - training_betas.double()).cumprod(0), self.steps)
        return self._new_betas()

    def _new_betas(self) -> Tensor:
        numbers = self.steps, self.beta_start, self.beta_end, self.log_snr_max, self.log_snr_min
        return NoiseSchedule(self.schedule, *numbers).betas()


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
    digest = hashlib.sha256(f"{seed}/{sample}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def sample_residual(
    denoiser: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    blurry: Tensor,
    x_init: Tensor,
    scheduler: SchedulerMixin,
    eta: float = 0.0,
    generator: torch.Generator | list[torch.Generator] | None = None,
    bounds: tuple[Tensor, Tensor] | None = None,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Tensor:
    """Sample the scaled residual r_0 from pure noise (the paper's section 3; Ho et al. 2020, algorithm 2).

    Args:
        denoiser: f(r_t, blurry, alpha_bar, x_init), with an attribute `prediction_type`.
        blurry, x_init: (N, 3, H, W) in [-1, 1].
        scheduler: from `make_scheduler`.
        eta: for DDIM.
        generator: one, or one a picture.
        bounds: lowest and highest r_0 that a pixel can have; estimates are clipped to them. None: no clipping.
        progress: wraps the steps, e.g. tqdm.

    Returns:
        r_0 (N, 3, H, W), float32.
    """
    r_t = randn_tensor(blurry.shape, generator=generator, device=blurry.device, dtype=torch.float32)
    options = {}
    if isinstance(scheduler, DDIMScheduler):
        options = {"eta": eta, "generator": generator}
    elif isinstance(scheduler, DDPMScheduler):
        options = {"generator": generator}
    levels = scheduler.alphas_cumprod.to(blurry.device, torch.float32)
    for t in progress(scheduler.timesteps.tolist()):
        alpha_bar = levels[t].expand(len(blurry))
        output = denoiser(r_t, blurry, alpha_bar, x_init)
        r_0 = estimate_r_0(output, r_t, alpha_bar, denoiser.prediction_type)
        if bounds is not None:
            r_0 = r_0.clamp(*bounds)
        r_t = scheduler.step(r_0, t, r_t, **options).prev_sample
    return r_t
