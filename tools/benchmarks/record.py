"""What a benchmark measures with, and its record: the machine it ran on, and the cases measured before."""

import json
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import torch

from deblur.devices import core_count
from deblur.revision import commit

# Files that can affect a measurement.
MEASURED_FILES = ":/", ":(top,exclude)tools/benchmarks/results", ":(top,exclude)*.md"


def machine(device: str = "cpu", threads: int | None = None) -> dict[str, Any]:
    """What a measurement depends on besides its subject, at this moment.

    Args:
        device: torch device name; the record has the name of the GPU or of the processor.
        threads: of torch in the measuring process; none: those of this process.
    """
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else processor(),
        "cores": core_count(),
        "threads": threads or torch.get_num_threads(),
        "load_average": round(psutil.getloadavg()[0], 2),  # above the number of cores: other work was running
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(*MEASURED_FILES),
        "command": f"python -m tools.benchmarks.{Path(sys.argv[0]).stem} " + shlex.join(sys.argv[1:]),
    }


def in_own_process(threads: int, function: Callable[..., Any], *arguments) -> Any:
    """Run function(*arguments) in a new process with this many torch threads, and with its own memory and caches."""
    with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (threads,)) as process:
        return process.submit(function, *arguments).result()


def chosen_cases(given: str, names: Sequence[str]) -> list[str]:
    """The known cases that names or patterns of names, separated by commas, choose. ValueError if there is none."""
    chosen = [name for name in names if any(fnmatch(name, pattern) for pattern in given.split(","))]
    if not chosen:
        raise ValueError(f"no case is named {given}; there are {' '.join(names)}")
    return chosen


def stored_cases(path: str) -> dict[str, Any]:
    """What a benchmark that measures in parts wrote to `path` before."""
    return json.loads(Path(path).read_text(encoding="utf-8")) if Path(path).is_file() else {"cases": {}}


def processor() -> str:
    """The name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


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
