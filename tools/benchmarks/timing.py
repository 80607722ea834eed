"""Measure the speed of a machine, and the time and memory that functions take."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch


@cache
def matmul_rate(dtype: torch.dtype, device: str, side: int) -> float:
    """FLOP/s of a square matrix product, an upper bound for networks: the best of twenty runs, measured once."""
    a, b = torch.randn(2, side, side, device=device).to(dtype)
    return 2 * side**3 / min(seconds_of(lambda: torch.mm(a, b), device) for _ in range(21))  # one for warm-up


def seconds_of(function: Callable[[], object], device: str) -> float:
    """Time of a call, until the device has finished."""
    start = time.perf_counter()
    function()
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def peak_memory(device: str) -> int:
    """Peak memory of this process in bytes: tensors on a GPU, otherwise resident memory; 0 if unknown."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
