"""Names of before version 0.4.0, and what they are called now."""

import sys
from importlib.util import find_spec
from typing import Any

PACKAGES = ("data", "evaluation", "models", "restoration", "training")
MODULES = {
    "models.arrays": "models.image_processor",
    "models.classes": "models.checkpoints",
    "models.engines": "models.onnx.engines",
    "models.heads": "models.base",
    "models.index": "models.hub",
    "models.memory": "models.devices",
    "models.onnx_files": "models.onnx.files",
    "models.onnx_network": "models.onnx.network",
    "models.optimizer": "models.lightning_module",
    "models.parts": "models.base",
    "models.slim_unet": "models.nafnet",
    "training.averages": "training.callbacks",
    "training.guards": "training.callbacks",
    "training.record": "training.callbacks",
    "training.scores": "training.callbacks",
    "training.screen": "training.callbacks",
    "training.tracking": "training.callbacks",
}


def new_path(path: str) -> str:
    """What the import path of a class, such as models.slim_unet.SlimPredictor, is now; of others it is unchanged."""
    module, _, name = path.rpartition(".")
    now = f"deblur.{MODULES.get(module, module)}"
    is_ours = module.partition(".")[0] in PACKAGES and find_spec(now) is not None
    return f"{now}.{name}" if is_ours else path


def with_new_paths(config: Any) -> Any:
    """A config that a run stored, with the paths of its classes as they are now."""
    if isinstance(config, list):
        return [with_new_paths(entry) for entry in config]
    if not isinstance(config, dict):
        return config
    renamed = {key: with_new_paths(value) for key, value in config.items()}
    if isinstance(config.get("class_path"), str):
        renamed["class_path"] = new_path(config["class_path"])
    return renamed


def require_new_name(package: str) -> None:
    """Called by each package with its __name__, so that no class is loaded a second time under its old name.

    Raises:
        ImportError: the package is imported as models, not as deblur.models.
    """
    if package.startswith("deblur."):
        return
    if sys.argv[0] == "-m":  # while Python looks for what it shall run
        sys.exit("python -m models.export is now python -m tools.export")
    raise ImportError(f"{package} is now deblur.{package}: see 0.4.0 in CHANGELOG.md for the new names")
