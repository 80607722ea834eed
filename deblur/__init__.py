"""Predict and refine: restore blurry photographs. Begin with `load_pipeline`.

In a checkout the packages lie beside this folder (models/, data/ ...) and are imported as deblur.models, deblur.data.
`pip install` puts them into this folder, under the same names.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.4.0"

PUBLIC = {
    "CheckpointError": "deblur.models.hub",
    "DeblurPipeline": "deblur.models.pipeline",
    "SamplingSettings": "deblur.models.settings",
    "load_pipeline": "deblur.models.checkpoints",
}

_here = Path(__file__).parent
if not (_here / "models").is_dir():
    __path__.append(str(_here.parent))


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for, since torch takes seconds."""
    if name not in PUBLIC:
        raise AttributeError(f"module deblur has no attribute {name}")
    return getattr(import_module(PUBLIC[name]), name)
