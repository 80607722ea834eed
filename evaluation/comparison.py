"""Two evaluations of the same pictures, noise and grid beside each other: paired differences with their intervals."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from evaluation.journal import whole_file
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
    recipes = [
        {
            name: metric["recipe"]
            for name, metric in json.loads((folder / "results.json").read_text())["metrics"].items()
        }
        for folder in folders
    ]
    for name in recipes[0]:
        if recipes[0][name] != recipes[1].get(name):
            raise ValueError(
                f"{folders[0]} and {folders[1]} were scored by different recipes of {name}: score one again"
            )
    tables = [pq.read_table(folder / "per_image.parquet").to_pylist() for folder in folders]
    first, second = ({(line["setting"], line["image"]): line for line in table} for table in tables)
    lines = []
    for setting in dict.fromkeys(line["setting"] for line in tables[0]):
        own = [place for place in first if place[0] == setting and place in second]
        for name in recipes[0]:
            pairs = np.array([[first[place].get(name), second[place].get(name)] for place in own], dtype=float)
            pairs = pairs[np.isfinite(pairs).all(axis=1)]
            if not len(pairs):
                continue
            a, b, change = estimates(np.column_stack([pairs, pairs[:, 1] - pairs[:, 0]]), seed)
            numbers = {"a": a.mean, "b": b.mean, "difference": change.mean, "low": change.low, "high": change.high}
            numbers = {part: "" if value is None else format(value, ".9g") for part, value in numbers.items()}
            lines.append({"setting": setting, "metric": name, "images": change.n} | numbers)
    path = output / "comparison.csv"
    with whole_file(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["setting", "metric", "images", "a", "b", "difference", "low", "high"])
        table.writeheader()
        table.writerows(lines)
    return path
