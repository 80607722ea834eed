"""What a run tells of itself: its summary, and curves that show how it trains."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_only
from torch import nn

from base.files import replacing

EDGES = (-8.0, -4.0, 0.0, 4.0)  # edges of the log-SNR bins


class Metrics(CSVLogger):
    """CSVLogger with one row a step, whenever its values come, that loses no row if it is killed.

    A step's row is written again with every value that it gets. If a column is new, metrics.csv is replaced in one
    move: Lightning's logger rewrites it in place.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._newest: dict[str, Any] = {}  # the file's last row
        self._start = 0  # where it begins

    @rank_zero_only
    def save(self) -> None:
        writer = self.experiment
        if not writer.metrics:
            return
        rows = [self._newest] if self._newest else []
        for row in writer.metrics:
            if rows and rows[-1]["step"] == row["step"]:
                rows[-1] = rows[-1] | row
            else:
                rows.append(row)
        path, columns = Path(writer.metrics_file_path), sorted({*writer.metrics_keys}.union(*rows))
        if columns != writer.metrics_keys or not path.exists():
            with replacing(path) as part:
                _copy_rows(path, part, columns, without_last=bool(self._newest))
                self._start = part.stat().st_size
                _append_rows(part, self._start, columns, rows)
        else:
            _append_rows(path, self._start, columns, rows)
        self._start = path.stat().st_size - len(_text(columns, rows[-1:]))
        self._newest, writer.metrics_keys, writer.metrics = rows[-1], columns, []


def _text(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> bytes:
    """Rows as they stand in the file."""
    text = io.StringIO(newline="")
    csv.DictWriter(text, columns).writerows(rows)
    return text.getvalue().encode()


def _append_rows(path: Path, start: int, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write rows where the last row began, of which the first has all values."""
    text = _text(columns, rows)
    with open(path, "r+b", buffering=0) as file:
        file.seek(start)
        written = file.write(text)
    if written != len(text):
        raise OSError(f"{path} could not be written: the disk is full")


def _copy_rows(path: Path, copy: Path, columns: Sequence[str], without_last: bool) -> None:
    """Write a copy with other columns; without a file it has no rows."""
    rows = []
    if path.exists():
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
    with open(copy, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows[:-1] if without_last else rows)


class Track(Callback):
    """Log gradient norms and the loss by noise level, and print a summary of the run.

    Every trainer.log_every_n_steps: grad_norm/predictor and grad_norm/denoiser, before clipping, and
    denoiser_loss/snr_0 .. snr_4: the denoiser's mean loss since the previous log, by log-SNR of the crop: below -8,
    up to -4, up to 0, up to 4, and above.
    """

    def __init__(self):
        self.sums = torch.zeros(2, len(EDGES) + 1)  # per bin: the sum of losses and the number of crops

    def state_dict(self) -> dict:
        return {"sums": self.sums.tolist()}

    def load_state_dict(self, state_dict: dict) -> None:
        self.sums = torch.tensor(state_dict["sums"])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.sums = self.sums.to(pl_module.device)
        rank_zero_info(summary(trainer, pl_module))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer) -> None:
        if (trainer.global_step + 1) % trainer.log_every_n_steps:
            return
        for name, part in pl_module.named_children():
            gradients = [parameter.grad for parameter in part.parameters() if parameter.grad is not None]
            if gradients:  # there are none if the part is frozen or the guard skipped the step
                norm = nn.utils.get_total_norm(gradients).item()
                log_values(trainer, {f"grad_norm/{name}": norm}, trainer.global_step + 1)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs, batch, batch_idx) -> None:
        if "losses" not in outputs:
            return
        bins = torch.bucketize(outputs["alpha_bar"].logit(), torch.tensor(EDGES, device=self.sums.device))
        losses = outputs["losses"].float()
        finite = losses.isfinite()
        self.sums.index_add_(1, bins, torch.stack([losses.where(finite, 0), finite.float()]))
        if (batch_idx + 1) % trainer.accumulate_grad_batches or trainer.global_step % trainer.log_every_n_steps:
            return
        sums = trainer.strategy.reduce(self.sums, reduce_op="sum").T.tolist()
        means = {f"denoiser_loss/snr_{k}": total / crops for k, (total, crops) in enumerate(sums) if crops}
        log_values(trainer, means, trainer.global_step)
        self.sums = torch.zeros_like(self.sums)


def summary(trainer: Trainer, pl_module: LightningModule) -> str:
    """A run's networks and steps in two lines."""
    batch_size = trainer.datamodule.batch_size
    networks = [
        f"{name}: {type(network).__name__}, {sum(parameter.numel() for parameter in network.parameters()):,} parameters"
        for name, network in pl_module.named_children()
    ]
    return (
        f"{'; '.join(networks)}\n"
        f"{trainer.max_steps} steps of {trainer.world_size} x {batch_size} x {trainer.accumulate_grad_batches}"
        f" crops (processes, batch, accumulated), learning rate {pl_module.optimizer.lr:.3g} at its peak,"
        f" {trainer.precision}, seed {torch.initial_seed()}"
    )


def log_values(trainer: Trainer, values: dict[str, float], step: int) -> None:
    """Log the values of a step with every logger."""
    for logger in trainer.loggers:
        logger.log_metrics(values, step)
