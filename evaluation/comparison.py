"""Two evaluations of the same images, noise and grid beside each other: paired differences with their intervals."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from base.files import replacing
from evaluation.statistics import estimates


def write_comparison(folders: Sequence[Path], output: Path, seed: int = 0) -> Path:
    """Write comparison.csv: for each setting and metric the means of A and B, and B - A with its 95 % interval.

    Args:
        folders: of evaluation A and of evaluation B.
        output: an existing folder.
        seed: of the bootstrap.

    Raises:
        ValueError: a recipe differs between the two.
    """
    recipes = []
    for folder in folders:
        metrics = json.loads((folder / "results.json").read_text(encoding="utf-8"))["metrics"]
        recipes.append({name: metric["recipe"] for name, metric in metrics.items()})
    for name in recipes[0]:
        if recipes[0][name] != recipes[1].get(name):
            raise ValueError(
                f"{folders[0]} and {folders[1]} were scored by different recipes of {name}: score one again"
            )
    tables = [pd.read_parquet(folder / "per_image.parquet") for folder in folders]
    both = tables[0].merge(tables[1], on=["setting", "image"], suffixes=("_a", "_b"))
    lines = []
    for setting, own in both.groupby("setting", sort=False):
        for name in (name for name in recipes[0] if name in tables[0]):
            pairs = own[[f"{name}_a", f"{name}_b"]].to_numpy()
            pairs = pairs[np.isfinite(pairs).all(axis=1)]
            if len(pairs):
                a, b, change = estimates(np.column_stack([pairs, pairs[:, 1] - pairs[:, 0]]), seed)
                numbers = {"difference": change.mean, "low": change.low, "high": change.high}
                lines.append(
                    {"setting": setting, "metric": name, "images": change.n, "a": a.mean, "b": b.mean, **numbers}
                )
    path = output / "comparison.csv"
    with replacing(path) as part:
        pd.DataFrame(lines).to_csv(part, index=False, float_format="%.9g")
    return path
