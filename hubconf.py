"""Entry points of torch.hub: torch.hub.load(CLONE, "pipeline", "lite", source="local")."""

from typing import Any

dependencies = ["torch", "numpy", "PIL", "psutil", "diffusers", "safetensors", "huggingface_hub"]
dependencies += ["jsonargparse", "docstring_parser", "yaml"]


def pipeline(checkpoint: str = "lite", **options: Any) -> Any:
    """A pipeline that restores photographs: pipeline(PIL image).images[0].

    Args:
        checkpoint: lite or another checkpoint that comes with the repository, a folder, a .ckpt file or a hub id.
        options: as for `deblur.pipeline.load_pipeline`: device, precision, provider, classes.
    """
    from deblur.pipeline import load_pipeline

    return load_pipeline(checkpoint, **options)
