"""The denoiser's training objective: the noise levels, the distance and the weight of each level.

The output's parameterisation belongs to the denoiser (`prediction_type`), since sampling needs it too. SNR is
alpha_bar / (1 - alpha_bar); all arithmetic is float32 or finer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from models.diffusion import PredictionType, add_noise, estimate_r_0, sample_alpha_bar, target
from models.flow import Flow

ALPHA = 1e-3  # weight of the velocity term in the flow's loss (ELIR)

Denoise = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Objective:
    """The denoiser's loss. The defaults are the paper's (Whang et al. 2022, section 3).

    Args:
        kind: diffusion (the paper's), or consistency_flow: a straight path from noise around the prediction to the
            residual, along which the denoiser learns to take few steps; see `flow_losses`. levels, log_normal,
            sigma_range and min_snr belong to diffusion; source_sigma, segments and delta to consistency_flow.
        loss: distance of the denoiser's output, or of the flow's jump, to its target: l1, or l2 (the square, whose best
            estimate is the mean, which a flow needs).
        levels: how noise levels are drawn: alpha_bar, uniform between neighbouring levels of the training schedule;
            log_snr, uniform in log-SNR over the range of that schedule; log_normal, as given by `log_normal`.
        log_normal: mean and standard deviation of ln sigma, with sigma^2 = (1 - alpha_bar) / alpha_bar, in units of
            r_0 (log_normal only).
        sigma_range: smallest and largest sigma that log_normal draws; null: no bounds.
        stratified: split the distribution into as many equal shares as the step has crops and draw one level from
            each. The step's gradient is less noisy (Kingma et al., VDM, 2021, appendix I.1).
        min_snr: gamma of min-SNR weighting; null: no weighting.
        source_sigma: standard deviation of the noise at the start of the flow, in units of r_0.
        segments: number of segments of the flow's path; about the number of steps it will be sampled in.
        delta: how much later on the path the flow's target lies, as a share of the path's length.

    Raises:
        ValueError: the standard deviation, gamma or source_sigma is not above 0; sigma_range or delta is out of range.
    """

    kind: Literal["diffusion", "consistency_flow"] = "diffusion"
    loss: Literal["l1", "l2"] = "l1"
    levels: Literal["alpha_bar", "log_snr", "log_normal"] = "alpha_bar"
    log_normal: tuple[float, float] = (-1.2, 1.2)
    sigma_range: tuple[float, float] | None = None
    stratified: bool = False
    min_snr: float | None = None
    source_sigma: float = 0.5
    segments: int = 5
    delta: float = 0.05

    def __post_init__(self):
        if self.log_normal[1] <= 0 or (self.min_snr is not None and self.min_snr <= 0):
            raise ValueError(
                "objective.min_snr and the standard deviation in objective.log_normal must be above 0, got"
                f" {self.min_snr} and {self.log_normal[1]}"
            )
        if self.sigma_range is not None and not 0 < self.sigma_range[0] < self.sigma_range[1]:
            raise ValueError(f"objective.sigma_range must be two numbers, 0 < least < largest, got {self.sigma_range}")
        Flow(self.source_sigma, self.segments)
        if not 0 < self.delta < 1:
            raise ValueError(f"objective.delta must be between 0 and 1, got {self.delta}")

    @property
    def flow(self) -> Flow | None:
        """The flow to train; None for diffusion."""
        return Flow(self.source_sigma, self.segments) if self.kind == "consistency_flow" else None

    def evaluate(
        self,
        denoise: Denoise,
        prediction_type: PredictionType,
        r_0: Tensor,
        eps: Tensor,
        u: Tensor,
        alphas_cumprod: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The loss of one step.

        Args:
            denoise: the denoiser as a function of (r_t, alpha_bar), with the crops' conditions filled in.
            prediction_type: what it predicts.
            r_0, eps: residual and noise (N, 3, H, W).
            u: places each crop's noise level, or time, in its distribution: uniform (N,) in [0, 1), float64.
            alphas_cumprod: alpha_bar_1 .. T of the training schedule.

        Returns:
            Each crop's loss (N,), the estimate of r_0 (N, 3, H, W), and the alpha_bar that the denoiser was told (N,).
        """
        if self.kind == "consistency_flow":
            return self.flow_losses(denoise, prediction_type, r_0, eps, u)
        alpha_bar = self.draw(alphas_cumprod, u)
        r_t = add_noise(r_0, eps, alpha_bar)
        output = denoise(r_t, alpha_bar)
        losses = self.losses(output, r_0, eps, alpha_bar, prediction_type)
        return losses, estimate_r_0(output, r_t, alpha_bar, prediction_type), alpha_bar

    def flow_losses(
        self, denoise: Denoise, prediction_type: PredictionType, r_0: Tensor, eps: Tensor, tau: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `evaluate`, for the consistency flow, with u as the times tau.

        A time tau is uniform in [0, 1), on the path r_tau = (1 - tau) sigma eps + tau r_0. Following the
        velocity v at tau leads to a point at the end e of its segment. It must agree with the point reached from
        tau' = min(tau + delta, e) with velocity v'. v' comes from the same network, without gradient; at the end e
        itself it is the path's own, r_0 - sigma eps. Segments have length 1 / K, the unit in which jumps are measured:

            loss = d(K (jump by v - jump by v')) + ALPHA d(K (1 - tau') (v - v')),  d the mean square, or absolute value

        For squares this is K^2 times ELIR's loss, with two differences. The first is the factor 1 - tau'. The velocity
        is that of the estimated residual, (r_0_hat - r_tau) / (1 - tau); without the factor it would be unbounded near
        the path's end. The second is that ELIR draws tau below 1 - delta, which suffices for a network that puts out v.
        One that puts out r_0 must also be shown the end of the last segment: otherwise its estimates there need only
        agree with each other, and they drift.
        """
        flow, K = self.flow, self.segments
        end = ((tau * K).floor() + 1) / K
        later = torch.minimum(tau + self.delta, end)
        true = r_0 - flow.sigma * eps

        def at(tau: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """The estimate of r_0, the velocity, and the alpha_bar told to the denoiser, at times (N,)."""
            t, size, alpha_bar = _images(tau), _images(flow.size(tau)), flow.level(tau).float()
            r_tau = (1 - t) * flow.sigma * eps + t * r_0
            r_t = r_tau / size
            estimate = estimate_r_0(denoise(r_t, alpha_bar), r_t, alpha_bar, prediction_type)
            left = _images((1 - tau).clamp_min(1e-6))  # stays above 0 in float32
            return estimate, (estimate - r_tau) / left, alpha_bar

        estimate, velocity, alpha_bar = at(tau)
        with torch.no_grad():
            reaches = _images(later >= end).bool()
            later_velocity = torch.where(reaches, true, at(later)[1])
        step, rest = _images(K * (later - tau)), _images(K * (end - later))
        jump = (step + rest) * velocity - (step * true + rest * later_velocity)
        losses = self._distance(jump)
        losses = losses + ALPHA * self._distance(_images(K * (1 - later)) * (velocity - later_velocity))
        return losses, estimate, alpha_bar

    def _distance(self, error: Tensor) -> Tensor:
        """The distance of each image (N,), from errors (N, 3, H, W)."""
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
        self, output: Tensor, r_0: Tensor, eps: Tensor, alpha_bar: Tensor, prediction_type: PredictionType
    ) -> Tensor:
        """Each image's loss (N,), from the denoiser's output (N, 3, H, W) for add_noise(r_0, eps, alpha_bar)."""
        losses = self._distance(output - target(r_0, eps, alpha_bar, prediction_type))
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


def _images(values: Tensor) -> Tensor:
    """Reshape one number per image, (N,), to float32 (N, 1, 1, 1)."""
    return values.float().view(-1, 1, 1, 1)
