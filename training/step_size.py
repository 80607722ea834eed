"""The number of crops per step with several processes and accumulated batches."""

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info


class StepSize(Callback):
    """Report steps of another number of crops than the checkpoint's."""

    crops: int | None = None  # of a step; None unless the run trains

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self.crops = trainer.datamodule.batch_size * trainer.world_size * trainer.accumulate_grad_batches

    def state_dict(self) -> dict:
        return {"crops": self.crops}

    def load_state_dict(self, state_dict: dict) -> None:
        if self.crops is not None and state_dict["crops"] not in (None, self.crops):
            rank_zero_info(
                f"the checkpoint's steps had {state_dict['crops']} crops, these have {self.crops}: the run does not"
                " end where it would have without the stop"
            )
