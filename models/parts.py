"""The parts of diffusers that are used here, imported without the compiler, which takes longest to load.

diffusers imports torch._dynamo only to mark transformer blocks, which are not used here, and works without it. So it
is hidden while diffusers is imported; code that compiles a network imports it then.
"""

# ruff: noqa: F401 (the other modules take these names from here)
import sys

_hides = "torch._dynamo" not in sys.modules  # otherwise it is already loaded
if _hides:
    sys.modules["torch._dynamo"] = None  # makes its import fail as if it were not installed
try:
    from diffusers import ConfigMixin, DDPMScheduler, ModelMixin, SchedulerMixin
    from diffusers.configuration_utils import register_to_config
    from diffusers.utils import BaseOutput
    from diffusers.utils.torch_utils import randn_tensor
finally:
    if _hides:
        del sys.modules["torch._dynamo"]
