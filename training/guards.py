"""Protection against faults of a long run: non-finite steps, jumps of the loss, colour drift."""

import json
import math
from collections import deque
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

from models.weights import CheckpointError, read_safetensors
from training.averages import Averages
from training.resume import changes, read_checkpoint
from training.tracking import log_values

SETTLED = 20  # number of losses needed before one can be called a spike


class TrainingFault(ValueError):
    """Training cannot continue. The message says where the last batch was saved and how to inspect it."""


class Guard(Callback):
    """Skip steps whose loss or gradient is not finite, stop after many in a row, and log what looks wrong.

    A skipped step changes no weights, averages, buffers or optimizer state; with several processes, all skip it. The
    number of skipped steps is logged as guard/skipped. Every step checks the gradients' norm, which makes the host
    wait for the device.

    Args:
        patience: stop after this many skipped steps in a row and save the last one's batch as
            faults/step_N.safetensors, with its names in a .json and the weights in a .ckpt beside it; 0: no step is
            checked or skipped.
        spike: name the files of a batch whose loss is more than this many times the median of the last 100 losses.
    """

    def __init__(self, patience: int = 10, spike: float = 5.0):
        if patience < 0 or spike <= 1:
            raise ValueError(f"guard.patience must be at least 0 and guard.spike above 1, got {patience} and {spike}")
        self.patience, self.spike = patience, spike
        self.skipped = self.in_a_row = 0
        self.losses = deque(maxlen=100)

    def state_dict(self) -> dict:
        return {"skipped": self.skipped, "in_a_row": self.in_a_row, "losses": list(self.losses)}

    def load_state_dict(self, state_dict: dict) -> None:
        self.skipped, self.in_a_row = state_dict["skipped"], state_dict["in_a_row"]
        self.losses.extend(state_dict["losses"])

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: dict, batch_idx: int) -> None:
        self.batch = batch
        if self.patience and batch_idx % trainer.accumulate_grad_batches == 0:
            self.buffers = [buffer.clone() for buffer in pl_module.buffers()]

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self.loss = loss.detach()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer) -> None:
        if not self.patience:
            return
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm, loss = torch.stack([nn.utils.get_total_norm(gradients), self.loss.float()]).tolist()
        if trainer.strategy.reduce_boolean_decision(math.isfinite(norm) and math.isfinite(loss), all=True):
            self.in_a_row = 0
            self._watch(trainer, loss)
            return
        optimizer.zero_grad(set_to_none=True)  # an optimizer ignores parameters without a gradient
        for buffer, before in zip(pl_module.buffers(), self.buffers, strict=True):
            buffer.copy_(before)
        for callback in trainer.callbacks:
            if isinstance(callback, Averages):
                callback.left_out = trainer.global_step
        self.skipped += 1
        self.in_a_row += 1
        rank_zero_info(
            f"step {trainer.global_step + 1} is skipped, its loss or gradient is not finite (loss {loss:g});"
            f" {self.in_a_row} in a row, {self.skipped} in all; batch: {', '.join(self.batch['name'])}"
        )
        log_values(trainer, {"guard/skipped": self.skipped}, trainer.global_step + 1)  # the current step
        if self.in_a_row >= self.patience:
            raise TrainingFault(
                f"{self.in_a_row} steps in a row had a loss or gradient that is not finite; look at the last with"
                f" `python train.py replay {self._save(trainer)} --config ...`"
            )

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        """Log the difference of mean colour between prediction and blurry image, which blur does not change."""
        drift = outputs.predictions.float().mean((0, 2, 3)) - batch["blurry"].float().mean((0, 2, 3))
        for name, value in zip(("red", "green", "blue"), drift, strict=True):
            pl_module.log(f"val/drift_{name}", value, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)

    def _watch(self, trainer: Trainer, loss: float) -> None:
        if len(self.losses) >= SETTLED:
            usual = sorted(self.losses)[len(self.losses) // 2]
            if loss > self.spike * usual:
                names = ", ".join(self.batch["name"])
                rank_zero_info(f"step {trainer.global_step + 1}: loss {loss:g}, usually {usual:g}; batch: {names}")
                log_values(trainer, {"guard/spike": loss / usual}, trainer.global_step + 1)
        self.losses.append(loss)

    def _save(self, trainer: Trainer) -> Path:
        path = Path(trainer.default_root_dir) / "faults" / f"step_{trainer.global_step + 1}.safetensors"
        trainer.save_checkpoint(path.with_suffix(".ckpt"))
        if trainer.is_global_zero:
            save_file({side: self.batch[side].contiguous() for side in ("blurry", "sharp")}, path)
            number = trainer.fit_loop.epoch_loop.total_batch_idx
            about = {"name": self.batch["name"], "step": trainer.global_step + 1, "batch": number}
            path.with_suffix(".json").write_text(json.dumps(about, indent=1))
        return path


class _Report(Callback):
    """Records where a step first produces non-finite values."""

    def __init__(self):
        self.lines = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: dict, batch_idx: int) -> None:
        for side in ("blurry", "sharp"):
            low, high = batch[side].aminmax()
            self.lines.append(f"{side}: values from {low.item():g} to {high.item():g}")
        for name, module in pl_module.named_modules():
            if not list(module.children()):
                module.register_forward_hook(lambda _, inputs, output, name=name: self._look(name, output))
        self.first = None

    def _look(self, name: str, output) -> None:
        if self.first is None and isinstance(output, Tensor) and not output.isfinite().all():
            self.first = name

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self.lines.append(f"first layer whose output is not finite: {self.first or 'none'}")
        self.lines.append(f"loss: {loss.item():g}")

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer) -> None:
        gradients = {name: p.grad for name, p in pl_module.named_parameters() if p.grad is not None}
        bad = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
        self.lines.append(
            f"gradients that are not finite: {len(bad)} of {len(gradients)} {', '.join(bad[:3])}".rstrip()
        )


def replay(path: Path, model: LightningModule, precision: str) -> list[str]:
    """Repeat the step of a batch that a `Guard` saved, with its weights and rank 0's random numbers.

    Returns:
        Lines that say where the step first produces non-finite values.

    Raises:
        CheckpointError: the file, or the .json or .ckpt beside it, is missing, damaged, or belongs to another config.
    """
    about = path.with_suffix(".json")
    if not path.is_file() or not about.is_file():
        raise CheckpointError(
            f"{path} and {about.name} beside it must both be there: what a stopped run wrote in faults/"
        )
    batch, about = read_safetensors(path), json.loads(about.read_text())
    checkpoint = read_checkpoint(path.with_suffix(".ckpt"))
    differing = changes(checkpoint, model)
    if differing:
        raise CheckpointError(f"this config is not that of {path}: {'; '.join(differing)}")
    model.load_state_dict(checkpoint.get("current_model_state", checkpoint["state_dict"]))
    report = _Report()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(max_steps=1, devices=1, precision=precision, callbacks=[report], **quiet)
    # The step's random numbers follow from it.
    trainer.fit_loop.epoch_loop.batch_progress.total.ready = about["batch"]
    trainer.fit(model, DataLoader([batch | {"name": about["name"]}], batch_size=None))
    return [f"batch {about['batch']}: {', '.join(about['name'])}", *report.lines]
