"""The reverse process: settings -> a diffusers scheduler over the wanted betas -> a residual sampled step by step."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
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

from base.seeds import noise_seed
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
    return torch.Generator().manual_seed(noise_seed(seed, sample, name))


def sample_residual(
    denoiser: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    blurry: Tensor,
    x_init: Tensor,
    scheduler: SchedulerMixin,
    eta: float = 0.0,
    generator: torch.Generator | list[torch.Generator] | None = None,
    residual_scale: Tensor | float | None = None,
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
        residual_scale: s, a number or a map (N, 1, H, W); estimates of r_0 are clipped so that x_init + s r_0 stays in
            [-1, 1]. None: no clipping.
        progress: wraps the steps, e.g. tqdm.
        tiling: `models.tiling.Tiling` of the denoiser for pictures too large to be denoised whole. The noise field is
            always that of the whole picture.

    Returns:
        r_0 (N, 3, H, W), in the dtype of `blurry`, which all arithmetic outside the denoiser uses.
    """
    walk = _Walk(blurry, scheduler, eta, generator)
    estimate, scales = partial(_estimate, denoiser), _scales(residual_scale, blurry)
    for alpha_bar in progress(walk.levels):
        levels = _field([alpha_bar] * len(blurry), blurry)
        walk.step(tiling(estimate, [walk.r_t, blurry, x_init, levels, *scales]))
    return walk.r_t


@dataclass
class Draw:
    """One residual to sample with `sample_residuals`; arguments as of `sample_residual`, pictures (3, H, W)."""

    blurry: Tensor
    x_init: Tensor
    scheduler: SchedulerMixin
    eta: float
    generator: torch.Generator
    residual_scale: Tensor  # (1, H, W)


def sample_residuals(
    denoiser: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    draws: Iterable[Draw],
    slots: int,
    progress: Callable[[int], object] = int,
    tiling: Callable[[Callable[..., Tensor], Sequence[Tensor]], Tensor] = whole,
) -> Iterator[tuple[int, Tensor, float]]:
    """Sample many residuals whose schedules differ in kind and length, `slots` of them in each call of the denoiser.

    Every draw keeps a scheduler of its own; only the denoiser, which is told a noise level for each picture, is shared.
    A draw that is done makes room for the next one. The batch always has `slots` pictures, the last calls being
    filled with copies, so a result does not depend on what else is drawn.

    Args:
        draws: taken one by one, when there is room; all pictures of one size.
        slots: pictures in each call.
        progress: told how many denoising steps a call took.
        denoiser, tiling: as in `sample_residual`.

    Yields:
        (number of the draw, r_0 (3, H, W), its share of the seconds), in the order in which they end.
    """
    waiting, active = enumerate(draws), []
    while True:
        while len(active) < slots and (entry := next(waiting, None)) is not None:
            number, draw = entry
            walk = _Walk(draw.blurry[None], draw.scheduler, draw.eta, draw.generator)
            active.append((number, draw, walk))
        if not active:
            return
        start = time.perf_counter()
        rows = active + active[:1] * (slots - len(active))
        r_t = torch.cat([walk.r_t for _, _, walk in rows])
        names = ("blurry", "x_init", "residual_scale")
        blurry, x_init, scale = (torch.stack([getattr(draw, name) for _, draw, _ in rows]) for name in names)
        levels = _field([walk.level for _, _, walk in rows], r_t)
        estimates = tiling(partial(_estimate, denoiser), [r_t, blurry, x_init, levels, scale])
        for (_, _, walk), r_0 in zip(active, estimates.split(1), strict=False):
            walk.step(r_0)
        end = time.perf_counter()
        for _, _, walk in active:
            walk.seconds += (end - start) / len(active)
        progress(len(active))
        done, active = [entry for entry in active if entry[2].done], [entry for entry in active if not entry[2].done]
        for number, _, walk in done:
            yield number, walk.r_t[0], walk.seconds


class _Walk:
    """r_t on its way from pure noise to r_0, by one scheduler.

    Args:
        blurry: (N, 3, H, W); its shape, dtype and device are those of r_t.
        scheduler, eta, generator: as in `sample_residual`.
    """

    def __init__(self, blurry, scheduler, eta, generator):
        self.r_t = randn_tensor(blurry.shape, generator=generator, device=blurry.device, dtype=blurry.dtype)
        # A step is arithmetic on each value alone, so it is taken in bands of rows: its terms then take little memory.
        rows = max(1, BAND // blurry.shape[-1])
        self._bands = [(slice(top, top + rows), deepcopy(scheduler)) for top in range(0, blurry.shape[-2], rows)]
        self.options, self.seconds = {}, 0.0
        if isinstance(scheduler, DDIMScheduler):
            self.options = {"eta": eta, "generator": generator}
        elif isinstance(scheduler, DDPMScheduler):
            self.options = {"generator": generator}
        self._timesteps = scheduler.timesteps.tolist()
        self.levels = scheduler.alphas_cumprod[scheduler.timesteps.cpu()].tolist()
        self._taken = 0

    @property
    def level(self) -> float:
        """alpha_bar of r_t."""
        return self.levels[self._taken]

    @property
    def done(self) -> bool:
        return self._taken == len(self.levels)

    def step(self, r_0: Tensor) -> None:
        """Take one step with the denoiser's estimate of r_0."""
        t = self._timesteps[self._taken]
        for band, scheduler in self._bands:
            before = self.r_t[..., band, :].clone()  # schedulers of several steps keep it
            self.r_t[..., band, :] = scheduler.step(r_0[..., band, :], t, before, **self.options).prev_sample
        self._taken += 1


def _field(levels: Sequence[float], like: Tensor) -> Tensor:
    """Noise levels as pictures (N, 1, H, W) without memory of their own, so that tilings cut them with the rest."""
    field = torch.tensor(levels, device=like.device, dtype=like.dtype).view(-1, 1, 1, 1)
    return field.expand(-1, 1, *like.shape[-2:])


def _scales(residual_scale: Tensor | float | None, like: Tensor) -> list[Tensor]:
    """The scale as a list of at most one map (N, 1, H, W), which tilings cut with the rest."""
    if residual_scale is None:
        return []
    scale = torch.as_tensor(residual_scale, device=like.device, dtype=like.dtype)
    return [scale.expand(len(like), 1, *like.shape[-2:])]


def _estimate(denoiser, r_t: Tensor, blurry: Tensor, x_init: Tensor, levels: Tensor, s: Tensor | None = None) -> Tensor:
    alpha_bar = levels[:, 0, 0, 0]
    output = denoiser(r_t, blurry, alpha_bar, x_init)
    r_0 = estimate_r_0(output, r_t, alpha_bar, denoiser.prediction_type)
    return r_0 if s is None else r_0.clamp(residual(-1.0, x_init, s), residual(1.0, x_init, s))
