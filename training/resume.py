"""Resuming a run: atomic checkpoints, finding the newest readable one, and checking that the config still fits it."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_only

from deblur.checkpoints import read_torch
from deblur.cli import Stopped
from deblur.hub import CheckpointError
from deblur.storage import replacing
from deblur.training.module import Predict

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
ABSENT = "nothing"  # the value of a setting that one of two configs does not have
# What the weights of a run are trained for.
PURPOSE = re.compile(
    r"model\.(class_path|(predictor|denoiser|schedule|residual|predictor_loss)\..*|predictor_training)"
    r"|model\.objective\.(loss|levels|log_normal|sigma_range|stratified|image_loss)(\..*)?"
    r"|trainer\.accumulate_grad_batches"
)
# Config keys that identify a run and its place, and do not affect training.
PLACE = re.compile(
    r"model\.init_from|config|ckpt_path|auto_resume|trainer\.default_root_dir|trainer\.logger\.(\d+\.)?id"
)


def read_checkpoint(path: Path) -> dict:
    """A checkpoint of train.py; CheckpointError if it is missing, damaged, or holds more than tensors and values."""
    return read_torch(path, checksums=True)


def newest(root: Path) -> tuple[Path | None, dict]:
    """The newest readable checkpoint of a run's folder and its content; (None, {}) if there is no checkpoint.

    If only the previous one can be read, the last one is reported and renamed to last.ckpt.damaged.

    Raises:
        CheckpointError: there are checkpoints, and none can be read.
    """
    last = root / "checkpoints" / LAST
    damaged = None
    for path in (path for path in (last, last.with_name(PREVIOUS)) if path.is_file()):
        try:
            checkpoint = read_checkpoint(path)
        except CheckpointError as error:
            damaged = damaged or error
            continue
        if damaged:
            rank_zero_info(f"{damaged}; it is now {LAST}.damaged, and {path} takes its place")
            if rank_zero_only.rank == 0:
                os.replace(last, last.with_name(f"{LAST}.damaged"))
        return path, checkpoint
    if damaged:
        raise CheckpointError(
            f"{damaged}, and there is no other to resume from: start anew with --auto_resume false or another"
            " trainer.default_root_dir"
        )
    return None, {}


def differing(there: dict, here: dict, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The values that differ between two nested dicts, as (path, there, here); lists of dicts count as dicts."""
    for key in sorted(there.keys() | here.keys()):
        a, b = there.get(key, ABSENT), here.get(key, ABSENT)
        inner = path if key == "init_args" else f"{path}.{key}".lstrip(".")
        if isinstance(a, list) and isinstance(b, list) and all(isinstance(entry, dict) for entry in a + b):
            a, b = ({str(i): entry for i, entry in enumerate(listed)} for listed in (a, b))
        if isinstance(a, dict) and isinstance(b, dict):
            yield from differing(a, b, inner)
        elif a != b:
            yield inner, a, b


def refusals(there: dict, here: dict) -> list[str]:
    """Why a config cannot resume a run of another one; empty if it can.

    A setting that one of them does not have is of another version of the program, or of a class that differs itself.
    """
    sentences = []
    for path, *values in differing(there, here):
        if PURPOSE.fullmatch(path) and ABSENT not in values:
            a, b = (value.get("class_path") if isinstance(value, dict) else value for value in values)
            sentences.append(f"{path} is {b} here and {a} there")
    return sentences


def changed_settings(there: dict, here: dict) -> list[str]:
    """Settings that differ between two configs, as "model.lr 0.0005 -> 0.001"; the run's folder and ids are ignored."""
    return [f"{path} {a} -> {b}" for path, a, b in differing(there, here) if not PLACE.fullmatch(path)]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write checkpoints to a temporary name, sync them to disk and rename them; the previous one is kept, too.

    Lightning's own are copied from the system's folder of temporary files, and cut short if the run is killed then.
    """

    def save_checkpoint(self, checkpoint: dict, path, storage_options=None) -> None:
        """Write a checkpoint. OSError if that fails (disk full); earlier checkpoints are kept."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(path) as part:
                with open(part, "wb") as file:
                    torch.save(checkpoint, file)
                    file.flush()
                    os.fsync(file.fileno())
                if path.name == LAST and path.is_file():
                    os.replace(path, path.with_name(PREVIOUS))
        except (OSError, RuntimeError) as error:  # torch raises its own RuntimeErrors on a full disk
            raise OSError(
                f"checkpoint {path} could not be written ({error}); those before it are whole: make room, then run the"
                " same command again"
            ) from None
        if os.name == "posix":  # the directory entries must be on disk, too; Windows cannot open a folder
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    def load_checkpoint(self, path, map_location=None, weights_only=None) -> dict:
        return read_checkpoint(Path(path))


