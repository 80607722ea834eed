"""Hide library messages that say nothing about the run."""

import logging
import warnings

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

# Advertisements, and messages that train.py replaces by its own.
NOISE = (
    "💡 Tip",
    "Seed set to",
    "[rank: ",  # and the seed
    "GPU available",
    "TPU available",
    "Using bfloat16 Automatic",
    "Using 16bit Automatic",
    "`Trainer(val_check_interval=",  # without a sanity check; a config says so
    "Restoring states from",
    "Restored all states",
    "Found current_model_state",
    "`Trainer.fit` stopped",
)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().strip().startswith(NOISE)


def quiet() -> None:
    """Drop Lightning's `NOISE` and warnings aimed at library authors."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed"):
        logging.getLogger(name).addFilter(_is_news)  # a filter is added only once
    warnings.filterwarnings("ignore", message=r"(?s).*deprecated")
    warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")  # true when resuming


class Bar(RichProgressBar):
    """A progress bar over the batches of the whole run. Lightning's own bar counts only the remaining steps of a
    resumed run, and shows the log's version and epochs, of which a run has one."""

    @property
    def total_train_batches(self) -> int:
        return self.trainer.max_steps * self.trainer.accumulate_grad_batches

    def _get_train_description(self, current_epoch: int) -> str:
        return "training"

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict:
        return {name: value for name, value in super().get_metrics(trainer, pl_module).items() if name != "v_num"}
