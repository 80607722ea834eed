"""The parts of diffusers that are used here, without the compiler, which takes longer to load than all else.

diffusers imports torch._dynamo to mark blocks of transformers, which are not used here, and does without where it is
missing. So it is hidden while diffusers is imported; whoever compiles a network imports it then.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Let imports of a module fail, as if it were not installed, unless it is loaded already."""
    hide = module not in sys.modules
    if hide:
        sys.modules[module] = None
    try:
        yield
    finally:
        if hide:
            del sys.modules[module]


with _hidden("torch._dynamo"):
    from diffusers import ConfigMixin, DDIMScheduler, DDPMScheduler, ModelMixin, SchedulerMixin
    from diffusers.configuration_utils import register_to_config
    from diffusers.utils import BaseOutput
    from diffusers.utils.torch_utils import randn_tensor

__all__ = [
    "BaseOutput",
    "ConfigMixin",
    "DDIMScheduler",
    "DDPMScheduler",
    "ModelMixin",
    "SchedulerMixin",
    "randn_tensor",
    "register_to_config",
]
