"""How much memory and time a step should take: from the networks, the crops and the precision, before anything runs."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from models.lightning_module import Predict
from training.machine import bandwidth, best_seconds, matmul_rate, peak_memory
from training.speed import DTYPES, SIDES, step_flops

PASSES = 6  # over what is kept: written and read forwards, read backwards, its gradient written and read, once more


@dataclass(frozen=True)
class Plan:
    """A step of one process.

    Attributes:
        parameters, trained: of all networks, and those that the optimizer changes.
        crops: in a batch.
        states: bytes of weights, averages, gradients and the two moments of AdamW, in float32; with several
            processes also the buffers in which gradients are exchanged; sharded, its part of that of trained weights.
        kept: bytes that the forward pass keeps for the backward pass.
        flops: of a batch, forward and backward, 2 for each multiply-add; twice the forward's share where activations
            are computed again.
    """

    parameters: int
    trained: int
    crops: int
    states: int
    kept: int
    flops: int

    def seconds(self, rate: float, bandwidth: float) -> float:
        """A batch's time: its arithmetic at `rate` FLOP/s, and `PASSES` over what is kept at `bandwidth` bytes/s."""
        return self.flops / rate + PASSES * self.kept / bandwidth


def plan(module: Predict, crops: int, side: int, precision: str, processes: int = 1, sharded: bool = False) -> Plan:
    """What a step of `crops` crops of `side` pixels should take in Lightning's `precision` (bf16-mixed, 32-true)."""
    counts = [(p.numel(), p.requires_grad) for p in module.parameters()]
    parameters, trained = sum(n for n, _ in counts), sum(n for n, learns in counts if learns)
    if sharded:
        states = 8 * (parameters - trained) + 20 * trained // processes
    else:
        states = 4 * (2 * parameters + (3 if processes == 1 else 4) * trained)
    with FakeTensorMode(allow_non_fake_inputs=True), keeping(module) as kept, _autocast(precision, "cpu"):
        _losses(module, _picture(crops, side), _picture(crops, side))
    flops = step_flops(module, (crops, 3, side, side))
    recomputed = any(getattr(part, "gradient_checkpointing", False) for part in module.modules())
    return Plan(parameters, trained, crops, states, sum(kept.values()), flops * 4 // 3 if recomputed else flops)


@contextmanager
def keeping(module: Predict) -> Iterator[dict[int, int]]:
    """The sizes in bytes of the memory that forward passes inside keep for the backward pass, without the weights."""
    own = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    kept = {}
    alive = []  # an address must not be given again while we count

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own and not isinstance(tensor, nn.Parameter):
            kept[storage._cdata] = storage.nbytes()
            alive.append(storage)
        return tensor

    blocks = [b for part in module.modules() if getattr(part, "gradient_checkpointing", False) for b in part.children()]
    blocks = [b for block in blocks for b in (block if isinstance(block, nn.ModuleList) else [block])]
    handles = [b.register_forward_pre_hook(lambda _, inputs: (keep(inputs[0]), *inputs[1:])) for b in blocks]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept
    for handle in handles:
        handle.remove()


def measure(module: Predict, crops: int, side: int, precision: str, device: str, steps: int = 3) -> tuple[float, int]:
    """Seconds of a batch, the best of `steps` after a first one, and bytes that they took beyond the weights."""
    module.to(device)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, module.lr, fused=True)
    blurry, sharp = (_picture(crops, side).uniform_(-1, 1).to(device) for _ in range(2))
    before = _held(device)

    def step() -> None:
        optimizer.zero_grad()
        with _autocast(precision, device):
            loss = _losses(module, blurry, sharp)
        loss.backward()
        optimizer.step()

    seconds = best_seconds(step, device, steps)
    return seconds, peak_memory(device) - before


def describe_plan(own: Plan, precision: str, processes: int, accumulated: int, device: str) -> list[str]:
    """The plan in lines for people, with times for this machine."""
    gib = 2**30
    dtype = DTYPES.get(precision.partition("-")[0], torch.float32)
    rate, copied = matmul_rate(dtype, device, SIDES.get(device, 1024)), bandwidth(device)
    seconds = own.seconds(rate, copied)
    return [
        f"parameters: {own.parameters:,}, of which {own.trained:,} are trained",
        f"weights, averages, gradients, optimizer: {own.states / gib:.2f} GiB",
        f"kept for the backward pass: {own.kept / gib:.2f} GiB for {own.crops} crops in {precision}",
        f"together: {(own.states + own.kept) / gib:.2f} GiB a process, beside what the libraries take",
        f"arithmetic: {own.flops / 1e12:.3f} TFLOP a batch",
        f"this {device}: {rate / 1e12:.3g} TFLOP/s in matrix products, {copied / 1e9:.3g} GB/s in copies",
        f"so {seconds:.3g} s a batch, {own.crops / seconds:.3g} crops a second a process,"
        f" {processes * own.crops / seconds:.3g} by {processes}; {accumulated} batches a step",
    ]


def _losses(module: Predict, blurry: Tensor, sharp: Tensor) -> Tensor:
    """The networks' part of a training step, with noise and noise levels that cost nothing."""
    frozen = not next(module.predictor.parameters()).requires_grad
    with torch.no_grad() if frozen else nullcontext():
        estimates = module.predictor.estimates(blurry)
    loss = torch.stack([F.l1_loss(estimate, sharp) for estimate in estimates]).mean()
    if getattr(module, "denoiser", None) is not None:
        levels = torch.full((len(blurry),), 0.5, device=blurry.device)
        loss = loss + F.l1_loss(module.denoiser(sharp, blurry, levels, estimates[0].detach()), sharp)
    return loss


def _picture(crops: int, side: int) -> Tensor:
    return torch.zeros(crops, 3, side, side).contiguous(memory_format=torch.channels_last)


def _autocast(precision: str, device: str):
    dtype = DTYPES.get(precision.partition("-")[0])
    return nullcontext() if dtype is None else torch.autocast(device.partition(":")[0], dtype)


def _held(device: str) -> int:
    """Bytes that the process holds now; from here on `peak_memory` counts anew."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    Path("/proc/self/clear_refs").write_text("5")
    return peak_memory(device)
