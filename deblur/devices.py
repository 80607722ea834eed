"""Choose a device, and what it supports."""

import os
import shutil
import sys

import psutil
import torch


def choose_device(name: str) -> torch.device:
    """The torch device of that name; auto is the first available of cuda, mps, cpu. ValueError if unavailable."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name} cannot be used here: {reason}") from error
    return torch.device(name)


def has_bf16(device: str | torch.device) -> bool:
    """Whether the device supports bfloat16 in hardware, so that it is faster than float32."""
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if kind == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16"))
    return False


def resolve_precision(precision: str, device: str | torch.device) -> str:
    """fp32 or bf16 as requested; auto is bf16 where the device supports it in hardware."""
    if precision != "auto":
        return precision
    return "bf16" if has_bf16(device) else "fp32"


def require_compiler(device: torch.device) -> None:
    """Raise ValueError if torch.compile would target the CPU and the C++ compiler it needs is missing."""
    if device.type != "cpu":
        return
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = (os.environ.get("CXX") or usual).split()[0]
    if shutil.which(compiler) is None:
        raise ValueError(
            f"compiling for a CPU needs a C++ compiler, and {compiler} was not found: install one, or do not compile"
        )


def core_count() -> int:
    """Processor cores that this process may use; all cores where the system cannot restrict a process to some."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # not on macOS
        return len(process.cpu_affinity())
    return psutil.cpu_count() or 1
