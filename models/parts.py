"""The parts of diffusers that are used here, without the compiler, which takes longer to load than all else.

diffusers imports torch._dynamo to mark blocks of transformers, which are not used here, and does without where it is
missing. So it is hidden while diffusers is imported; whoever compiles a network imports it then.
"""

# ruff: noqa: F401 (the other modules take these names from here)
import sys

_hides = "torch._dynamo" not in sys.modules  # else it is loaded already
if _hides:
    sys.modules["torch._dynamo"] = None  # whose import then fails, as if it were not installed
try:
    from diffusers import ConfigMixin, DDIMScheduler, DDPMScheduler, ModelMixin, SchedulerMixin
    from diffusers.configuration_utils import register_to_config
    from diffusers.utils import BaseOutput
    from diffusers.utils.torch_utils import randn_tensor
finally:
    if _hides:
        del sys.modules["torch._dynamo"]
