"""How much memory a network needs, and how much the device has."""

import ctypes
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SAMPLE = 128  # side of the image part that is measured
COPIES = 3 / 2  # allowance for the copies inside convolutions, which no tensor shows
CPU_MEMORY = 3.5  # GB; a constant, so that a photo's tiles do not depend on the machine's other load
CPU_PIXELS = 24_000_000  # images of this size fit into CPU_MEMORY; each further pixel takes seven floats per channel


class Footprint:
    """Bytes that a function needs per pixel of an image: given, or measured once on a small part of the first image.

    torch reports the peak memory of a GPU but not of a CPU. Its profiler could, but takes seconds and writes to the
    terminal, so the tensors are counted instead.
    """

    def __init__(self, bytes_per_pixel: float | None = None):
        self.bytes_per_pixel = bytes_per_pixel

    def __call__(self, function: Callable[..., Tensor], images: Sequence[Tensor]) -> float:
        """Bytes per pixel of function(*images), for images (N, C, H, W)."""
        if self.bytes_per_pixel is None:
            parts = [image[:1, :, :SAMPLE, :SAMPLE] for image in images]
            height, width = parts[0].shape[-2:]
            # If the compiler is not loaded nothing is compiled, and loading it here would take seconds.
            loaded = "torch._dynamo" in sys.modules
            with torch.compiler.set_stance("force_eager") if loaded else nullcontext(), _LiveBytes() as live:
                function(*parts)
            self.bytes_per_pixel = COPIES * live.peak / (height * width)
        return self.bytes_per_pixel


def free_memory(device: torch.device) -> int:
    """Bytes that could be allocated now; on Linux without swapping and within a container's limit."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return 4 * 1024**3  # other systems have no one place to ask; about what a small laptop can spare
    lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # control groups, versions 2 and 1
        file = Path("/sys/fs/cgroup") / name
        if file.is_file() and (limit := file.read_text().strip()).isdigit():
            free = min(free, max(0, int(limit) - used_memory(device)))
    return free


def used_memory(device: torch.device) -> int:
    """Bytes that this process holds on the device now."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        return 1024**3  # about what Python with torch and a photograph takes
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def allowed_memory(gigabytes: float | None, size: int, device: torch.device) -> int | None:
    """Bytes that the process may hold while it restores images of `size` pixels in total; None: use the free memory.

    Args:
        gigabytes: the value of --memory; None for its default.
    """
    if gigabytes:
        return int(1e9 * gigabytes)
    return None if device.type != "cpu" else int(1e9 * CPU_MEMORY) + 7 * 12 * max(0, size - CPU_PIXELS)


def require_memory(gigabytes: float | None, device: torch.device) -> None:
    """Raise ValueError if --memory is given and is less than the program itself takes."""
    if gigabytes and 1e9 * gigabytes <= (used := used_memory(device)):
        raise ValueError(
            f"--memory {gigabytes:g} is less than the program itself takes, {used / 1e9:.2f} GB:"
            f" give --memory {used / 1e9 + 0.5:.1f} or more"
        )


def give_back() -> None:
    """Return freed memory to the system; otherwise glibc keeps hundreds of megabytes after a large tile."""
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory, whichever allocator raised it."""
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or ("memory" in text and "alloc" in text)


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of live tensors that were created while it is active; `peak` is the maximum."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._counted = weakref.WeakSet()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, since nothing compiled is counted; the default would load the compiler to exclude it below."""
        return False

    def __torch_dispatch__(
        self, operation: Callable, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        given = [x.untyped_storage() for x in args if isinstance(x, Tensor)]  # their views take no memory
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage not in self._counted and storage not in given:
                self._counted.add(storage)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage.nbytes())
                self.peak = max(self.peak, self.now)
        return result

    def _gone(self, size: int) -> None:
        self.now -= size
