"""What a run writes besides its weights: its config, its log and the exported pipeline."""

import os
import shutil
from functools import cached_property
from pathlib import Path

import yaml
from jsonargparse import Namespace
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ThroughputMonitor
from lightning.pytorch.cli import LightningArgumentParser, SaveConfigCallback
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from base.files import replacing
from base.revision import commit
from models.pipeline import DeblurPipeline
from training.tracking import log_values


class RecordConfig(SaveConfigCallback):
    """Write config.yaml beside the checkpoints. The config also goes into them and, with the git commit, to loggers."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        root = Path(trainer.default_root_dir)
        root.mkdir(parents=True, exist_ok=True)
        with replacing(root / "config.yaml") as part:
            part.write_text(yaml.safe_dump(self.plain, sort_keys=False))
        for logger in trainer.loggers:
            logger.log_hyperparams({"config": self.plain, "commit": commit()})

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict) -> None:
        checkpoint["config"] = self.plain

    @cached_property
    def plain(self) -> dict:
        return plain(self.parser, self.config)


def plain(parser: LightningArgumentParser, config: Namespace) -> dict:
    """A parsed config as dicts, lists, strings and numbers."""
    return yaml.safe_load(parser.dump(config, skip_none=False))


class Speed(ThroughputMonitor):
    """Log the speed of training: train/samples_per_sec and more, over the last batches, validation left out."""

    def _compute(self, trainer: Trainer, iter_num: int | None = None) -> None:
        if trainer.training:
            super()._compute(trainer, trainer.global_step)


class Steps(Callback):
    """Log `lr`, and make loggers count steps like the rest of the run: results of the third step are logged at 3."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch, batch_idx: int) -> None:
        if batch_idx % trainer.accumulate_grad_batches:  # the step is not finished
            return
        if (trainer.global_step + 1) % trainer.log_every_n_steps == 0:
            log_values(trainer, {"lr": trainer.optimizers[0].param_groups[0]["lr"]}, trainer.global_step + 1)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs, batch, batch_idx: int) -> None:
        pl_module.log("step", trainer.global_step)  # Lightning uses a value of this name as the step of all others

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        if trainer.state.fn == "fit":
            pl_module.log("step", trainer.global_step, on_step=False, on_epoch=True, batch_size=1)


def export(pipeline: DeblurPipeline, root: Path) -> None:
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
