"""What a machine does at most, and what a process took of it."""

import time
from functools import cache
from pathlib import Path

import torch


@cache
def matmul_rate(dtype: torch.dtype, device: str, side: int) -> float:
    """FLOP/s of a square matrix product, the most that a network can hope for: the best of five, measured once."""
    a, b = torch.randn(2, side, side, device=device).to(dtype)
    seconds = []
    for _ in range(6):  # the first warms up
        start = time.perf_counter()
        torch.mm(a, b)
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2 * side**3 / min(seconds[1:])


def peak_memory(device: str) -> int:
    """Bytes that this process has held at most: in tensors on a GPU, else resident; 0 where it is unknown."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
