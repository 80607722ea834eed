"""Activation checkpointing: a block's activations are computed again in the backward pass instead of kept."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recompute(block: nn.Module, *inputs: Tensor | None) -> Tensor:
    """block(*inputs), of which the backward pass finds the inputs alone (Chen et al. 2016); the gradients are the same.

    What diffusers' `enable_gradient_checkpointing` takes as its function.
    """
    contexts = lambda: (nullcontext(), _statistics_stay(block))  # noqa: E731 (torch wants a function)
    return checkpoint(block.__call__, *inputs, use_reentrant=False, context_fn=contexts)


@contextmanager
def _statistics_stay(block: nn.Module) -> Iterator[None]:
    """The second forward pass of a batch must not count again in the running statistics."""
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
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
