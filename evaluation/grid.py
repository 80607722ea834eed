"""Read a grid of sampling settings from a YAML file."""

import itertools
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from deblur.cli import UsageError, explain
from deblur.settings import SamplingSettings
from deblur.storage import read_yaml


def read_grid(path: str | Path) -> list[SamplingSettings]:
    """The settings in a YAML file, in its order, without duplicates.

    The file holds `product`, a mapping of fields to a value or a list of values (or a list of such mappings), or
    `settings`, a list of mappings of fields to values, or both. Omitted fields keep their defaults.

    Raises:
        UsageError: the file cannot be read, or a field or value in it is unknown.
    """
    document = read_yaml(path, "Grid file")
    if not document or not document.keys() <= {"product", "settings"}:
        raise UsageError(f"Grid file {path} must hold the keys 'product' or 'settings' and no others.")

    products = document.get("product") or []
    products = [products] if isinstance(products, dict) else products
    entries = []
    for section, blocks in (("product", products), ("settings", document.get("settings") or [])):
        if not isinstance(blocks, list) or not all(isinstance(block, dict) and block for block in blocks):
            raise UsageError(f"Grid file {path}: '{section}' must hold fields with their values.")
        for block in blocks:
            values = [v if section == "product" and isinstance(v, list) else [v] for v in block.values()]
            entries += [dict(zip(block, point, strict=True)) for point in itertools.product(*values)]
    if not entries:
        raise UsageError(f"Grid file {path} holds no settings.")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(SamplingSettings)
    return list(dict.fromkeys(_setting(entry, parser, path) for entry in entries))


def _setting(entry: dict[str, Any], parser: ArgumentParser, path: str | Path) -> SamplingSettings:
    defaults = vars(SamplingSettings())
    if unknown := [name for name in entry if name not in defaults]:
        raise UsageError(f"Grid file {path}: unknown field {unknown[0]!r}; known are {', '.join(defaults)}.")
    try:
        return SamplingSettings(**parser.parse_object(entry).as_dict())
    except (ArgumentError, ValueError) as error:
        raise UsageError(f"Grid file {path}: {explain(error)}.") from None
