"""Training: `Predict` fits the predictor alone, `PredictAndRefine` the predictor and the denoiser of its residual.

Batches are dicts {"blurry", "sharp": (N, 3, H, W) in [0, 1], "name": N strings}; with stored predictions (see
`data.predictions`) also "x_init" (N, 3, H, W) in [0, 1] and, of a size head, "log_size" (N, 1, H, W). They are the
frozen predictor's, or those of the frozen first network of a cascade whose second learns. What the random numbers of a
crop and of dropout follow from is decision 9 of docs/design.md.
"""

import math
from dataclasses import dataclass
from typing import Literal

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from deblur.architectures import load_weights, require_network
from deblur.checkpoints import network_hash
from deblur.devices import require_compiler
from deblur.draft import DeblurOutput
from deblur.models.diffusion import (
    Estimator,
    add_noise,
    add_residual,
    colours_of,
    residual,
    residual_size,
    to_network,
)
from deblur.models.losses import Objective, PredictorLoss, Residual
from deblur.models.networks.base import Cascade
from deblur.models.networks.mixins import ModelMixin
from deblur.models.schedules import NoiseSchedule
from deblur.pipeline import Area, DeblurPipeline, load_pipeline, stored_schedule
from deblur.seeds import noise_seed
from deblur.settings import SamplingSettings

FULL_SIZE = Area(scale=1.0)  # at which validation scores, whatever the rule for large images says


@dataclass(frozen=True)
class Optimizer:
    """AdamW with a linear warm-up and a final cosine decay of its learning rate.

    Args:
        lr: peak learning rate.
        weight_decay: of AdamW.
        betas: of AdamW.
        warmup_steps: steps of linear warm-up.
        decay_steps: length of the decay to zero, which ends at trainer.max_steps. The learning rate stays at its peak
            before it, so a run can be made longer until the decay begins (Hägele et al. 2024). none: the decay starts
            after the warm-up.
    """

    lr: float = 2e-4
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    warmup_steps: int = 1000
    decay_steps: int | None = None

    def build(self, parameters: list[nn.Parameter], max_steps: int) -> tuple[AdamW, LambdaLR]:
        """The optimizer of parameters, and the scheduler of its learning rate, which steps once per step."""
        fused = all(parameter.device.type in ("cuda", "cpu") for parameter in parameters) or None
        optimizer = AdamW(parameters, self.lr, self.betas, weight_decay=self.weight_decay, fused=fused)

        def factor(step: int) -> float:
            if step < self.warmup_steps:
                return (step + 1) / self.warmup_steps
            decay = max_steps - self.warmup_steps if self.decay_steps is None else self.decay_steps
            return 0.5 * (1 + math.cos(math.pi * max(0, step - (max_steps - decay)) / max(1, decay)))

        return optimizer, LambdaLR(optimizer, factor)


