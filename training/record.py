"""What a run leaves beside its checkpoints: its config, its log, the exported pipeline."""

import os
import shutil
from pathlib import Path

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from base.files import replacing
from base.revision import commit
from models.pipeline import DeblurPipeline
from training.tracking import log_pipeline


class RecordConfig(SaveConfigCallback):
    """Write config.yaml beside the checkpoints, and the config and git commit to every logger, when training begins."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        root = Path(trainer.default_root_dir)
        root.mkdir(parents=True, exist_ok=True)
        text = self.parser.dump(self.config, skip_none=False)
        with replacing(root / "config.yaml") as part:
            part.write_text(text)
        for logger in trainer.loggers:
            logger.log_hyperparams({"config": yaml.safe_load(text), "commit": commit()})


class Export(Callback):
    """After fit, write the averaged weights as a pipeline folder, an artifact in Weights & Biases."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # By now the averaging callback has copied its averages into the module.
        if trainer.is_global_zero and not trainer.fast_dev_run:
            export(pl_module.pipeline(), Path(trainer.default_root_dir))
            scores = {name: value.item() for name, value in trainer.callback_metrics.items() if name[:4] == "val/"}
            for logger in trainer.loggers:
                if isinstance(logger, WandbLogger):
                    log_pipeline(logger, Path(trainer.default_root_dir) / "checkpoint", scores)


def export(pipeline: DeblurPipeline, root: Path) -> None:
    """Write a pipeline to checkpoint/ in a run's folder, in place of what is there."""
    folder = root / "checkpoint"
    with replacing(folder) as part:
        pipeline.save_pretrained(part)
        if folder.is_dir():
            shutil.rmtree(folder)
    rank_zero_info(f"wrote {folder}: the averaged weights, for sample.py and evaluate.py")


def log_offline_without_key(loggers: list[Logger]) -> None:
    """Weights & Biases would stop and ask for a key; without one it logs to disk instead."""
    if "WANDB_MODE" in os.environ or not any(isinstance(logger, WandbLogger) for logger in loggers):
        return
    import wandb

    if not wandb.login(prompt=False):
        wandb.setup(wandb.Settings(mode="offline"))
        rank_zero_info("Weights & Biases: no API key, so the run is logged offline; `wandb sync` uploads it later")
