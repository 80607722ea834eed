"""Predict and refine: restore blurry photographs. Begin with `load_pipeline`.

Its packages (models/, data/ ...) lie beside this folder, which has a symbolic link to each: they are imported as
deblur.models, deblur.data, and editors follow them. `pip install` puts the packages themselves here.
"""

from importlib import import_module
from typing import Any

__version__ = "0.5.0"

PUBLIC = {
    "CheckpointError": "deblur.hub",
    "DeblurPipeline": "deblur.pipeline",
    "SamplingSettings": "deblur.settings",
    "load_pipeline": "deblur.pipeline",
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for, since torch takes seconds."""
    if name not in PUBLIC:
        raise AttributeError(f"module deblur has no attribute {name}")
    return getattr(import_module(PUBLIC[name]), name)
