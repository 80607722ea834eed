"""What a machine does at most, and what a process took of it."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch


@cache
def matmul_rate(dtype: torch.dtype, device: str, side: int) -> float:
    """FLOP/s of a square matrix product, the most that a network can hope for: the best of twenty, measured once."""
    a, b = torch.randn(2, side, side, device=device).to(dtype)
    return 2 * side**3 / best_seconds(lambda: torch.mm(a, b), device, 20)


def best_seconds(function: Callable[[], object], device: str, calls: int = 5) -> float:
    """The shortest of `calls` calls after a first one, which warms up."""
    return min([seconds_of(function, device) for _ in range(calls + 1)][1:])


def seconds_of(function: Callable[[], object], device: str) -> float:
    """How long a call takes, until the device has done its work."""
    start = time.perf_counter()
    function()
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def peak_memory(device: str) -> int:
    """Bytes that this process has held at most: in tensors on a GPU, else resident; 0 where it is unknown."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
