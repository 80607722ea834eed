"""What a run shows: progress, without the libraries' messages that say nothing about the run."""

import logging
import warnings
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from base import progress

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
    # A callback that older checkpoints remember, and that no longer exists.
    warnings.filterwarnings("ignore", message=r"Be aware that when using `ckpt_path`.*\['StepSize'\]")


class Bar(ProgressBar):
    """The project's bar over the steps of the whole run; Lightning's own count the remaining steps of a resumed run."""

    hidden = False

    def disable(self) -> None:
        """Print nothing, as in all processes but the first."""
        self.hidden = True

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Start at the step of the checkpoint."""
        begun = {"initial": trainer.global_step, "total": trainer.max_steps}
        self.bar = progress.ProgressBar(desc="training", unit="step", disable=self.hidden, **begun)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Count the steps."""
        metrics = self.get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        self.bar.set_postfix(metrics, refresh=False)
        self.bar.update(trainer.global_step - self.bar.n)

    def teardown(self, *_: Any, **__: Any) -> None:
        """Close the bar, after an error too."""
        if hasattr(self, "bar"):
            self.bar.close()
