"""The number of crops per step with several processes and accumulated batches, and its effect on the learning rate."""

import math

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from models.recompute import recompute


class Scale(Callback):
    """Report at the start how many crops a step takes, and the learning rate and seeds.

    Args:
        lr_batch: crops per step for which model.lr is meant. The learning rate is multiplied by the square root of
            (actual crops per step / lr_batch), Adam's rule (Malladi et al. 2022, arXiv 2205.10287). none: use model.lr.
        activation_checkpointing: keep only the input of each network block and recompute the rest in the backward
            pass: less memory, about a third more operations, the same gradients.
    """

    def __init__(self, lr_batch: int | None = None, activation_checkpointing: bool = False):
        if lr_batch is not None and lr_batch < 1:
            raise ValueError(f"scale.lr_batch must be at least 1, got {lr_batch}")
        self.lr_batch, self.activation_checkpointing = lr_batch, activation_checkpointing
        self.crops = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        batch, processes = trainer.datamodule.batch_size, trainer.world_size
        accumulated = trainer.accumulate_grad_batches
        crops = batch * processes * accumulated
        if self.lr_batch is not None:
            factor = math.sqrt(crops / self.lr_batch)
            pl_module.lr *= factor
            rank_zero_info(
                f"a step: {processes} processes x {batch} crops x {accumulated} accumulated batches = {crops} crops;"
                f" learning rate {pl_module.lr:.3g} at its peak, {factor:.3g} times model.lr: the root of {crops} /"
                f" {self.lr_batch}"
            )
        self.crops = crops
        if self.activation_checkpointing:
            for network in (pl_module.predictor, getattr(pl_module, "denoiser", None)):
                if network is not None:
                    network.enable_gradient_checkpointing(recompute)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        own = torch.tensor(torch.initial_seed(), device=pl_module.device)
        seeds = trainer.strategy.all_gather(own).flatten().tolist()
        if len(seeds) == 1:  # the recipe has it
            return
        each = ", ".join(f"{rank}: {seed}" for rank, seed in enumerate(seeds))
        batch = trainer.datamodule.batch_size
        rank_zero_info(
            f"seeds of the processes: {each}; process r draws the noise of crops {batch}r to {batch}r+{batch - 1} of"
            f" every {batch * len(seeds)}"
        )

    def state_dict(self) -> dict:
        return {"crops": self.crops}

    def load_state_dict(self, state_dict: dict) -> None:
        if self.crops is not None and state_dict["crops"] not in (None, self.crops):  # None unless the run trains
            rank_zero_info(
                f"the checkpoint's steps had {state_dict['crops']} crops, these have {self.crops}: the run does not"
                " end where it would have without the stop"
            )
