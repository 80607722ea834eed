"""Activation checkpointing: the backward pass recomputes a block's activations instead of keeping them in memory."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def recompute(block: nn.Module, *inputs: Tensor | None) -> Tensor:
    """Compute block(*inputs) and keep only the inputs for the backward pass (Chen et al. 2016).

    The gradients are the same. diffusers' `enable_gradient_checkpointing` takes this as its function.
    """
    contexts = lambda: (nullcontext(), _statistics_stay(block))  # noqa: E731 (torch wants a function)
    return checkpoint(block.__call__, *inputs, use_reentrant=False, context_fn=contexts)


@contextmanager
def _statistics_stay(block: nn.Module) -> Iterator[None]:
    """Keep the second forward pass of a batch from updating the running statistics again."""
    norms = [one for one in block.modules() if isinstance(one, nn.BatchNorm2d | nn.SyncBatchNorm)]
    norms = [norm for norm in norms if norm.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            if norm.training:
                norm.num_batches_tracked -= 1
