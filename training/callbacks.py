"""What a run does besides its steps: averages, scores, guards, logs, its record and its progress bar."""

import logging
import math
import os
import shutil
import warnings
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
import yaml
from jsonargparse import Namespace
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, ThroughputMonitor, WeightAveraging
from lightning.pytorch.cli import LightningArgumentParser, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_only
from PIL import Image
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from deblur import progress
from deblur.evaluation.perceptual import Lpips
from deblur.evaluation.pixels import MetricError, psnr
from deblur.evaluation.plots import panel
from deblur.pipeline import DeblurPipeline
from deblur.revision import commit
from deblur.storage import replacing
from deblur.training.module import Predict

LOG_SNR_EDGES = (-8.0, -4.0, 0.0, 4.0)  # of the bins of denoiser_loss


class Metrics(CSVLogger):
    """CSVLogger with one row a step, written when the next step's values come; Lightning's has one row a call."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.newest: dict[str, Any] = {}  # the newest step's row

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        if self.newest and self.newest["step"] != step:
            super().log_metrics(self.newest, self.newest["step"])
            self.newest = {}
        if metrics:
            self.newest |= metrics | {"step": step}

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.log_metrics({})
        super().finalize(status)


class Track(Callback):
    """Log what each step is made of, and print a summary of the run.

    Loggers count steps like the rest of the run: results of the third step are logged at 3, not at 2 as by Lightning,
    which takes a value named `step` for that of all others.

    Every trainer.log_every_n_steps: lr; grad_norm/predictor and grad_norm/denoiser, before clipping, and
    denoiser_loss/snr_0 .. snr_4: the denoiser's mean loss since the previous log, by log-SNR of the crop: below -8,
    up to -4, up to 0, up to 4, and above.
    """

    def __init__(self):
        self.sums = torch.zeros(2, len(LOG_SNR_EDGES) + 1)  # per bin: this process's sum of losses and number of crops

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict) -> None:
        sums = trainer.strategy.reduce(self.sums.clone(), reduce_op="sum")
        checkpoint["denoiser_loss_sums"] = sums.tolist()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict) -> None:
        # One process has those of all; older checkpoints have none.
        if trainer.is_global_zero and "denoiser_loss_sums" in checkpoint:
            self.sums = torch.tensor(checkpoint["denoiser_loss_sums"])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.sums = self.sums.to(pl_module.device)
        sizes = {name: sum(weight.numel() for weight in part.parameters()) for name, part in pl_module.named_children()}
        named = [f"{name}: {type(getattr(pl_module, name)).__name__}, {n:,} parameters" for name, n in sizes.items()]
        rank_zero_info(
            f"{'; '.join(named)}\n{trainer.max_steps} steps of {trainer.world_size} x {trainer.datamodule.batch_size} x"
            f" {trainer.accumulate_grad_batches} crops (processes, batch, accumulated), learning rate"
            f" {pl_module.optimizer.lr:.3g} at its peak, {trainer.precision}, seed {torch.initial_seed()}"
        )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch, batch_idx) -> None:
        pl_module.log("lr", trainer.optimizers[0].param_groups[0]["lr"])

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer) -> None:
        if (trainer.global_step + 1) % trainer.log_every_n_steps:
            return
        for name, part in pl_module.named_children():
            gradients = [parameter.grad for parameter in part.parameters() if parameter.grad is not None]
            if gradients:  # there are none if the part is frozen or the guard skipped the step
                norm = nn.utils.get_total_norm(gradients).item()
                log_values(trainer, {f"grad_norm/{name}": norm}, trainer.global_step + 1)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs, batch, batch_idx) -> None:
        pl_module.log("step", trainer.global_step)
        if "losses" not in outputs:
            return
        bins = torch.bucketize(outputs["alpha_bar"].logit(), torch.tensor(LOG_SNR_EDGES, device=self.sums.device))
        losses = outputs["losses"].float()
        finite = losses.isfinite()
        self.sums.index_add_(1, bins, torch.stack([losses.where(finite, 0), finite.float()]))
        if (batch_idx + 1) % trainer.accumulate_grad_batches or trainer.global_step % trainer.log_every_n_steps:
            return
        sums = trainer.strategy.reduce(self.sums, reduce_op="sum").T.tolist()
        means = {f"denoiser_loss/snr_{k}": total / crops for k, (total, crops) in enumerate(sums) if crops}
        log_values(trainer, means, trainer.global_step)
        self.sums = torch.zeros_like(self.sums)

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        if trainer.state.fn == "fit":
            pl_module.log("step", trainer.global_step, on_step=False, on_epoch=True, batch_size=1)


def log_values(trainer: Trainer, values: dict[str, float], step: int) -> None:
    """Log values that not every step has; a module's own `log` repeats them in the steps that lack them."""
    for logger in trainer.loggers:
        logger.log_metrics(values, step)