class Predict(L.LightningModule):
    """Train the predictor g alone.

    Args:
        predictor: g.
        predictor_loss: the loss of all its outputs.
        optimizer: AdamW and the learning rate's schedule.
        init_from: checkpoint (exported folder, hub id or .ckpt) whose predictor to start from, with its rule for the
            scale of large images; None for random weights.
        compiled: compile the networks for training (torch.compile). The first steps then take minutes; validation
            runs uncompiled.
    """

    flops_per_batch: int | None = None  # Lightning's monitor of the speed asks for it
    frozen = False  # whether the predictor stays as it is

    def __init__(
        self,
        predictor: nn.Module,
        predictor_loss: PredictorLoss = PredictorLoss(),  # noqa: B008 (frozen)
        optimizer: Optimizer = Optimizer(),
        init_from: str | None = None,
        compiled: bool = False,
    ):
        super().__init__()
        require_network(predictor, "predictor")
        self.predictor = predictor.to(memory_format=torch.channels_last)
        self.predictor_loss, self.optimizer, self.compiled = predictor_loss, optimizer, compiled
        self.skipped_step: int | None = None  # the last one, counted from 0, whose gradient was not used
        if compiled:  # both are replaced in place, so that the names of the weights stay the same
            predictor.estimates = torch.compile(predictor.estimates)
        self.working_size: dict | None = None
        if init_from is not None:
            self.working_size = copy_weights(init_from, predictor=predictor).config.get("working_size")

    def pipeline(self) -> DeblurPipeline:
        """The pipeline with the current weights, for validation, sampling and export."""
        schedule = stored_schedule(torch.tensor([0.5]))
        return DeblurPipeline(self.predictor, None, schedule, working_size=self.working_size)

    def predict(self, batch: dict, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor | float]:
        """x_init, what a size head says (otherwise None), and their loss; images in [-1, 1].

        A frozen predictor has the loss 0, and is not run where its prediction was stored.
        """
        stored = [to_network(batch["x_init"])] if "x_init" in batch else []
        if self.frozen and stored:
            return stored[0], batch.get("log_size"), 0.0
        with torch.set_grad_enabled(not self.frozen):
            estimates, log_size = self.predictor.estimates(y, *stored)
        if self.frozen:
            return estimates[0], log_size, 0.0
        loss, terms = self.predictor_loss(estimates, log_size, x)
        self.log_dict({f"train/{name}": term for name, term in terms.items()})
        return estimates[0], log_size, loss

    def training_step(self, batch: dict, batch_idx: int) -> Tensor:
        *_, loss = self.predict(batch, to_network(batch["blurry"]), to_network(batch["sharp"]))
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def restore(self, batch: dict) -> DeblurOutput:
        """The restored images that validation and test score."""
        return self.pipeline()(batch["blurry"], SamplingSettings(blend=0.0), output_type="pt", area=FULL_SIZE)

    # Validation images have many sizes, and each would be compiled separately.
    @torch.compiler.set_stance("force_eager")
    def validation_step(self, batch: dict, batch_idx: int) -> DeblurOutput:
        return self.restore(batch)

    test_step = validation_step

    def on_fit_start(self) -> None:
        if self.compiled:
            require_compiler(self.device)
        self._require_own_predictions()
        self._seed = torch.initial_seed()

    def on_train_batch_start(self, batch: dict, batch_idx: int) -> None:
        number = self.trainer.fit_loop.epoch_loop.total_batch_idx
        torch.manual_seed(noise_seed(self._seed, self.global_rank, number))

    def _require_own_predictions(self) -> None:
        """Raise ValueError if the data hands over predictions that are not those of the frozen network."""
        made_by = getattr(self.trainer.datamodule, "predictor_sha256", None)
        if made_by is None:
            return
        cascade = isinstance(self.predictor, Cascade) and self.predictor.frozen
        if not self.frozen and not cascade:
            raise ValueError(
                "data.predictions belongs to model.predictor_training frozen, or to a cascade whose first network is"
                " frozen: a predictor that learns makes its own predictions; omit data.predictions"
            )
        network, flag = (self.predictor, "") if self.frozen else (self.predictor.first, " --first true")
        if made_by != network_hash(network):
            raise ValueError(
                "the stored predictions are those of another network than the frozen one of model.init_from: store its"
                f" own with python -m tools.make_pairs PAIRS --predict CHECKPOINT{flag}, or omit data.predictions"
            )

    def configure_optimizers(self) -> dict:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer, scheduler = self.optimizer.build(trained, self.trainer.max_steps)
        # The fused optimizer could unscale fp16's gradients itself, but they are inspected and clipped before.
        optimizer._step_supports_amp_scaling = False
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        # This makes a .ckpt self-describing in plain values: it loads without its config and without pickle.
        checkpoint["pipeline"] = self.pipeline().describe()

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        self.working_size = checkpoint.get("pipeline", {}).get("working_size")


