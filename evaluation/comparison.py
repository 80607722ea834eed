"""Compare two evaluations of the same images, noise and grid: paired differences with intervals."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from deblur.evaluation.metrics import Metric
from deblur.evaluation.rows import BLURRY, CONTROLS, SHARP
from deblur.evaluation.statistics import estimates
from deblur.evaluation.summary import Summary
from deblur.storage import replacing


@dataclass(frozen=True)
class Change:
    """B - A for one setting and metric, paired by image, with its 95 % interval, and both means."""

    setting: str
    metric: str
    images: int
    a: float
    b: float
    difference: float
    low: float | None
    high: float | None

    def text(self, digits: int) -> str:
        """The difference and, if there is one, its interval."""
        interval = "" if self.low is None else f" ({self.low:+.{digits}f} to {self.high:+.{digits}f})"
        return f"{self.difference:+.{digits}f}{interval}"


def write_comparison(first: Summary, second: Summary, output: Path, seed: int = 0) -> dict[str, dict[str, Change]]:
    """Write comparison.csv with the means of A and B and B - A for each setting and metric.

    Args:
        first, second: the results of A and of B.
        output: an existing folder.
        seed: of the bootstrap.

    Returns:
        Setting -> metric -> change, in the order of the rows.
    """
    joined = first.scores.merge(second.scores, on=["setting", "image"], suffixes=("_a", "_b"))
    changes: dict[str, dict[str, Change]] = {}
    for setting, of_setting in joined.groupby("setting", sort=False):
        for name in first.metrics:
            pairs = of_setting[[f"{name}_a", f"{name}_b"]].to_numpy()
            pairs = pairs[np.isfinite(pairs).all(axis=1)]
            if len(pairs):
                a, b, change = estimates(np.column_stack([pairs, pairs[:, 1] - pairs[:, 0]]), seed)
                difference = Change(setting, name, change.n, a.mean, b.mean, change.mean, change.low, change.high)
                changes.setdefault(setting, {})[name] = difference
    with replacing(output / "comparison.csv") as part:
        lines = [asdict(change) for row in changes.values() for change in row.values()]
        pd.DataFrame(lines).to_csv(part, index=False, float_format="%.9g")
    return changes


def format_changes(changes: Mapping[str, Mapping[str, Change]], metrics: Mapping[str, Metric]) -> str:
    """B - A as text, one line for each row that depends on the checkpoint, without the controls."""
    rows = {setting: row for setting, row in changes.items() if setting not in (BLURRY, SHARP, *CONTROLS)}
    table = pd.DataFrame(index=rows, columns=pd.Index(["images"], name="B - A"))
    table["images"] = [max(change.images for change in row.values()) for row in rows.values()]
    for name, (title, digits, _) in ((name, metric.column) for name, metric in metrics.items()):
        if any(name in row for row in rows.values()):
            table[title.partition(" (")[0]] = [row[name].text(digits) if name in row else "-" for row in rows.values()]
    return table.to_string()
