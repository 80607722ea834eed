"""The method: networks, diffusion, sampling, the pipeline and its checkpoints."""

from deblur.moved import require_new_name

require_new_name(__name__)
