"""What a run shows of its validation and test images: scores, and panels in Weights & Biases or TensorBoard."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from PIL import Image

from evaluation.metrics import Lpips, MetricError, psnr
from evaluation.panels import panel


class Scores(Callback):
    """Score validation and test images: PSNR and LPIPS of prediction, restoration and input.

    Args:
        panels: number of validation images to show in Weights & Biases or TensorBoard, as val/panel_N.
        samples: number of samples drawn for each of these.
    """

    def __init__(self, panels: int = 4, samples: int = 3):
        self.lpips = Lpips()
        self.panels, self.samples = panels, samples

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        self._score(pl_module, "val", outputs, batch)
        if trainer.is_global_zero and not trainer.sanity_checking and batch_idx < self.panels:
            self._show(trainer, pl_module, outputs, batch, batch_idx)

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

    def _show(self, trainer: Trainer, pl_module: LightningModule, outputs, batch: dict, number: int) -> None:
        loggers = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger | TensorBoardLogger)]
        if not loggers:
            return
        blurry, name = batch["blurry"].float(), batch["name"][0]
        columns = {"blurry": blurry, "prediction": outputs.predictions}
        if getattr(pl_module, "denoiser", None) is not None:
            settings = replace(pl_module.validation, num_samples=self.samples, average=False)
            drawn = pl_module.pipeline()(blurry[:1], settings, names=[name], output_type="pt")
            columns |= {f"sample {k}": sample[None] for k, sample in enumerate(drawn.images, start=1)}
            columns |= {"mean": drawn.images.mean(0, keepdim=True)}
            columns |= {} if drawn.std is None else {"std": drawn.std}
        columns["sharp"] = batch["sharp"]
        path = Path(trainer.default_root_dir) / "panels" / f"step_{trainer.global_step}_{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        panel({label: [images[0]] for label, images in columns.items()}, path, [name])
        for logger in loggers:
            key, step = f"val/panel_{number}", trainer.global_step
            if isinstance(logger, TensorBoardLogger):
                drawn = np.asarray(Image.open(path, formats=["PNG"]))
                logger.experiment.add_image(key, drawn, step, dataformats="HWC")
            else:
                logger.log_image(key, [str(path)], step, caption=[name])
