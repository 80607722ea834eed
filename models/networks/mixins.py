"""What networks have from diffusers: a config beside the weights, saving and loading, and noise of a list of seeds.

Importing diffusers' models would load torch's compiler (torch._dynamo), which takes seconds and which a restoration
does not need: diffusers looks whether it is there. So it is hidden while they are imported.
"""

import sys

_hides = "torch._dynamo" not in sys.modules  # otherwise it is already loaded
if _hides:
    sys.modules["torch._dynamo"] = None  # makes its import fail as if it were not installed
try:
    from diffusers import ConfigMixin, DDPMScheduler, ModelMixin
finally:
    if _hides:
        del sys.modules["torch._dynamo"]
from diffusers.configuration_utils import register_to_config  # noqa: E402
from diffusers.utils import BaseOutput  # noqa: E402
from diffusers.utils.torch_utils import randn_tensor  # noqa: E402

__all__ = ["BaseOutput", "ConfigMixin", "DDPMScheduler", "ModelMixin", "randn_tensor", "register_to_config"]