class TakeOver(Callback):
    """Set the optimizer of a resumed run to the config's learning rate, betas and weight decay.

    Lightning restores the checkpoint's. The shape of the learning-rate schedule already comes from the config.
    """

    def on_train_start(self, trainer: Trainer, pl_module: Predict) -> None:
        if trainer.ckpt_path is None:
            return
        scheduler, settings = trainer.lr_scheduler_configs[0].scheduler, pl_module.optimizer
        scheduler.base_lrs = [settings.lr] * len(scheduler.base_lrs)
        for group, factor in zip(trainer.optimizers[0].param_groups, scheduler.lr_lambdas, strict=True):
            group["initial_lr"], group["lr"] = settings.lr, settings.lr * factor(scheduler.last_epoch)
            group["betas"], group["weight_decay"] = tuple(settings.betas), settings.weight_decay


class Last(Checkpoint):
    """Write checkpoints/last.ckpt every `interval` batches and after the last step, after validation, and when a
    signal ends the run. Lightning's ModelCheckpoint, which may do so too, saves in the middle of a step.

    SIGTERM or Ctrl-C ends the run after the current step or validation image; a second Ctrl-C ends it at once. The
    checkpoint also stores its Weights & Biases run and whether its step still has to be validated.

    Args:
        root: the run's folder.
        interval: batches between two checkpoints.
    """

    def __init__(self, root: Path, interval: int):
        self.path, self.interval = root / "checkpoints" / LAST, interval
        self.saved = None  # step of the latest checkpoint
        self.must_validate = False  # the step of the checkpoint
        self.signal: int | None = None

    def _listen(self) -> None:
        """Replace Lightning's signal handler, which communicates with other processes at any moment and can hang."""

        def stop(number: int, frame) -> None:
            if self.signal == number == signal.SIGINT:
                raise Stopped(
                    number, "stopped in the middle of a step; the same command resumes from the last checkpoint"
                )
            self.signal = number

        for number in (signal.SIGTERM, signal.SIGINT):  # Lightning restores the previous handlers after the run
            signal.signal(number, stop)

    def _agree_to_stop(self, trainer: Trainer) -> None:
        """End the run if any process received a signal; all processes call this at the same point of the run."""
        if trainer.strategy.reduce_boolean_decision(self.signal is not None, all=False):
            # Lightning ends the run after this step or validation image; trainer.should_stop would end it as finished.
            trainer._signal_connector.received_sigterm = True

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._listen()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs, batch, batch_idx) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:  # checkpoints do not store accumulated gradients
            self._agree_to_stop(trainer)
        is_last = trainer.global_step >= trainer.max_steps
        if sum(trainer.num_val_batches):
            trainer.should_stop = trainer.should_stop or is_last  # Lightning then validates after this step, whichever
        elif is_last or (batch_idx + 1) % self.interval == 0:
            self._save(trainer)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args, **kwargs) -> None:
        is_interruptible = trainer.global_step < trainer.max_steps  # the last step's validation is not
        if trainer.state.fn == "fit" and not trainer.sanity_checking and is_interruptible:
            self._agree_to_stop(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if not isinstance(exception, SIGTERMException) or trainer.global_step == 0:
            return
        self.must_validate = trainer.validating
        self._save(trainer)
        rank_zero_info(f"stopped at step {trainer.global_step}, which is saved; run the same command again to resume")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict) -> None:
        run = {"must_validate": self.must_validate}
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                run["wandb"] = logger.version
        checkpoint["run"] = run

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict) -> None:
        self.must_validate = checkpoint.get("run", {}).get("must_validate", False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._listen()
        if self.must_validate:
            self.must_validate = False
            loop = trainer.fit_loop.epoch_loop.val_loop
            loop.batch_progress.reset()
            loop.restarting = False
            trainer.validating = True
            loop.run()
            trainer.training = True

    def _save(self, trainer: Trainer) -> None:
        if trainer.global_step != self.saved and not trainer.fast_dev_run:
            trainer.save_checkpoint(self.path, weights_only=False)
            self.saved = trainer.global_step
