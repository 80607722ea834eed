"""The rows of an evaluation's table: the settings of a grid, and what they are compared with."""

import json
import re
from collections.abc import Sequence
from dataclasses import Field, asdict, dataclass, fields

from deblur.evaluation.controls import LABELS
from deblur.settings import SamplingSettings

BLURRY, PREDICTOR, SHARP = "blurry", "predictor", "sharp"  # labels of the rows that every evaluation has
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

    @property
    def key(self) -> str:
        """Its name in a journal. A label depends on the other rows of the grid, the settings' own values do not."""
        return self.label if self.settings is None else json.dumps(asdict(self.settings))

    @property
    def file_name(self) -> str:
        """Its label as the name of a file or folder."""
        return re.sub(r"[^A-Za-z0-9.=+-]+", "_", self.label)


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
    if setting.blend == 0:
        words = ["blend 0"]
        if setting.stages is not None:
            words.append(f"stages={setting.stages}")
        if setting.keep_sharp:
            words.append(f"keep_sharp={setting.keep_sharp}")
        return " ".join(words)
    words = [setting.sampler, str(setting.steps)]
    for field in varying:
        value = getattr(setting, field.name)
        if isinstance(value, str):
            words.append(value)
        elif value != field.default:
            words.append(f"{field.name}={value}")
    return " ".join(words).replace("average=True", "average")
