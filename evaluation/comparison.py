"""Compare two evaluations of the same images, noise and grid: paired differences with intervals."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from base.files import replacing
from evaluation.report import read_results, write_joint_report
from evaluation.scoring import BLURRY, CONTROLS, SHARP
from evaluation.statistics import estimates

SHOWN = {"psnr": ("PSNR", 2), "ssim": ("SSIM", 4), "lpips": ("LPIPS", 4)}  # printed metrics and their digits


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


def write_comparison(folders: Sequence[Path], output: Path, seed: int = 0) -> tuple[list[Change], list[Path]]:
    """Write comparison.csv and report.html with the means of A and B and B - A for each setting and metric.

    The folders of A and of B lie in `output`. Returns the changes, in the order of the rows, and the files.

    Raises:
        ValueError: the two evaluations used different recipes for a metric.
    """
    documents = [read_results(folder) for folder in folders]
    recipes = [{name: metric["recipe"] for name, metric in document["metrics"].items()} for document in documents]
    for name in recipes[0]:
        if recipes[0][name] != recipes[1].get(name):
            raise ValueError(
                f"{folders[0]} and {folders[1]} were scored by different recipes of {name}: score one again"
            )
    tables = [pd.read_parquet(folder / "per_image.parquet") for folder in folders]
    both = tables[0].merge(tables[1], on=["setting", "image"], suffixes=("_a", "_b"))
    changes = []
    for setting, own in both.groupby("setting", sort=False):
        for name in (name for name in recipes[0] if name in tables[0]):
            pairs = own[[f"{name}_a", f"{name}_b"]].to_numpy()
            pairs = pairs[np.isfinite(pairs).all(axis=1)]
            if len(pairs):
                a, b, change = estimates(np.column_stack([pairs, pairs[:, 1] - pairs[:, 0]]), seed)
                changes.append(Change(setting, name, change.n, a.mean, b.mean, change.mean, change.low, change.high))
    path = output / "comparison.csv"
    with replacing(path) as part:
        pd.DataFrame(list(map(asdict, changes))).to_csv(part, index=False, float_format="%.9g")
    rows = {}
    for change in changes:
        rows.setdefault(change.setting, {})[change.metric] = change
    by_folder = {folder.name: document for folder, document in zip(folders, documents, strict=True)}
    return changes, [path, write_joint_report(output, by_folder, rows)]


def format_changes(changes: Sequence[Change]) -> str:
    """B - A as text, one line for each row that depends on the checkpoint, without the controls."""
    rows = {}
    for change in changes:
        if change.setting not in (BLURRY, SHARP, *CONTROLS):
            rows.setdefault(change.setting, {})[change.metric] = change
    table = pd.DataFrame(index=rows, columns=pd.Index(["images"], name="B - A"))
    table["images"] = [max(change.images for change in row.values()) for row in rows.values()]
    for name, (title, digits) in SHOWN.items():
        if any(name in row for row in rows.values()):
            table[title] = [row[name].text(digits) if name in row else "-" for row in rows.values()]
    return table.to_string()
