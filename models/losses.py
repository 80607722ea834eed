"""What training minimises: the denoiser's `Objective`, the units of its `Residual`, and the `PredictorLoss`.

SNR is alpha_bar / (1 - alpha_bar); all arithmetic is float32 or finer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from deblur.models.diffusion import SMALLEST_SIZE, ResidualColours, ScaleKind
from deblur.models.networks.mixins import randn_tensor

SIZE_WEIGHT = 0.01  # all gradients are clipped together, and the size head's must not dominate
HIGHEST_LEVEL = 1 - 2**-24  # the last float32 below 1, where a crop still has noise


@dataclass(frozen=True)
class Objective:
    """The denoiser's loss. The defaults are the paper's (Whang et al. 2022, section 3).

    Args:
        loss: distance of the denoiser's output to what it should be: l1, or l2 (the square, whose best estimate is the
            mean).
        levels: how noise levels are drawn: alpha_bar, uniform between neighbouring levels of the training schedule;
            log_normal, as given by `log_normal`.
        log_normal: mean and standard deviation of ln sigma, with sigma^2 = (1 - alpha_bar) / alpha_bar, in units of
            r_0 (log_normal only).
        sigma_range: smallest and largest sigma that log_normal draws; null: no bounds.
        stratified: split the distribution into as many equal shares as the step has crops and draw one level from
            each. The step's gradient is less noisy (Kingma et al., VDM, 2021, appendix I.1).
        noises: noise levels and noise fields drawn for each crop. They share its prediction, so the denoiser's batch is
            that many times larger than the predictor's.
        image_loss: a term such as deblur.evaluation.perceptual.PerceptualLoss, computed on x_init + s r_0 with the
            estimated r_0: a function of (restored, sharp), both (N, 3, H, W) in [-1, 1], that returns a scalar. The
            squared error alone favours smooth images where the residual is uncertain. null: no such term.
        image_loss_ramp: the steps between which that term rises from zero to its weight.
        image_loss_sigma: the lowest noise level at which that term counts, as sigma in units of r_0. A sample
            of few steps depends on the estimates at high noise; at low noise the squared error alone keeps samples
            close to the data.

    Raises:
        ValueError: a value is out of its range.
    """

    loss: Literal["l1", "l2"] = "l1"
    levels: Literal["alpha_bar", "log_normal"] = "alpha_bar"
    log_normal: tuple[float, float] = (-1.2, 1.2)
    sigma_range: tuple[float, float] | None = None
    stratified: bool = False
    noises: int = 1
    image_loss: Callable | None = None
    image_loss_ramp: tuple[int, int] = (0, 0)
    image_loss_sigma: float = 0.0

    def __post_init__(self):
        if self.log_normal[1] <= 0:
            raise ValueError(f"objective.log_normal has a standard deviation, which must be above 0: {self.log_normal}")
        if self.sigma_range is not None and not 0 < self.sigma_range[0] < self.sigma_range[1]:
            raise ValueError(f"objective.sigma_range must be two numbers, 0 < least < largest, got {self.sigma_range}")
        if self.noises < 1:
            raise ValueError(f"objective.noises must be at least 1, got {self.noises}")

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The smallest and largest sigma that is drawn; None where only the training schedule bounds it, or nothing."""
        return self.sigma_range if self.levels == "log_normal" and self.sigma_range else (None, None)

    def draw(
        self,
        levels: Tensor,
        generators: list[torch.Generator],
        shape: torch.Size,
        rank: int = 0,
        processes: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """The random numbers of noisy crops: levels alpha_bar (N,), float32 in (0, 1), and eps (N, 3, H, W).

        Args:
            levels: of the training schedule, the noisiest first.
            generators: one for each crop of this process, on the device.
            shape: of eps, with the `noises` of one crop in a row.
            rank, processes: this process's number, and how many share the step's strata.
        """
        like = {"dtype": torch.float64, "device": generators[0].device}
        u = torch.stack([torch.rand(self.noises, generator=generator, **like) for generator in generators])
        if self.stratified:
            crops = len(generators) * processes
            crop = rank * len(generators) + torch.arange(len(generators))
            # Noise k of crop n gets share k crops + n, so that one crop sees levels far apart.
            share = torch.arange(self.noises)[None] * crops + crop[:, None]
            u = (share.to(u) + u) / (crops * self.noises)
        if self.levels == "alpha_bar":
            a = uniform_levels(u.flatten(), levels)
        else:
            a = log_normal_levels(u.flatten(), *self.log_normal, self.sigma_range)
        repeated = [generator for generator in generators for _ in range(self.noises)]
        return a.float().clamp(max=HIGHEST_LEVEL), randn_tensor(shape, repeated, u.device)

    def losses(self, error: Tensor, weight: Tensor, s: Tensor) -> Tensor:
        """Each noisy crop's loss (N,): the error of r_0, weighted so that it is that of the network's own output.

        Args:
            error: of the estimated r_0 (N, 3, H, W).
            weight: by `Estimator.weight`, (N, 1, 1, 1).
            s: the residual's scale. An error along one of the AXES counts as that axis's scale, since so it weighs in
                an image; along one without a residual it counts in full, so that the denoiser learns that r_0 is 0.
        """
        distance = weight.sqrt() * error.abs() if self.loss == "l1" else weight * error.square()
        axes = s[..., :1, :1] / s[:, :1, :1, :1]
        return (axes.masked_fill(axes == 0, 1.0) * distance).mean((1, 2, 3))

    def image_loss_at(self, step: int, restored: Tensor, x: Tensor, a: Tensor) -> Tensor:
        """The image loss of noisy crops at these levels, as much of it as counts at a step.

        A mean over all crops: those below `image_loss_sigma` count as zero.
        """
        noisy = (1 - a) / a >= self.image_loss_sigma**2
        if not noisy.any():
            return restored.new_zeros(())
        start, end = self.image_loss_ramp
        risen = min(1.0, max(0.0, (step - start + 1) / max(1, end - start)))
        return self.image_loss(restored[noisy], x[noisy]) * noisy.float().mean() * risen


def uniform_levels(u: Tensor, levels: Tensor) -> Tensor:
    """Continuous noise levels (N,), from uniform u (N,) in [0, 1): a random step t, then uniform in its interval.

    u = 0 gives the least noise. Source: WaveGrad (Chen et al. 2021), algorithm 1, in the form that SR3 (Saharia et al.
    2021) uses: uniform in (alpha_bar_t, alpha_bar_{t-1}).
    """
    rising = torch.cat([levels.new_ones(1), levels.flip(0)])
    t = (u * len(levels)).long() + 1
    inside = t - u * len(levels)  # 1 at the less noisy end of the interval
    return torch.lerp(rising[t], rising[t - 1], inside.to(rising.dtype))


def log_normal_levels(u: Tensor, mean: float, std: float, bounds: tuple[float, float] | None = None) -> Tensor:
    """Levels (N,) with normally distributed ln sigma, from uniform u (N,), float64; sigma^2 = (1 - a) / a.

    With bounds of sigma the normal is truncated. Source: EDM (Karras et al. 2022, table 1: P_mean -1.2, P_std 1.2, for
    data of standard deviation 0.5).
    """
    if bounds is not None:
        low, high = torch.special.ndtr((torch.tensor(bounds, dtype=u.dtype).log() - mean) / std).tolist()
        u = low + (high - low) * u
    log_sigma = mean + std * torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))
    return (-2 * log_sigma).sigmoid()


