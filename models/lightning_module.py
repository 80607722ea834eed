"""Training: `Predict` fits the predictor alone, `PredictAndRefine` the predictor and the denoiser of its residual.

Batches are dicts {"blurry", "sharp": (N, 3, H, W) in [0, 1], "name": N strings}. A crop's noise follows from the run's
seed and the crop's number in the training stream. So a resumed run draws what an uninterrupted one would, and several
processes, or several accumulated batches, draw what one process would for one large batch. Dropout follows from
the seed, the rank and the number of the batch.
"""

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor, nn

from base.seeds import noise_seed
from models.checkpoints import describe
from models.classes import require_network
from models.devices import require_compiler
from models.diffusion import (
    ResidualColours,
    ScaleKind,
    add_noise,
    add_residual,
    estimate_r_0,
    laplace_loss,
    residual,
    residual_size,
)
from models.objective import Crops, Distance, Objective, distance
from models.parts import DDPMScheduler, randn_tensor
from models.pipeline import DeblurOutput, DeblurPipeline
from models.samples import to_network
from models.schedules import NoiseSchedule, level_of
from models.settings import SamplingSettings
from models.warm_start import copy_weights

SIZE_WEIGHT = 0.01  # all gradients are clipped together, and the size head's must not dominate


class Predict(L.LightningModule):
    """Train the predictor g alone, by the mean absolute error of all its outputs.

    Args:
        predictor: g.
        perceptual: a term added to the predictor's loss, such as evaluation.perceptual.PerceptualLoss: a function of
            (x_init, sharp), both (N, 3, H, W) in [-1, 1], that returns a scalar. none: no such term.
        init_from: checkpoint (exported folder, hub id or .ckpt) whose predictor to start from; None for random weights.
        lr: peak learning rate of AdamW.
        weight_decay: of AdamW.
        betas: of AdamW.
        warmup_steps: steps of linear warm-up; then a cosine decay to zero at trainer.max_steps.
        decay_steps: length of that decay. The learning rate stays at its peak before it, so a run can be made longer
            until the decay begins (Hägele et al. 2024). none: the decay starts after the warm-up.
        loss: distance of the predictor's outputs to the ground truth; see `distance`.
        fft_weight: weight of the mean absolute error of the outputs' 2-D Fourier transforms, added to the loss
            (MIMO-UNet, Cho et al., ICCV 2021: 0.1).
        compiled: compile the networks for training (torch.compile). The first steps then take minutes; validation
            runs uncompiled.
    """

    flops_per_batch: int | None = None  # Lightning's monitor of the speed asks for it

    def __init__(
        self,
        predictor: nn.Module,
        perceptual: Callable | None = None,
        init_from: str | None = None,
        lr: float = 2e-4,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        warmup_steps: int = 1000,
        compiled: bool = False,
        decay_steps: int | None = None,
        loss: Distance = "l1",
        fft_weight: float = 0.0,
    ):
        super().__init__()
        self.loss, self.fft_weight, self.decay_steps = loss, fft_weight, decay_steps
        require_network(predictor, "predictor")
        self.predictor = predictor.to(memory_format=torch.channels_last)
        self.perceptual = perceptual
        self.lr, self.weight_decay, self.betas, self.warmup_steps = lr, weight_decay, betas, warmup_steps
        self.compiled = compiled
        self.skipped_step: int | None = None  # the last one, counted from 0, whose gradient was not used
        if compiled:  # both are replaced in place, so that the names of the weights stay the same
            predictor.estimates = torch.compile(predictor.estimates)
        if init_from is not None:
            copy_weights(init_from, predictor=predictor)

    def pipeline(self) -> DeblurPipeline:
        """The pipeline with the current weights, for validation, sampling and export."""
        scheduler = DDPMScheduler(num_train_timesteps=1, trained_betas=[0.5])
        return DeblurPipeline(self.predictor, None, scheduler)

    def objective_values(self) -> dict:
        """The training objective as plain values. It is stored with a checkpoint and must not change on resume."""
        perceptual = None if self.perceptual is None else repr(self.perceptual)
        return {"perceptual": perceptual, "loss": self.loss, "fft_weight": self.fft_weight}

    def predictor_loss(self, blurry: Tensor, sharp: Tensor) -> tuple[Tensor, Tensor]:
        """The output of the predictor's forward and its loss; images in [-1, 1]."""
        estimates = self.predictor.estimates(blurry)
        prediction, estimates[0] = estimates[0], estimates[0][:, :3]
        loss = torch.stack([distance(estimate - sharp, self.loss) for estimate in estimates]).mean()
        if self.fft_weight:
            frequencies = torch.fft.rfft2(estimates[0] - sharp, norm="ortho")
            loss = loss + self.fft_weight * torch.view_as_real(frequencies).abs().mean()
        if self.perceptual is not None:
            perceptual = self.perceptual(estimates[0], sharp)
            self.log("train/perceptual_loss", perceptual)
            loss = loss + perceptual
        if prediction.shape[1] > 3:  # this term trains the size head alone
            size_loss = laplace_loss(prediction[:, 3:], sharp - estimates[0])
            self.log("train/size_loss", size_loss)
            loss = loss + SIZE_WEIGHT * size_loss
        return prediction, loss

    def training_step(self, batch: dict, batch_idx: int) -> Tensor:
        blurry, sharp = to_network(batch["blurry"]), to_network(batch["sharp"])
        _, loss = self.predictor_loss(blurry, sharp)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def restore(self, batch: dict) -> DeblurOutput:
        """The restored images that validation and test score."""
        return self.pipeline()(batch["blurry"], SamplingSettings(blend=0.0), output_type="pt")

    # Validation images have many sizes, and each would be compiled separately.
    @torch.compiler.set_stance("force_eager")
    def validation_step(self, batch: dict, batch_idx: int) -> DeblurOutput:
        return self.restore(batch)

    test_step = validation_step

    def on_fit_start(self) -> None:
        if self.compiled:
            require_compiler(self.device)
        self._seed = torch.initial_seed()

    def on_train_batch_start(self, batch: dict, batch_idx: int) -> None:
        number = self.trainer.fit_loop.epoch_loop.total_batch_idx
        torch.manual_seed(noise_seed(self._seed, self.global_rank, number))

    def crop_generators(self, crops: int) -> list[torch.Generator]:
        """A random generator for each of this process's crops of the step, seeded by the seed and the crop's number."""
        number = self.trainer.fit_loop.epoch_loop.total_batch_idx
        first = (number * self.trainer.world_size + self.global_rank) * crops
        seeds = [noise_seed(self._seed, crop) for crop in range(first, first + crops)]
        return [torch.Generator(self.device).manual_seed(seed) for seed in seeds]

    def configure_optimizers(self) -> dict:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        fused = self.device.type in ("cuda", "cpu") or None
        optimizer = torch.optim.AdamW(trained, self.lr, self.betas, weight_decay=self.weight_decay, fused=fused)
        # The fused optimizer could unscale fp16's gradients itself, but they are inspected and clipped before.
        optimizer._step_supports_amp_scaling = False
        warmup, total = self.warmup_steps, self.trainer.max_steps

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / warmup
            decay = total - warmup if self.decay_steps is None else self.decay_steps
            return 0.5 * (1 + math.cos(math.pi * max(0, step - (total - decay)) / max(1, decay)))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        # This makes a .ckpt self-describing in plain values: it loads without its config and without pickle.
        checkpoint["pipeline"] = describe(self.pipeline())
        checkpoint["objective"] = self.objective_values()