class PredictAndRefine(Predict):
    """Train the predictor g and the denoiser f of its residual (Whang et al. 2022, section 3).

    loss = objective(output of f, its target) + predictor_loss.weight * predictor_loss(g)

    Args:
        predictor: g.
        denoiser: f; its prediction_type decides the target.
        schedule: noise schedule of training.
        objective: the denoiser's loss and its noise levels; the paper uses L1 and levels uniform in alpha_bar.
        residual: the units of r_0.
        predictor_loss: the loss of all outputs of g; the paper has none.
        predictor_training: detached: g learns from its own loss alone; joint: the denoiser's loss reaches g through the
            residual (the paper); frozen: g keeps the weights of init_from, and is not run where the data hands over
            its stored predictions.
        optimizer: AdamW and the learning rate's schedule.
        validation: how validation and test sample.
        init_from: checkpoint to start from: its predictor and, if it has one, its denoiser.
        compiled: as in `Predict`.
    """

    def __init__(
        self,
        predictor: nn.Module,
        denoiser: nn.Module,
        schedule: NoiseSchedule = NoiseSchedule(),  # noqa: B008 (frozen)
        objective: Objective = Objective(),  # noqa: B008 (frozen)
        residual: Residual = Residual(),  # noqa: B008 (frozen)
        predictor_loss: PredictorLoss = PredictorLoss(),  # noqa: B008 (frozen)
        predictor_training: Literal["joint", "detached", "frozen"] = "detached",
        optimizer: Optimizer = Optimizer(),
        validation: SamplingSettings = SamplingSettings(steps=10),  # noqa: B008 (frozen)
        init_from: str | None = None,
        compiled: bool = False,
    ):
        if residual.scale_kind == "learned" and not predictor.config.get("size_head"):
            raise ValueError("residual.scale_kind learned needs a predictor with size_head: true")
        if predictor_loss.image_loss is not None and (predictor_training == "frozen" or predictor_loss.weight == 0):
            raise ValueError(
                "predictor_loss.image_loss belongs to a loss without effect: omit it, or give that a weight"
            )
        super().__init__(predictor, predictor_loss, optimizer, None, compiled)
        require_network(denoiser, "denoiser")
        self.denoiser = denoiser.to(memory_format=torch.channels_last)
        if compiled:
            denoiser.compile()
        self.objective, self.residual = objective, residual
        self.predictor_training, self.validation = predictor_training, validation
        self.register_buffer("levels", schedule.levels(), persistent=False)
        # Running mean of ((x - x_init) / m)^2 and its number of steps; both float, so that weight averaging works.
        squares = {"rgb": 1.0, "luma": [[[1.0]], [[0.0]], [[0.0]]], "luma_chroma": [[[1.0]]] * 3}
        self.register_buffer("residual_square", torch.tensor(squares[residual.colours]))
        self.register_buffer("residual_steps", torch.tensor(0.0))
        if init_from is not None:
            started = copy_weights(init_from, predictor=predictor, denoiser=denoiser)
            self.working_size = started.config.get("working_size")
            colours = colours_of(started.config.residual_scale)
            if started.denoiser is not None and colours != residual.colours:
                raise ValueError(
                    f"residual.colours is {residual.colours}, and the denoiser of {init_from} was trained with"
                    f" {colours}: give --model.residual.colours {colours}"
                )
        self.frozen = predictor_training == "frozen"
        if self.frozen:
            predictor.requires_grad_(False).eval()  # eval also freezes batch statistics; Lightning keeps the mode

    def pipeline(self) -> DeblurPipeline:
        c = self.residual_square.sqrt().squeeze().tolist() if self.residual.scale is None else self.residual.scale
        sigma_min, sigma_max = self.objective.bounds
        return DeblurPipeline(
            self.predictor,
            self.denoiser,
            stored_schedule(self.levels.cpu()),
            c,
            scale_kind=self.residual.scale_kind,
            sigma_min=sigma_min,
            sigma_max=sigma_max,
            working_size=self.working_size,
        )

    def on_train_batch_start(self, batch: dict, batch_idx: int) -> None:
        """Seed dropout and, by their own numbers, the noises of this process's crops."""
        super().on_train_batch_start(batch, batch_idx)
        number, crops = self.trainer.fit_loop.epoch_loop.total_batch_idx, len(batch["sharp"])
        first = (number * self.trainer.world_size + self.global_rank) * crops
        seeds = [noise_seed(self._seed, crop) for crop in range(first, first + crops)]
        self.generators = [torch.Generator(self.device).manual_seed(seed) for seed in seeds]

    def training_step(self, batch: dict, batch_idx: int) -> dict[str, Tensor]:
        """The paper's algorithm 1, in the order of docs/method.py.

        Returns the loss and, for callbacks, each noisy crop's own and its noise level.
        """
        y, x = to_network(batch["blurry"]), to_network(batch["sharp"])
        x_init, log_size, predictor_loss = self.predict(batch, y, x)
        s = self.scale(x, y, x_init, log_size)
        # (N, ...) -> (N noises, ...), with the noises of one crop in a row
        x, y, x_init, s = (tensor.repeat_interleave(self.objective.noises, 0) for tensor in (x, y, x_init, s))
        a, eps = self.objective.draw(self.levels, self.generators, x.shape, self.global_rank, self.trainer.world_size)
        r_0 = residual(x, x_init if self.predictor_training == "joint" else x_init.detach(), s)
        x_init = x_init.detach()
        r_t = add_noise(r_0, eps, a)
        f = Estimator(self.denoiser)
        estimate = f(r_t, y, a, x_init, s)
        losses = self.objective.losses(estimate - r_0, f.weight(a), s)
        denoiser_loss = losses.mean()
        if self.objective.image_loss is not None:
            image_loss = self.objective.image_loss_at(self.global_step, add_residual(x_init, estimate, s), x, a)
            self.log("train/denoiser_image_loss", image_loss)
            denoiser_loss = denoiser_loss + image_loss
        loss = denoiser_loss + self.predictor_loss.weight * predictor_loss
        if not self.frozen:
            self.log("train/predictor_loss", predictor_loss)
        self.log("train/denoiser_loss", denoiser_loss)
        self.log("train/loss", loss, prog_bar=True)
        return {"loss": loss, "losses": losses.detach(), "alpha_bar": a}

    @torch.no_grad()
    def scale(self, x: Tensor, y: Tensor, x_init: Tensor, log_size: Tensor | None) -> Tensor:
        """The residual's scale s(p) = c m(p), after c was measured anew, if it is."""
        size = residual_size(self.residual.scale_kind, y, x_init, log_size)
        c = self.residual.scale
        if c is None:
            unit = (self.residual_square > 0).float()
            square = residual(x, x_init, unit * size).square().mean((0, 2, 3), keepdim=True)[0]
            square = square if self.residual_square.ndim else square.mean()
            square = self.trainer.strategy.reduce(square, reduce_op="mean")
            self.residual_steps += 1
            self.residual_square.lerp_(square, 1 / self.residual_steps.clamp(max=1000))
            c = self.residual_square.sqrt()
            self.log("train/residual_scale", c.mean())
        return c * size

    def restore(self, batch: dict) -> DeblurOutput:
        settings, names = self.validation, batch["name"]
        return self.pipeline()(batch["blurry"], settings, names=names, output_type="pt", area=FULL_SIZE)


def copy_weights(source: str, predictor: nn.Module, denoiser: nn.Module | None = None) -> DeblurPipeline:
    """Start networks from those of another checkpoint: its predictor and, if both sides have one, its denoiser.

    Args:
        source: anything that `load_pipeline` accepts.

    Returns:
        The other checkpoint's pipeline.

    Raises:
        CheckpointError: the checkpoint has another architecture.
    """
    classes = [type(network) for network in (predictor, denoiser) if isinstance(network, ModelMixin)]
    pipeline = load_pipeline(source, precision="fp32", classes=classes)
    stored = pipeline.networks
    for part, network in {"predictor": predictor, "denoiser": denoiser}.items():
        if network is not None and part in stored:
            state = stored[part].state_dict()
            # A size head may be added to a predictor that was trained without one.
            state |= {k: v for k, v in network.state_dict().items() if k not in state and "log_size." in k}
            load_weights(network, state, f"the {part} of {source}")
    return pipeline
