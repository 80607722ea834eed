"""How much memory a device has, and how much a network needs."""

import ctypes
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from torch import nn

# Bytes of features that a network holds at once, for each pixel and channel at its first resolution, in float32. They
# were measured once, as the largest sum of living tensors and half as much again for the copies inside convolutions.
FOOTPRINTS = {"UNetPredictor": 72, "Denoiser": 72, "U2NetPredictor": 60, "SlimPredictor": 60, "SlimDenoiser": 60}
FOOTPRINTS["Maxim"] = 110
UNKNOWN_FOOTPRINT = 10_000  # bytes per pixel of any other network: two and a half times those of the paper's U-Net
CPU_MEMORY = 3.5  # GB; a constant, so that a photo's tiles do not depend on the machine's other load
CPU_PIXELS = 24_000_000  # images of this size fit into CPU_MEMORY; each further pixel takes seven floats per channel
CONTROL_GROUPS = Path("/sys/fs/cgroup")


def bytes_per_pixel(network: nn.Module) -> float:
    """Bytes that a network needs for each pixel of an image, in evaluation mode; its attribute of this name, if any."""
    measured = getattr(network, "bytes_per_pixel", None)
    if measured is not None:
        return measured
    if type(network).__name__ == "Cascade":
        return max(map(bytes_per_pixel, network.children()))  # one runs after the other
    factor = FOOTPRINTS.get(type(network).__name__)
    first = next((layer for layer in network.modules() if isinstance(layer, nn.Conv2d)), None)
    if factor is None or first is None:
        return UNKNOWN_FOOTPRINT if next(network.parameters(), None) is not None else 3 * 4  # one copy of the image
    smaller = network.config.get("unshuffle", 1) * network.config.get("reduction", 1)
    return factor * first.out_channels * first.weight.element_size() / 4 / smaller**2


def free_memory(device: torch.device) -> int:
    """Bytes that could be allocated now, without swapping and within the limit of a Linux container."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    free = psutil.virtual_memory().available
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # control groups, versions 2 and 1
        file = CONTROL_GROUPS / name
        if file.is_file() and (limit := file.read_text().strip()).isdigit():
            free = min(free, max(0, int(limit) - used_memory(device)))
    return free


def used_memory(device: torch.device) -> int:
    """Bytes that this process holds on the device now."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return psutil.Process().memory_info().rss


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
            f"--memory {gigabytes:g} is less than the program itself takes, {used / 1e9:.2f} GB; its images come on"
            " top: give more"
        )


def give_back() -> None:
    """Return freed memory to the system; otherwise glibc keeps hundreds of megabytes after a large tile."""
    with suppress(AttributeError, TypeError):  # without glibc there is no such function, on Windows no such library
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory, whichever allocator raised it."""
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or ("memory" in text and "alloc" in text)