class RecordConfig(SaveConfigCallback):
    """Write config.yaml beside the checkpoints. The config also goes into them and, with the git commit, to loggers."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        root = Path(trainer.default_root_dir)
        root.mkdir(parents=True, exist_ok=True)
        with replacing(root / "config.yaml") as part:
            part.write_text(yaml.safe_dump(self.values, sort_keys=False))
        for logger in trainer.loggers:
            logger.log_hyperparams({"config": self.values, "commit": commit()})

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict) -> None:
        checkpoint["config"] = self.values

    @cached_property
    def values(self) -> dict:
        return values_of(self.parser, self.config)


def values_of(parser: LightningArgumentParser, config: Namespace) -> dict:
    """A parsed config as dicts, lists, strings and numbers."""
    return yaml.safe_load(parser.dump(config, skip_none=False))


class Speed(ThroughputMonitor):
    """Log the speed of training: train/samples_per_sec and more, over the last batches, validation left out."""

    def _compute(self, trainer: Trainer, iter_num: int | None = None) -> None:
        if trainer.training:
            super()._compute(trainer, trainer.global_step)


def export_pipeline(pipeline: DeblurPipeline, root: Path) -> None:
    """Write a pipeline to checkpoint/ in a run's folder, replacing what is there."""
    folder = root / "checkpoint"
    with replacing(folder) as part:
        pipeline.save_pretrained(part)
        if folder.is_dir():
            shutil.rmtree(folder)
    rank_zero_info(f"wrote {folder}: the averaged weights, for sample.py and evaluate.py")


def log_offline_without_key(loggers: list[Logger]) -> None:
    """Make Weights & Biases, if it is among the loggers, log to disk where it has no API key."""
    for logger in loggers:
        # Lightning always passes this option, and Weights & Biases warns that it has no effect.
        getattr(logger, "_wandb_init", {}).pop("anonymous", None)
    if "WANDB_MODE" not in os.environ and any(isinstance(logger, WandbLogger) for logger in loggers):
        import wandb

        if not wandb.login(prompt=False):  # it would otherwise stop and ask for a key
            wandb.setup(wandb.Settings(mode="offline", silent=True))
            rank_zero_info("Weights & Biases: no API key, so the run is logged offline; `wandb sync` uploads it later")


class Averages(WeightAveraging):
    """Exponential moving averages of the networks and their buffers, updated after every step by one kernel per dtype.

    The module's own buffers, the residual's running mean, are copied: an average of it would keep its first values.

    Validation, the `state_dict` of checkpoints and the exported pipeline use the averages.

    Args:
        decay: weight of the old average in the new one.
    """

    def __init__(self, decay: float = 0.999):
        super().__init__(multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.swapped = False  # whether the averages are in place of the weights

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit":  # torch reads this counter in every step; on a device the host would wait for it
            self._average_model.n_averaged = self._average_model.n_averaged.cpu()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Predict, *args: Any) -> None:
        if pl_module.skipped_step == trainer.global_step - 1:
            self._latest_update_step = trainer.global_step
        elif trainer.global_step > self._latest_update_step:  # a step's last batch
            super().on_train_batch_end(trainer, pl_module, *args)
            average = self._average_model.module
            for name, buffer in pl_module.named_buffers(recurse=False):
                average.get_buffer(name).copy_(buffer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.swapped:  # a signal ended the run during validation, and a checkpoint is about to be written
            self._swap_models(pl_module)

    def _swap_models(self, pl_module: LightningModule) -> None:
        super()._swap_models(pl_module)
        self.swapped = not self.swapped


class Guard(Callback):
    """Skip steps whose loss or gradient is not finite, and stop after many in a row.

    A skipped step changes no weights, averages, buffers or optimizer state; with several processes, all skip it. The
    number of skipped steps is logged as guard/skipped. Every step checks the gradients' norm, which makes the host
    wait for the device.

    Args:
        patience: stop after this many skipped steps in a row; 0: no step is checked or skipped.
    """

    def __init__(self, patience: int = 10):
        if patience < 0:
            raise ValueError(f"guard.patience must be at least 0, got {patience}")
        self.patience = patience
        self.skipped = 0
        self.in_a_row = 0

    def state_dict(self) -> dict:
        return {"skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state_dict: dict) -> None:
        self.skipped, self.in_a_row = state_dict["skipped"], state_dict["in_a_row"]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: dict, batch_idx: int) -> None:
        self.names = batch["name"]
        if self.patience and batch_idx % trainer.accumulate_grad_batches == 0:
            self.buffers = [buffer.clone() for buffer in pl_module.buffers()]

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self.loss = loss.detach()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Predict, optimizer: torch.optim.Optimizer) -> None:
        if not self.patience:
            return
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm, loss = torch.stack([nn.utils.get_total_norm(gradients), self.loss.float()]).tolist()
        if trainer.strategy.reduce_boolean_decision(math.isfinite(norm) and math.isfinite(loss), all=True):
            self.in_a_row = 0
            return
        optimizer.zero_grad(set_to_none=True)  # an optimizer ignores parameters without a gradient
        for buffer, before in zip(pl_module.buffers(), self.buffers, strict=True):
            buffer.copy_(before)
        pl_module.skipped_step = trainer.global_step
        self.skipped += 1
        self.in_a_row += 1
        names = ", ".join(self.names)
        rank_zero_info(
            f"step {trainer.global_step + 1} is skipped, its loss or gradient is not finite (loss {loss:g});"
            f" {self.in_a_row} in a row, {self.skipped} in all; batch: {names}"
        )
        log_values(trainer, {"guard/skipped": self.skipped}, trainer.global_step + 1)  # the current step
        if self.in_a_row >= self.patience:
            raise ValueError(
                f"{self.in_a_row} steps in a row had a loss or gradient that is not finite, the last with {names}: look"
                " at these images, or lower model.optimizer.lr"
            )


