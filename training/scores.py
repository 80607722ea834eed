"""Scores computed in validation and test."""

import torch
from lightning.pytorch import Callback, LightningModule

from evaluation.metrics import Lpips, MetricError, psnr


class Scores(Callback):
    """Score validation and test images: PSNR and LPIPS of prediction, restoration and input.

    Args:
        panels: number of validation images to show in Weights & Biases or TensorBoard.
        samples: number of samples drawn for each of these.
    """

    def __init__(self, panels: int = 4, samples: int = 3):
        self.lpips = Lpips()
        self.panels, self.samples = panels, samples

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        self._score(pl_module, "val", outputs, batch)

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        self._score(pl_module, "test", outputs, batch)

    def _score(self, pl_module: LightningModule, stage: str, outputs, batch: dict) -> None:
        sharp = batch["sharp"].float()
        scored = {"": outputs.images, "_prediction": outputs.predictions, "_blurry": batch["blurry"].float()}
        options = {"on_step": False, "on_epoch": True, "batch_size": len(sharp), "sync_dist": True}
        for metric, function in (("psnr", psnr), ("lpips", self.lpips)):
            for suffix, images in scored.items():
                try:
                    value = function(images, sharp).mean()
                except MetricError:  # not finite, or too small: the mean must not silently skip an image
                    value = torch.tensor(float("nan"))
                shown = metric == "psnr" and not suffix
                pl_module.log(f"{stage}/{metric}{suffix}", value, prog_bar=shown, **options)