class PredictAndRefine(Predict):
    """Train the predictor g and the denoiser f of its residual (Whang et al. 2022, section 3).

    loss = objective(output of f, its target) + predictor_weight * predictor_loss

    Args:
        predictor: g.
        denoiser: f; its prediction_type decides the target.
        schedule: noise schedule of training.
        objective: the denoiser's loss and the distribution of its noise levels; the paper uses L1 and levels uniform in
            alpha_bar.
        perceptual: as in `Predict`; a part of the predictor's loss.
        refiner_perceptual: the same for the refiner: a term of the denoiser's loss, computed on x_init + s r_0 with
            the estimated r_0. The squared error alone favours smooth images where the residual is uncertain.
        perceptual_ramp: the steps between which that term rises from zero to its weight.
        perceptual_sigma: the lowest noise level at which that term counts, as sigma in units of r_0. A sample
            of few steps depends on the estimates at high noise; at low noise the squared error alone keeps samples
            close to the data.
        noises: noise levels and noise fields drawn for each crop. They share its prediction, so the denoiser's batch is
            that many times larger than the predictor's.
        predictor_weight: weight of the predictor's own loss; 0 for the paper's single loss, which trains g through f.
        predictor_training: detached: g learns from its own loss alone; joint: the denoiser's loss reaches g through the
            residual (the paper); frozen: g keeps the weights of init_from.
        scale_kind: how m in the residual's scale s(p) = c m(p) is computed: global (m = 1, the paper's), local (from
            how much the predictor changed) or learned (the predictor's size head); see
            `models.diffusion.residual_size`.
        residual_colours: rgb, or luma_chroma: r_0 along `models.diffusion.AXES`, each with its own c.
        residual_scale: c. None: the standard deviation of (x - x_init) / m, measured during training as a running mean
            of its square over about the last 1000 steps. 1, with scale_kind global, for the paper's unscaled residual.
        validation: how validation and test sample.
        init_from: checkpoint to start from: its predictor and, if it has one, its denoiser.
        optimisation: as in `Predict`: lr, weight_decay, betas, warmup_steps, compiled, decay_steps, loss,
            fft_weight.
    """

    def __init__(
        self,
        predictor: nn.Module,
        denoiser: nn.Module,
        schedule: NoiseSchedule = NoiseSchedule(),  # noqa: B008 (frozen)
        objective: Objective = Objective(),  # noqa: B008 (frozen)
        perceptual: Callable | None = None,
        predictor_weight: float = 1.0,
        predictor_training: Literal["joint", "detached", "frozen"] = "detached",
        residual_scale: float | None = None,
        scale_kind: ScaleKind = "global",
        residual_colours: ResidualColours = "rgb",
        refiner_perceptual: Callable | None = None,
        perceptual_ramp: tuple[int, int] = (0, 0),
        perceptual_sigma: float = 0.0,
        noises: int = 1,
        validation: SamplingSettings = SamplingSettings(steps=10),  # noqa: B008 (frozen)
        init_from: str | None = None,
        **optimisation: Any,
    ):
        if scale_kind == "learned" and not predictor.config.get("size_head"):
            raise ValueError("scale_kind learned needs a predictor with size_head: true")
        if residual_colours == "luma_chroma" and residual_scale is not None:
            raise ValueError("residual_scale must be null with residual_colours luma_chroma: three scales are measured")
        if noises < 1:
            raise ValueError(f"noises must be at least 1, got {noises}")
        if perceptual is not None and (predictor_training == "frozen" or predictor_weight == 0):
            raise ValueError("perceptual is a term of the predictor's loss: omit it where that has no weight")
        super().__init__(predictor, perceptual, None, **optimisation)
        require_network(denoiser, "denoiser")
        self.objective = objective
        self.scale_kind, self.noises = scale_kind, noises
        self.refiner_perceptual, self.perceptual_ramp = refiner_perceptual, perceptual_ramp
        self.perceptual_level = level_of(perceptual_sigma)
        self.denoiser = denoiser.to(memory_format=torch.channels_last)
        if self.compiled:
            denoiser.compile()
        self.predictor_weight, self.predictor_training = predictor_weight, predictor_training
        self.validation, self.residual_scale = validation, residual_scale
        self.schedule_betas = schedule.betas()
        self.register_buffer("alphas_cumprod", (1 - self.schedule_betas).cumprod(0), persistent=False)
        # Running mean of ((x - x_init) / m)^2 and its number of steps; both float, so that weight averaging works.
        shape = () if residual_colours == "rgb" else (3, 1, 1)
        self.register_buffer("residual_square", torch.ones(shape))
        self.register_buffer("residual_steps", torch.tensor(0.0))
        if init_from is not None:
            copy_weights(init_from, predictor=predictor, denoiser=denoiser)
        if predictor_training == "frozen":
            predictor.requires_grad_(False).eval()  # eval also freezes batch statistics; Lightning keeps the mode

    def scale(self) -> Tensor | float:
        """The current value of c."""
        return self.residual_square.sqrt() if self.residual_scale is None else self.residual_scale

    def pipeline(self) -> DeblurPipeline:
        betas = self.schedule_betas.tolist()
        scheduler = DDPMScheduler(num_train_timesteps=len(betas), trained_betas=betas)
        scale = self.scale()
        scale = scale.flatten().tolist() if isinstance(scale, Tensor) and scale.ndim else float(scale)
        return DeblurPipeline(self.predictor, self.denoiser, scheduler, scale, scale_kind=self.scale_kind)

    def objective_values(self) -> dict:
        return super().objective_values() | {
            "objective": asdict(self.objective),
            "predictor_weight": self.predictor_weight,
            "predictor_training": self.predictor_training,
            "scale": "measured" if self.residual_scale is None else self.residual_scale,
            "scale_kind": self.scale_kind,
            "residual_colours": "luma_chroma" if self.residual_square.ndim else "rgb",
            "refiner_perceptual": None if self.refiner_perceptual is None else repr(self.refiner_perceptual),
        }

    def training_step(self, batch: dict, batch_idx: int) -> dict[str, Tensor]:
        """The paper's algorithm 1. Returns the loss and, for callbacks, each noisy crop's own and its noise level."""
        crops, predictor_loss = self._crops(to_network(batch["blurry"]), to_network(batch["sharp"]))
        u, eps = self._draw(crops.r_0)
        alpha_bar = self.objective.draw(self.alphas_cumprod, u)
        r_t = add_noise(crops.r_0, eps, alpha_bar)
        output = self.denoiser(r_t, crops.blurry, alpha_bar, crops.x_init, crops.s)
        losses = self.objective.losses(output, crops.r_0, crops.s, eps, alpha_bar, self.denoiser.prediction_type)
        denoiser_loss = losses.mean() + self._perceptual_term(crops, output, r_t, alpha_bar)
        loss = denoiser_loss + self.predictor_weight * predictor_loss
        scale = torch.as_tensor(self.scale()).mean()
        self.log_dict({"train/denoiser_loss": denoiser_loss, "train/residual_scale": scale})
        self.log("train/loss", loss, prog_bar=True)
        return {"loss": loss, "losses": losses.detach(), "alpha_bar": alpha_bar}

    def _crops(self, blurry: Tensor, sharp: Tensor) -> tuple[Crops, Tensor | float]:
        """Predict crops in [-1, 1], repeated for each of their noises, and the predictor's loss."""
        if self.predictor_training == "frozen":
            with torch.no_grad():
                prediction, loss = self.predictor.estimates(blurry)[0], 0.0
        else:
            prediction, loss = self.predictor_loss(blurry, sharp)
            self.log("train/predictor_loss", loss)
        size = residual_size(self.scale_kind, prediction.detach(), blurry)
        x_init, fixed = prediction[:, :3], prediction[:, :3].detach()
        if self.residual_scale is None:
            unit = torch.ones_like(self.residual_square)  # a scale of three channels for luma and chroma
            self._measure_residual(residual(sharp, fixed, unit * size))
        s = self.scale() * size
        r_0 = residual(sharp, x_init if self.predictor_training == "joint" else fixed, s)
        crops = Crops(blurry, sharp, fixed, s, r_0)
        # (N, ...) -> (N noises, ...), with the noises of one crop in a row
        return crops if self.noises == 1 else Crops(*(x.repeat_interleave(self.noises, 0) for x in crops)), loss

    def _draw(self, r_0: Tensor) -> tuple[Tensor, Tensor]:
        """The random numbers of noisy crops: u (N noises,), which places their levels in [0, 1), and eps, like r_0."""
        generators = self.crop_generators(len(r_0) // self.noises)
        like = {"dtype": torch.float64, "device": self.device}
        u = torch.stack([torch.rand(self.noises, generator=generator, **like) for generator in generators])
        if self.objective.stratified:
            crops = len(generators) * self.trainer.world_size
            first = self.trainer.global_rank * len(generators)
            # Noise k of crop n gets share k crops + n, so that one crop sees levels far apart.
            share = torch.arange(self.noises)[None] * crops + (first + torch.arange(len(generators)))[:, None]
            u = (share.to(u) + u) / (crops * self.noises)
        each = [generator for generator in generators for _ in range(self.noises)]
        return u.flatten(), randn_tensor(r_0.shape, each, self.device)

    def _perceptual_term(self, crops: Crops, output: Tensor, r_t: Tensor, alpha_bar: Tensor) -> Tensor | float:
        """The refiner's perceptual loss, on the images that its estimates of r_0 make."""
        noisy, kind = alpha_bar <= self.perceptual_level, self.denoiser.prediction_type
        if self.refiner_perceptual is None or not noisy.any():
            return 0.0
        restored = add_residual(crops.x_init, estimate_r_0(output, r_t, alpha_bar, kind), crops.s)
        # A mean over all crops: those below perceptual_sigma count as zero.
        perceptual = self.refiner_perceptual(restored[noisy], crops.sharp[noisy]) * noisy.float().mean()
        self.log("train/refiner_perceptual", perceptual)
        start, end = self.perceptual_ramp
        return min(1.0, max(0.0, (self.global_step - start + 1) / max(1, end - start))) * perceptual

    def restore(self, batch: dict) -> DeblurOutput:
        return self.pipeline()(batch["blurry"], self.validation, names=batch["name"], output_type="pt")

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        super().on_save_checkpoint(checkpoint)
        if self.residual_scale is None:
            # The averaging callback has already replaced the raw weights by the averages.
            scale = checkpoint["state_dict"]["residual_square"].sqrt()
            checkpoint["pipeline"]["residual_scale"] = scale.flatten().tolist() if scale.ndim else scale.item()

    @torch.no_grad()
    def _measure_residual(self, missed: Tensor) -> None:
        square = missed.square().mean((0, 2, 3), keepdim=True)[0]
        square = self.trainer.strategy.reduce(square if self.residual_square.ndim else square.mean(), reduce_op="mean")
        self.residual_steps += 1
        self.residual_square.lerp_(square, 1 / self.residual_steps.clamp(max=1000))
