"""Exponential moving averages of the weights."""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Averages(WeightAveraging):
    """Exponential moving averages of weights and buffers, updated after every step by one kernel per dtype.

    Validation, the `state_dict` of checkpoints and the exported pipeline use the averages.

    Args:
        decay: weight of the old average in the new one.
    """

    def __init__(self, decay: float = 0.999):
        super().__init__(multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.left_out: int | None = None  # the step (counted from 0) after which the averages are not updated

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return step_idx is not None and step_idx != self.left_out

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit":  # torch reads this counter in every step; on a device the host would wait for it
            self._average_model.n_averaged = self._average_model.n_averaged.cpu()

    def state_dict(self) -> dict:
        return super().state_dict() | {"left_out": self.left_out}

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        self.left_out = state_dict.get("left_out")  # older checkpoints lack it
