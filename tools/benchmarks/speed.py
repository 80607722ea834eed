"""The time and the operations of a training step."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from deblur.tools.benchmarks.record import write_json
from deblur.training.module import Predict

WARM_UP_STEPS = 5  # steps that do not count


class Pace(Callback):
    """Writes the median time of a training step, in seconds, into pace.json of the run's folder.

    `processor_seconds` leaves out pauses and other programs; `seconds` includes the wait for the data loader. The first
    steps, a warm-up, are not counted.
    """

    def on_train_start(self, trainer: Trainer, pl_module: Predict) -> None:
        self.times = [(time.perf_counter(), time.process_time())]

    def on_train_batch_end(self, trainer: Trainer, pl_module: Predict, outputs, batch: dict, batch_idx: int) -> None:
        self.times.append((time.perf_counter(), time.process_time()))

    def on_train_end(self, trainer: Trainer, pl_module: Predict) -> None:
        seconds, processor_seconds = np.median(np.diff(self.times, axis=0)[WARM_UP_STEPS:], axis=0).tolist()
        pace = {"seconds": seconds, "processor_seconds": processor_seconds}
        write_json(Path(trainer.default_root_dir, "pace.json"), pace)


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
