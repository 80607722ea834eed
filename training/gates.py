"""Checks of a refiner that precede a look at its samples: errors of its r_0 estimates, and the power of its samples.

A denoiser whose estimates in flat regions are worse than zero adds noise there; one whose estimates at edges are too
small adds nothing there. The loss shows neither, since it averages over both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from models.diffusion import add_noise, estimate_r_0, residual
from models.pipeline import DeblurPipeline
from models.samples import to_network, to_world
from models.sampling import noise_generator
from models.schedules import level_of
from models.settings import SamplingSettings

SIGMAS = (0.1, 0.3, 1.0, 3.0, 10.0)  # ratio of noise to signal in r_t, from nearly clean to nearly pure noise
FLAT, EDGE = 0.2, 0.6  # local size of the true residual, relative to its size over all images


@dataclass
class _Sums:
    """Sums over a region's pixels of true^2, (estimate - true)^2, estimate^2 and true * estimate."""

    true: float = 0.0
    error: float = 0.0
    estimate: float = 0.0
    product: float = 0.0

    def add(self, true: Tensor, estimate: Tensor, mask: Tensor) -> None:
        self.true += (true.square() * mask).sum().item()
        self.error += ((estimate - true).square() * mask).sum().item()
        self.estimate += (estimate.square() * mask).sum().item()
        self.product += (estimate * true * mask).sum().item()


@torch.no_grad()
def refiner_gates(
    pipeline: DeblurPipeline,
    images: Sequence[tuple[str, Tensor, Tensor]],
    sigmas: Sequence[float] = SIGMAS,
    settings: SamplingSettings | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Compute the gates of a refiner on some images, in image units, so that no pixel is weighted by the scale map.

    A pixel is flat if the true residual's root mean square over 9 x 9 pixels is below FLAT times that over all images,
    and at an edge if it is above EDGE times that.

    Args:
        pipeline: with a denoiser.
        images: (name, blurry, sharp), both (3, H, W) in [0, 1].
        sigmas: noise levels, sigma^2 = (1 - alpha_bar) / alpha_bar.
        settings: how to sample; None: the pipeline's default. With blend 0 nothing is sampled.
        seed: of the noise.

    Returns:
        For each sigma `flat_error/sigma` and `edge_error/sigma`, the squared error of the estimated r_0 over that of an
        estimate of zero (below 1 the estimate helps), and `edge_slope/sigma`, the regression slope of the true residual
        on the estimate (1 is unbiased, above 1 the estimate is too small). For one sample per image `flat_power` and
        `edge_power`, the power of the sampled residual over that of the true one.
    """
    known = [(name, *_known(pipeline, blurry, sharp)) for name, blurry, sharp in images]
    overall = torch.stack([true.square().mean() for _, _, _, _, true, _ in known]).mean().sqrt()
    levels = {sigma: {"flat": _Sums(), "edge": _Sums()} for sigma in sigmas}
    sampled = {"flat": _Sums(), "edge": _Sums()}
    settings = settings or pipeline.default_settings
    for name, blurry, x_init, s, true, prediction in known:
        local = F.avg_pool2d(true.square().mean(1, keepdim=True), 9, 1, 4, count_include_pad=False).sqrt()
        masks = {"flat": (local < FLAT * overall).float(), "edge": (local > EDGE * overall).float()}
        r_0 = residual(true, 0.0, s)
        eps = torch.randn(r_0.shape, generator=noise_generator(seed, name, 0)).to(r_0)
        for sigma, regions in levels.items():
            alpha_bar = r_0.new_full((1,), level_of(sigma))
            r_t = add_noise(r_0, eps, alpha_bar)
            output = pipeline.denoiser(r_t, blurry, alpha_bar, x_init, s)
            estimate = s * estimate_r_0(output, r_t, alpha_bar, pipeline.denoiser.prediction_type)
            for region, sums in regions.items():
                sums.add(true, estimate, masks[region])
        if settings.blend > 0:
            restored = pipeline.refine_shared(to_world(blurry), prediction, [settings], seed, [name])[0].images[:1]
            for region, sums in sampled.items():
                sums.add(true, to_network(restored) - x_init.clamp(-1, 1), masks[region])
    gates = {}
    for sigma, regions in levels.items():
        for region, sums in regions.items():
            gates[f"{region}_error/{sigma:g}"] = sums.error / max(sums.true, 1e-12)
        gates[f"edge_slope/{sigma:g}"] = regions["edge"].product / max(regions["edge"].estimate, 1e-12)
    if settings.blend > 0:
        gates |= {f"{region}_power": sums.estimate / max(sums.true, 1e-12) for region, sums in sampled.items()}
    return gates


def _known(pipeline: DeblurPipeline, blurry: Tensor, sharp: Tensor) -> tuple[Tensor, ...]:
    """blurry, x_init, s(p), x - x_init, all (1, C, H, W) in [-1, 1], and what `predict` returned."""
    blurry, sharp = blurry[None].to(pipeline.device), sharp[None].to(pipeline.device)
    prediction = pipeline.predict(blurry)
    own = torch.cat([to_network(prediction[:, :3]), prediction[:, 3:]], dim=1)
    blurry, x_init = to_network(blurry), own[:, :3]
    return blurry, x_init, pipeline.scale(own, blurry), to_network(sharp) - x_init, prediction


class Gates(Callback):
    """Log the gates of a run's refiner at each validation, under gates/.

    Args:
        images: number of validation images to compute them on, starting with the first; 0: no gates.
        crop: side in pixels of the centre crop that is used.
    """

    def __init__(self, images: int = 6, crop: int = 128):
        self.images, self.crop = images, crop
        self._kept: list[tuple[str, Tensor, Tensor]] = []

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._kept = []

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        # Done here because at the end of the epoch the averaged weights may already be swapped out.
        if trainer.sanity_checking or pl_module.pipeline().denoiser is None or len(self._kept) == self.images:
            return
        self._kept.append((batch["name"][0], *(self._centre(batch[side][0]) for side in ("blurry", "sharp"))))
        if len(self._kept) == self.images:
            gates = refiner_gates(pl_module.pipeline(), self._kept, settings=pl_module.validation)
            pl_module.log_dict({f"gates/{name}": value for name, value in gates.items()}, on_epoch=True, sync_dist=True)

    def _centre(self, image: Tensor) -> Tensor:
        top, left = ((side - min(side, self.crop)) // 2 for side in image.shape[-2:])
        return image[:, top : top + self.crop, left : left + self.crop].float()
