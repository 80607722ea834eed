"""The denoiser's training objective: the noise levels, the distance and the weight of each level; and `distance`, the
predictor's.

The output's parameterisation belongs to the denoiser (`prediction_type`), since sampling needs it too. SNR is
alpha_bar / (1 - alpha_bar); all arithmetic is float32 or finer.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from models.diffusion import PredictionType, along_axes, sample_alpha_bar, target

Distance = Literal["l1", "l2", "psnr"]


class Crops(NamedTuple):
    """Training crops in [-1, 1]: (N, 3, H, W), and the residual's scale s (N, 1, H, W)."""

    blurry: Tensor
    sharp: Tensor
    x_init: Tensor
    s: Tensor
    r_0: Tensor


@dataclass(frozen=True)
class Objective:
    """The denoiser's loss. The defaults are the paper's (Whang et al. 2022, section 3).

    Args:
        loss: distance of the denoiser's output to its target: l1, or l2 (the square, whose best estimate is the mean).
        levels: how noise levels are drawn: alpha_bar, uniform between neighbouring levels of the training schedule;
            log_snr, uniform in log-SNR over the range of that schedule; log_normal, as given by `log_normal`.
        log_normal: mean and standard deviation of ln sigma, with sigma^2 = (1 - alpha_bar) / alpha_bar, in units of
            r_0 (log_normal only).
        sigma_range: smallest and largest sigma that log_normal draws; null: no bounds.
        stratified: split the distribution into as many equal shares as the step has crops and draw one level from
            each. The step's gradient is less noisy (Kingma et al., VDM, 2021, appendix I.1).
        min_snr: gamma of min-SNR weighting; null: no weighting.

    Raises:
        ValueError: the standard deviation or gamma is not above 0; sigma_range is out of range.
    """

    loss: Literal["l1", "l2"] = "l1"
    levels: Literal["alpha_bar", "log_snr", "log_normal"] = "alpha_bar"
    log_normal: tuple[float, float] = (-1.2, 1.2)
    sigma_range: tuple[float, float] | None = None
    stratified: bool = False
    min_snr: float | None = None

    def __post_init__(self):
        if self.log_normal[1] <= 0 or (self.min_snr is not None and self.min_snr <= 0):
            raise ValueError(
                "objective.min_snr and the standard deviation in objective.log_normal must be above 0, got"
                f" {self.min_snr} and {self.log_normal[1]}"
            )
        if self.sigma_range is not None and not 0 < self.sigma_range[0] < self.sigma_range[1]:
            raise ValueError(f"objective.sigma_range must be two numbers, 0 < least < largest, got {self.sigma_range}")

    def _distance(self, error: Tensor, s: Tensor) -> Tensor:
        """The distance of each image (N,), from errors (N, 3, H, W) and the residual's scale."""
        if along_axes(s):  # an error in luma counts as much as in the image, where chroma's is small
            share = s.square().mean((2, 3), keepdim=True)
            error = error * (share / share.mean(1, keepdim=True)).sqrt()
        return (error.abs() if self.loss == "l1" else error.square()).mean((1, 2, 3))

    def draw(self, alphas_cumprod: Tensor, u: Tensor) -> Tensor:
        """Noise levels alpha_bar (N,), float32 in (0, 1], from uniform u (N,) in [0, 1), float64.

        Args:
            alphas_cumprod: alpha_bar_1 .. T of the training schedule.
            u: places each level in the distribution; on the same device.
        """
        if self.levels == "log_snr":
            return sample_log_snr(alphas_cumprod, u)
        if self.levels == "log_normal":
            return sample_log_normal(*self.log_normal, self.sigma_range, u)
        return sample_alpha_bar(alphas_cumprod, u)

    def losses(
        self, output: Tensor, r_0: Tensor, s: Tensor, eps: Tensor, alpha_bar: Tensor, prediction_type: PredictionType
    ) -> Tensor:
        """Each image's loss (N,), from the denoiser's output (N, 3, H, W) for add_noise(r_0, eps, alpha_bar).

        `s` is the residual's scale (N, 1, H, W), or (N, 3, H, W) for each of the AXES.
        """
        losses = self._distance(output - target(r_0, eps, alpha_bar, prediction_type), s)
        if self.min_snr is None:
            return losses
        weight = min_snr_weight(alpha_bar, prediction_type, self.min_snr)
        # The weight applies to squares, so absolute errors get its root: all three prediction types agree on the loss.
        return losses * (weight.sqrt() if self.loss == "l1" else weight)


def sample_log_snr(alphas_cumprod: Tensor, u: Tensor) -> Tensor:
    """alpha_bar (N,), with log-SNR uniform between those of alpha_bar_1 and alpha_bar_T, from uniform u (N,)."""
    most, least = alphas_cumprod[0].logit(), alphas_cumprod[-1].logit()
    return torch.lerp(most, least, u.to(most.dtype)).sigmoid().float()


def sample_log_normal(mean: float, std: float, bounds: tuple[float, float] | None, u: Tensor) -> Tensor:
    """alpha_bar (N,) with normally distributed ln sigma, where sigma^2 = (1 - alpha_bar) / alpha_bar.

    So log-SNR = -2 ln sigma. With bounds the normal is truncated. Source: EDM (Karras et al. 2022, table 1: P_mean
    -1.2, P_std 1.2, for data of standard deviation 0.5).
    """
    if bounds is not None:
        low, high = torch.special.ndtr((torch.tensor(bounds, dtype=u.dtype).log() - mean) / std).tolist()
        u = low + (high - low) * u
    log_sigma = mean + std * torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))
    return (-2 * log_sigma).sigmoid().float()


def min_snr_weight(alpha_bar: Tensor, prediction_type: PredictionType, gamma: float) -> Tensor:
    """Weight (N,) of the squared error of what is predicted, so that the error of r_0 counts min(SNR, gamma).

    Source: Hang et al. 2023 (section 3.4): sample min(SNR, gamma), epsilon min(SNR, gamma) / SNR, v_prediction
    min(SNR, gamma) / (SNR + 1); written so that alpha_bar = 1, where SNR is infinite, causes no division by zero.
    """
    snr, noise = alpha_bar / (1 - alpha_bar), 1 - alpha_bar
    if prediction_type == "sample":
        return snr.clamp(max=gamma)
    if prediction_type == "epsilon":
        return (gamma * noise / alpha_bar).clamp(max=1)
    return torch.minimum(alpha_bar, gamma * noise)


def distance(error: Tensor, loss: Distance) -> Tensor:
    """The mean size of errors (N, 3, H, W) in [-1, 1] over the crops.

    - l1: the absolute error.
    - l2: the square, whose best estimate is the mean. Crops with large errors dominate.
    - psnr: log(1 + MSE / 4e-3) per crop, so that a crop counts by its relative improvement. For crops below 30 dB it
      is proportional to the PSNR (NAFNet's loss, Chen et al., ECCV 2022, with a floor). With a floor at 50 dB, nearly
      sharp crops dominated, and a network that deblurred went back to the identity.
    """
    if loss == "l1":
        return error.abs().mean()
    if loss == "l2":
        return error.square().mean()
    return (error.square().mean((1, 2, 3)) / 4e-3).log1p().mean()
