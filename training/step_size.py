"""The number of crops per step with several processes and accumulated batches, and the processes' seeds."""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info


class StepSize(Callback):
    """Report the seeds of several processes, and steps of another number of crops than the checkpoint's."""

    crops: int | None = None  # of a step; None unless the run trains

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self.crops = trainer.datamodule.batch_size * trainer.world_size * trainer.accumulate_grad_batches

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        seed = torch.tensor(torch.initial_seed(), device=pl_module.device)
        seeds = trainer.strategy.all_gather(seed).flatten().tolist()
        if len(seeds) == 1:  # the recipe has it
            return
        listed = ", ".join(f"{rank}: {seed}" for rank, seed in enumerate(seeds))
        batch = trainer.datamodule.batch_size
        rank_zero_info(
            f"seeds of the processes: {listed}; process r draws the noise of crops {batch}r to {batch}r+{batch - 1} of"
            f" every {batch * len(seeds)}"
        )

    def state_dict(self) -> dict:
        return {"crops": self.crops}

    def load_state_dict(self, state_dict: dict) -> None:
        if self.crops is not None and state_dict["crops"] not in (None, self.crops):
            rank_zero_info(
                f"the checkpoint's steps had {state_dict['crops']} crops, these have {self.crops}: the run does not"
                " end where it would have without the stop"
            )
