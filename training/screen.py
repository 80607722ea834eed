"""What a run shows: progress, without the libraries' messages that say nothing about the run."""

import logging
import warnings
from typing import Any

import lightning
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from base import progress


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