@dataclass(frozen=True)
class Residual:
    """The units of r_0 = (x - x_init) / s(p), with s(p) = c m(p).

    Args:
        scale: c. null: the standard deviation of (x - x_init) / m, measured during training as a running mean of its
            square over about the last 1000 steps. 1, with scale_kind global, for the paper's unscaled residual.
        scale_kind: how m is computed: global (m = 1, the paper's), local (from how much the predictor changed) or
            learned (the predictor's size head); see `models.diffusion.residual_size`.
        colours: rgb, with one scale; luma_chroma: the luma and two axes of chroma of x - x_init
            (`models.diffusion.AXES`), each with its own scale; luma: the luma alone, so that samples have the
            prediction's chroma.

    Raises:
        ValueError: other colours than rgb with a given scale.
    """

    scale: float | None = None
    scale_kind: ScaleKind = "global"
    colours: ResidualColours = "rgb"

    def __post_init__(self):
        if self.colours != "rgb" and self.scale is not None:
            raise ValueError(f"residual.scale must be null with residual.colours {self.colours}: it is measured")


@dataclass(frozen=True)
class PredictorLoss:
    """The predictor's loss, a mean over all its outputs.

    Args:
        distance: of an output to the ground truth. l1: the mean absolute error. l2: the square, whose best estimate is
            the mean; crops with large errors dominate. psnr: log(1 + MSE / 4e-3) per crop, so that a crop counts by its
            relative improvement (NAFNet's loss, Chen et al., ECCV 2022, with a floor).
        image_loss: a term such as deblur.evaluation.perceptual.PerceptualLoss: a function of (x_init, sharp), both
            (N, 3, H, W) in [-1, 1], that returns a scalar. null: no such term.
        weight: of this loss beside the denoiser's; 0 for the paper's single loss, which trains g through f.
    """

    distance: Literal["l1", "l2", "psnr"] = "l1"
    image_loss: Callable | None = None
    weight: float = 1.0

    def __call__(self, estimates: list[Tensor], log_size: Tensor | None, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss without its weight, and by name the parts that a log shows.

        Args:
            estimates: all images, the most important first: (N, 3, H, W) in [-1, 1].
            log_size: of a size head, (N, 1, H, W); None: there is none.
            x: the sharp images, (N, 3, H, W) in [-1, 1].
        """
        distances = []
        for estimate in estimates:
            error = estimate - x
            if self.distance == "l1":
                distances.append(error.abs().mean())
            elif self.distance == "l2":
                distances.append(error.square().mean((1, 2, 3)).mean())
            else:  # with a floor at 50 dB, nearly sharp crops dominated, and a deblurring network became the identity
                distances.append((error.square().mean((1, 2, 3)) / 4e-3).log1p().mean())
        loss = torch.stack(distances).mean()
        logged = {}
        if self.image_loss is not None:
            logged["image_loss"] = self.image_loss(estimates[0], x)
            loss = loss + logged["image_loss"]
        if log_size is not None:  # this term trains the size head alone
            logged["size_loss"] = laplace_loss(log_size, x - estimates[0])
            loss = loss + SIZE_WEIGHT * logged["size_loss"]
        return loss, logged


def laplace_loss(log_size: Tensor, error: Tensor) -> Tensor:
    """Negative log-likelihood of a residual under a Laplace distribution with mean absolute value exp(log_size).

    It is lowest where exp(log_size) is the expected absolute error (Kendall & Gal 2017, in its L1 form).
    log(SMALLEST_SIZE) is subtracted, so that the loss is positive wherever exp(log_size) is above it.

    Args:
        log_size: (N, 1, H, W).
        error: x - x_init (N, 3, H, W) in [-1, 1]; it receives no gradient.
    """
    return (error.detach().abs().mean(1, keepdim=True) * (-log_size).exp() + log_size).mean() - math.log(SMALLEST_SIZE)
