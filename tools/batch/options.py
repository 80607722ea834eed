"""The flags of a batch, and its memory, without the libraries that it needs."""

import os
from dataclasses import dataclass

WORKER_MEMORY = 3.5e9  # bytes; a CPU worker's limit unless --memory is given
OBJECT_STORE = 128 * 2**20  # bytes; it holds names and rows, no pixels


@dataclass(frozen=True)
class Flags:
    """The command's flags in addition to those of sample.py.

    Args:
        concurrency: number of workers; default: as many as fit the GPUs, or on CPUs the cores and the memory.
        num_gpus: GPUs per worker, may be a fraction; default: 1 if there are GPUs.
        address: of a Ray cluster (ray://HEAD:10001, HEAD:6379, auto); default: RAY_ADDRESS, or this machine alone.
    """

    concurrency: int | None = None
    num_gpus: float | None = None
    address: str | None = None

    def __post_init__(self):
        for name, least in (("concurrency", 1), ("num_gpus", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"--{name} must be {least} or more, got {value}")

    @property
    def cluster(self) -> str | None:
        """The cluster's address; None for this machine alone."""
        return self.address or os.environ.get("RAY_ADDRESS")
