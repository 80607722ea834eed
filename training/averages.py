"""Exponential moving averages of the weights."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch.optim.swa_utils import get_ema_multi_avg_fn

from models.lightning_module import Predict


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
