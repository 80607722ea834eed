"""What of the libraries' messages a run shows: those that say something about it."""

import logging
import warnings

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

# Advertisements, and what train.py says itself in a line of its own.
NOISE = (
    "💡 Tip",
    "Seed set to",
    "[rank: ",  # and the seed
    "GPU available",
    "TPU available",
    "Using bfloat16 Automatic",
    "Using 16bit Automatic",
    "Restoring states from",
    "Restored all states",
    "Found current_model_state",
    "`Trainer.fit` stopped",
)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().strip().startswith(NOISE)


def quiet() -> None:
    """Drop Lightning's `NOISE`, and warnings that are meant for the authors of libraries."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed"):
        logging.getLogger(name).addFilter(_is_news)  # once, however often it is called
    warnings.filterwarnings("ignore", message=r"(?s).*deprecated")
    warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")  # when resumed


class Bar(RichProgressBar):
    """The batches of the whole run; Lightning's own bar counts a resumed run's to the steps that are left, and names
    epochs, of which a run has one, and the log's version."""

    @property
    def total_train_batches(self) -> int:
        return self.trainer.max_steps * self.trainer.accumulate_grad_batches

    def _get_train_description(self, current_epoch: int) -> str:
        return "training"

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict:
        return {name: value for name, value in super().get_metrics(trainer, pl_module).items() if name != "v_num"}
