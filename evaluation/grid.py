"""The rows of an evaluation's table: the settings of a grid, read from a YAML file, and what they are compared with."""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import Field, asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from deblur.cli import UsageError, explain
from deblur.settings import SamplingSettings
from deblur.storage import read_yaml

BLURRY, PREDICTOR, SHARP = "blurry", "predictor", "sharp"  # labels of the rows that every evaluation has
SHARPENED, NOISED = "sharpened", "noised"
# Strengths of the controls, along two curves that start at the prediction (strength 0) and lead to low PSNR: amounts of
# the unsharp mask, and root mean squares of the noise in 8-bit levels. The last ones make the curves cover every useful
# setting.
STRENGTHS = {SHARPENED: (0.3, 0.6, 1.0, 2.0, 4.0), NOISED: (2.0, 5.0, 10.0, 20.0, 40.0)}
LABELS = {control: [f"{control} {strength:g}" for strength in strengths] for control, strengths in STRENGTHS.items()}
CONTROLS = [label for labels in LABELS.values() for label in labels]  # further rows if there is a predictor


@dataclass(frozen=True)
class Row:
    """Images restored by one setting, or images that need none, such as the blurry ones.

    Attributes:
        label: its name in tables and plots, unique among the rows.
        settings: how to sample; None for a row that is no setting.
    """

    label: str
    settings: SamplingSettings | None = None

    @cached_property
    def key(self) -> str:
        """Its name in a journal. A label depends on the other rows of the grid, the settings' own values do not."""
        return self.label if self.settings is None else json.dumps(asdict(self.settings))

    @property
    def file_name(self) -> str:
        """Its label as the name of a file or folder."""
        return re.sub(r"[^A-Za-z0-9.=+-]+", "_", self.label)


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


def rows_of(settings: Sequence[SamplingSettings]) -> list[Row]:
    """A row for each setting; one row for those without a sample that keep the same sharp images: `blend 0` if none.

    A label holds sampler, steps, and the fields that vary in the grid and differ from the default.
    """
    alone = {s: SamplingSettings(blend=0.0, stages=s.stages, keep_sharp=s.keep_sharp) for s in settings if s.blend == 0}
    settings = list(dict.fromkeys(alone.get(setting, setting) for setting in settings))
    sampled = [setting for setting in settings if setting.blend > 0]
    others = [field for field in fields(SamplingSettings) if field.name not in ("sampler", "steps")]
    varying = [field for field in others if len({getattr(setting, field.name) for setting in sampled}) > 1]
    return [Row(_label(setting, varying), setting) for setting in settings]


def _label(setting: SamplingSettings, varying: Sequence[Field]) -> str:
    words = [setting.sampler, str(setting.steps)]
    if setting.blend == 0:
        words, varying = ["blend 0"], [field for field in fields(setting) if field.name in ("stages", "keep_sharp")]
    for field in varying:
        value = getattr(setting, field.name)
        if isinstance(value, str):
            words.append(value)
        elif value != field.default:
            words.append(f"{field.name}={value}")
    return " ".join(words).replace("average=True", "average")
