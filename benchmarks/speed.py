"""Measure the speed of training without waiting for the device."""

import time
from collections.abc import Sequence

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.profilers import Profiler
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from benchmarks.timing import matmul_rate, peak_memory
from models.lightning_module import Predict

SIDES = {"cuda": 8192, "cpu": 1024}  # of the matrices used to measure the machine's speed
DTYPES = {"bf16": torch.bfloat16, "16": torch.float16}


class Clock(Profiler):
    """Measures the time that training spends on its batches, and the part of it spent waiting for the data loader.

    A batch lasts from the trainer's request for it until `lap`; time for validation and checkpoints is not counted.
    """

    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.seconds = self.waited = 0.0

    def start(self, action_name: str) -> None:
        if action_name.endswith("train_dataloader_next"):
            self.asked = time.perf_counter()

    def stop(self, action_name: str) -> None:
        if action_name.endswith("train_dataloader_next"):
            self.waited += time.perf_counter() - self.asked

    def lap(self) -> None:
        """Mark the current batch as done."""
        self.seconds += time.perf_counter() - self.asked


class Speed(Callback):
    """Log training speed every trainer.log_every_n_steps steps, measured since the previous log.

    speed/crops_per_s: over all processes. speed/data_wait: share of the time in which this process waited for the data
    loader (for reading, not for the blur on the device). speed/mfu: share of the machine's measured matrix-product rate
    that the networks reach by their own operations, forward and backward. speed/peak_gib: memory. The first step,
    a warm-up, is not counted. The trainer's profiler must be a `Clock`.
    """

    def on_train_start(self, trainer: Trainer, pl_module: Predict) -> None:
        self.warm, self.crops, self.flops = False, 0, None

    def on_train_batch_end(self, trainer: Trainer, pl_module: Predict, outputs, batch: dict, batch_idx: int) -> None:
        clock = trainer.profiler
        if not self.warm:
            self.warm = True
            clock.reset()
            return
        clock.lap()
        self.crops += len(batch["sharp"])
        if trainer.global_step % trainer.log_every_n_steps or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        device = str(pl_module.device)
        if self.flops is None:
            self.flops = step_flops(pl_module, batch["sharp"].shape) / len(batch["sharp"])
        dtype = DTYPES.get(trainer.precision.partition("-")[0], torch.float32)
        rate = matmul_rate(dtype, device, SIDES.get(pl_module.device.type, 1024))
        values = {
            "crops_per_s": self.crops * trainer.world_size / clock.seconds,
            "data_wait": clock.waited / clock.seconds,
            "mfu": self.flops * self.crops / clock.seconds / rate,
            "peak_gib": peak_memory(device) / 2**30,
        }
        pl_module.log_dict({f"speed/{name}": value for name, value in values.items()}, prog_bar=True)
        self.crops = 0
        clock.reset()


def step_flops(module: Predict, shape: Sequence[int]) -> int:
    """Floating-point operations of the networks in one training step, forward and backward: 2 per multiply-add.

    The count uses shapes only and leaves weights, random numbers and batch statistics untouched.

    Args:
        module: the module being trained.
        shape: (N, 3, H, W) of the crops.
    """
    image = torch.empty(*shape, device="meta")
    flops = _flops(module.predictor, [image])
    if getattr(module, "denoiser", None) is not None:
        noisy = image.repeat(module.objective.noises, 1, 1, 1)
        inputs = noisy, noisy, noisy[:, 0, 0, 0], noisy, noisy[:, :1]
        flops += _flops(module.denoiser, inputs)
    return flops


def _flops(network: nn.Module, inputs: Sequence[Tensor]) -> int:
    state = dict(network.named_parameters()) | dict(network.named_buffers())
    shapes = {name: value.detach().to("meta").requires_grad_(value.requires_grad) for name, value in state.items()}
    synced = [module for module in network.modules() if isinstance(module, nn.SyncBatchNorm) and module.training]
    for module in synced:  # in training mode they reject tensors that are not on a GPU
        module.training = False
    try:
        gradients = {torch.ops.aten.convolution_backward: _convolution_gradients}
        with FlopCounterMode(display=False, custom_mapping=gradients) as counter, torch.enable_grad():
            output = functional_call(network, shapes, tuple(inputs))
            if output.requires_grad:
                output.sum().backward()
    finally:
        for module in synced:
            module.training = True
    return counter.get_total_flops()


def _convolution_gradients(
    gradient, image, weights, bias, stride, padding, dilation, transposed, extra, groups, wanted, **_
) -> int:
    """As many operations as the convolution for each gradient; torch's formula counts grouped convolutions as dense."""
    return sum(wanted[:2]) * conv_flop_count(image, weights, gradient, transposed)
