"""Read a grid of sampling settings from a YAML file."""

import dataclasses
import itertools
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jsonargparse import ArgumentError, ArgumentParser

from base.files import read_yaml
from base.messages import UsageError
from models.settings import SamplingSettings

Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value] | None"  # what YAML holds


def read_grid(path: str | Path) -> list[SamplingSettings]:
    """The settings in a YAML file, in its order, without duplicates.

    The file holds `product`, a mapping of fields to a value, a list of values or a range (or a list of such mappings),
    or `settings`, a list of mappings of fields to values, or both. Omitted fields keep their defaults. A range is
    {from, to, step} or {from, to, count}, both ends included; the latter may have `spacing: log`.

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
            values = [[v] if section == "settings" else _values(name, v, path) for name, v in block.items()]
            entries += [dict(zip(block, point, strict=True)) for point in itertools.product(*values)]
    if not entries:
        raise UsageError(f"Grid file {path} holds no settings.")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(SamplingSettings)
    return list(dict.fromkeys(_setting(entry, parser, path) for entry in entries))


def _setting(entry: dict[str, Value], parser: ArgumentParser, path: str | Path) -> SamplingSettings:
    known = [field.name for field in dataclasses.fields(SamplingSettings)]
    if unknown := [name for name in entry if name not in known]:
        raise UsageError(f"Grid file {path}: unknown field {unknown[0]!r}; known are {', '.join(known)}.")
    try:
        return SamplingSettings(**parser.parse_object(entry).as_dict())
    except (ArgumentError, ValueError) as error:
        reason = " ".join(str(error).replace("Parser key ", "").split())
        raise UsageError(f"Grid file {path}: {reason}.") from None


def _values(name: str, value: Value, path: str | Path) -> list[Value]:
    """The values of a field of a product: a single value, a list, or the numbers of a range."""
    if not isinstance(value, dict):
        return value if isinstance(value, list) else [value]
    text = f"Grid file {path}: the range of {name} must be {{from, to, step}} or {{from, to, count, spacing}}"
    spacing = value.get("spacing", "linear")
    try:
        numbers = {part: float(end) for part, end in value.items() if part != "spacing"}  # YAML: 1e-4 is a string
    except (TypeError, ValueError):
        numbers = {}
    if (
        numbers.keys() not in ({"from", "to", "step"}, {"from", "to", "count"})
        or not np.isfinite([*numbers.values()]).all()
    ):
        raise UsageError(f"{text}, all numbers, got {value}.")
    if spacing not in ("linear", "log") or ("step" in numbers and "spacing" in value):
        raise UsageError(f"{text}, with spacing linear or log, got {value}.")
    first, last = numbers["from"], numbers["to"]
    if "step" in numbers:
        if numbers["step"] <= 0 or last < first:
            raise UsageError(f"{text}, rising, got {value}.")
        found = np.arange(first, last + 1e-9 * numbers["step"], numbers["step"])
    else:
        count = numbers["count"]
        if count < 2 or count % 1 or (spacing == "log" and min(first, last) <= 0):
            raise UsageError(f"{text}, with a count of 2 or more and, for log, ends above 0, got {value}.")
        found = (np.linspace if spacing == "linear" else np.geomspace)(first, last, int(count))
    # A range between whole numbers is rounded: 5 .. 50 in 4 log steps is 5, 11, 23, 50.
    whole = all(isinstance(end, int) for part, end in value.items() if part != "spacing")
    return list(dict.fromkeys(round(number) if whole else float(f"{number:.12g}") for number in found.tolist()))
