"""Presets: named sampling settings that are stored with an exported checkpoint."""

from dataclasses import asdict
from pathlib import Path

from base.files import replacing
from models.checkpoints import index_text
from models.index import INDEX, read_json
from models.settings import SamplingSettings, current_names


def save_presets(folder: Path, presets: dict[str, SamplingSettings]) -> None:
    """Write settings under their names into an exported checkpoint; its other presets stay."""
    index = read_json(folder / INDEX, "presets belong into an exported checkpoint")
    new = {name: asdict(settings) for name, settings in presets.items()}
    index["presets"] = current_names(index.get("presets", {})) | current_names(new)
    with replacing(folder / INDEX) as part:
        part.write_text(index_text(index))
