"""Protection of a long run against batches that would ruin its weights."""

import math

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn

from models.lightning_module import Predict
from training.tracking import log_values


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
        self.patience, self.skipped, self.in_a_row = patience, 0, 0

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