class Scores(Callback):
    """Score validation and test images: PSNR and LPIPS of prediction, restoration and input.

    Args:
        panels: number of validation images to show in Weights & Biases or TensorBoard, as val/panel_N.
        samples: number of samples drawn for each of these.
    """

    def __init__(self, panels: int = 4, samples: int = 3):
        self.lpips = Lpips()
        self.panels, self.samples = panels, samples

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        self._score(pl_module, "val", outputs, batch)
        if trainer.is_global_zero and not trainer.sanity_checking and batch_idx < self.panels:
            self._show(trainer, pl_module, outputs, batch, batch_idx)

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        self._score(pl_module, "test", outputs, batch)

    def _score(self, pl_module: LightningModule, stage: str, outputs, batch: dict) -> None:
        sharp = batch["sharp"].float()
        scored = {"": outputs.images, "_prediction": outputs.predictions, "_blurry": batch["blurry"].float()}
        options = {"on_step": False, "on_epoch": True, "batch_size": len(sharp), "sync_dist": True}
        for metric, function in (("psnr", psnr), ("lpips", self.lpips)):
            for suffix, images in scored.items():
                try:
                    value = function(images, sharp).mean()
                except MetricError:  # not finite, or too small: the mean must not silently skip an image
                    value = torch.tensor(float("nan"))
                shown = metric == "psnr" and not suffix
                pl_module.log(f"{stage}/{metric}{suffix}", value, prog_bar=shown, **options)

    def _show(self, trainer: Trainer, pl_module: LightningModule, outputs, batch: dict, number: int) -> None:
        loggers = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger | TensorBoardLogger)]
        if not loggers:
            return
        blurry, name = batch["blurry"].float(), batch["name"][0]
        columns = {"blurry": blurry, "prediction": outputs.predictions}
        if getattr(pl_module, "denoiser", None) is not None:
            settings = replace(pl_module.validation, num_samples=self.samples, average=False)
            drawn = pl_module.pipeline()(blurry[:1], settings, names=[name], output_type="pt")
            columns |= {f"sample {k}": sample[None] for k, sample in enumerate(drawn.images, start=1)}
            columns |= {"mean": drawn.images.mean(0, keepdim=True)}
            columns |= {} if drawn.std is None else {"std": drawn.std}
        columns["sharp"] = batch["sharp"]
        path = Path(trainer.default_root_dir) / "panels" / f"step_{trainer.global_step}_{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        panel({label: [images[0]] for label, images in columns.items()}, path)
        for logger in loggers:
            key, step = f"val/panel_{number}", trainer.global_step
            if isinstance(logger, TensorBoardLogger):
                drawn = np.asarray(Image.open(path, formats=["PNG"]))
                logger.experiment.add_image(key, drawn, step, dataformats="HWC")
            else:
                logger.log_image(key, [str(path)], step, caption=[name])


def _is_news(record: logging.LogRecord) -> bool:
    """Whether Lightning says it for another module than its own, or warns."""
    return record.levelno > logging.INFO or not record.pathname.startswith(lightning.__path__[0])


def quiet() -> None:
    """Drop what Lightning says of itself, which train.py replaces, and warnings aimed at library authors."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed"):
        logging.getLogger(name).addFilter(_is_news)  # a filter is added only once
    warnings.filterwarnings("ignore", message=r"(?s).*deprecated")
    warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")  # true when resuming


class Bar(ProgressBar):
    """The project's bar over the steps of the whole run; Lightning's own count the remaining steps of a resumed run."""

    def disable(self) -> None:  # Lightning calls it in all processes but the first
        pass

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        begun = {"initial": trainer.global_step, "total": trainer.max_steps}
        self.bar = progress.ProgressBar(desc="training", unit="step", disable=not trainer.is_global_zero, **begun)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        metrics = self.get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        self.bar.set_postfix(metrics, refresh=False)
        self.bar.update(trainer.global_step - self.bar.n)

    def teardown(self, *_: Any, **__: Any) -> None:
        if hasattr(self, "bar"):
            self.bar.close()
