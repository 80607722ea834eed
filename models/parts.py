"""The parts of diffusers that are used here, imported without the compiler, which takes longest to load.

diffusers imports torch._dynamo only to mark transformer blocks, which are not used here, and works without it. So it
is hidden while diffusers is imported; code that compiles a network imports it then.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Make imports of a module fail as if it were not installed, unless it is already loaded."""
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
