"""Stored predictions: what a frozen predictor, or a cascade's frozen first network, makes of a dataset's blurry images.

ROOT/predictions/SPLIT_VARIANT/ holds, for each pair by its name,

- x_init/NAME.png, 8 bits: the prediction, clipped to [0, 1];
- log_size/NAME.png, 16 bits, grey, if the predictor has a size head: the log of the expected |x - x_init| in [-1, 1],
  from LEAST_LOG_SIZE to LARGEST_LOG_SIZE, in steps of 0.0002;

and predictor.json says whose they are. `tools.make_pairs --predict` writes them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from deblur.data.files import images
from deblur.data.layouts import DatasetError, Pair
from deblur.storage import write_json

FACTS = "predictor.json"
# Beyond them a size is far below an 8-bit level, or larger than the images' range.
LEAST_LOG_SIZE, LARGEST_LOG_SIZE = -10.0, 2.0
GREY_16 = images.ImageFile(torch.empty(3, 0, 0, dtype=torch.uint16), grey=True)


@dataclass(frozen=True)
class PredictedBy:
    """Whose predictions a folder holds: predictor.json.

    Args:
        checkpoint: as it was named.
        sha256: `deblur.checkpoints.network_hash` of its predictor.
        size_head: whether log_size is stored, too.
        stages: of the predictor that were run; None: all.
    """

    checkpoint: str
    sha256: str
    size_head: bool
    stages: int | None = None


@dataclass(frozen=True)
class Predictions:
    """The folder of one predictor's predictions on one split of a dataset."""

    folder: Path
    predictor: PredictedBy

    @classmethod
    def of(cls, root: str | Path, split: str, variant: str) -> "Predictions":
        """The predictions that are stored beside a dataset's pairs. DatasetError if there are none."""
        folder = folder_of(root, split, variant)
        if not (folder / FACTS).is_file():
            raise DatasetError(
                f"{root} has no predictions of its {split} split: make them by python -m tools.make_pairs {root}"
                f" --predict CHECKPOINT --split {split} --variant {variant}, or omit data.predictions."
            )
        return cls(folder, PredictedBy(**json.loads((folder / FACTS).read_text(encoding="utf-8"))))

    def files(self, name: str) -> dict[str, Path]:
        """The files of a pair, by what they hold."""
        kinds = ("x_init", "log_size") if self.predictor.size_head else ("x_init",)
        return {kind: self.folder / kind / f"{name}.png" for kind in kinds}

    def complete(self, name: str) -> bool:
        """Whether all files of a pair are there."""
        return all(file.is_file() for file in self.files(name).values())

    def require(self, pairs: Sequence[Pair]) -> None:
        """Raise DatasetError unless every pair has its prediction, of its own size."""
        lacking = [pair.name for pair in pairs if not self.complete(pair.name)]
        if lacking:
            raise DatasetError(
                f"{self.folder} lacks the predictions of {len(lacking)} pairs, {lacking[0]} among them: repeat the"
                " command that made them."
            )
        for pair in pairs:
            for file in self.files(pair.name).values():
                images.require_end(file)
                if images.header_size(file) != images.header_size(pair.sharp):
                    raise DatasetError(f"{file} differs in size from {pair.sharp}: remove {self.folder}, and predict.")

    def begin(self) -> None:
        """Make the folder, to be filled by `write`. DatasetError if it holds another predictor's."""
        file = self.folder / FACTS
        if file.is_file():
            stored = PredictedBy(**json.loads(file.read_text(encoding="utf-8")))
            if (stored.sha256, stored.stages) != (self.predictor.sha256, self.predictor.stages):
                stages = "" if stored.stages is None else f", {stored.stages} of its stages"
                raise DatasetError(
                    f"{self.folder} holds the predictions of another predictor, that of {stored.checkpoint}{stages}:"
                    " remove it."
                )
            return
        write_json(file, asdict(self.predictor))

    def write(self, name: str, x_init: Tensor, log_size: Tensor | None) -> None:
        """Store the prediction of a pair: x_init (3, H, W) in [0, 1], log_size (1, H, W)."""
        if log_size is not None:
            level = (log_size - LEAST_LOG_SIZE) / (LARGEST_LOG_SIZE - LEAST_LOG_SIZE)
            images.write(self.files(name)["log_size"], level.expand(3, -1, -1), GREY_16, compress_level=1)
        images.write(self.files(name)["x_init"], x_init, compress_level=1)

    def read(self, name: str) -> dict[str, Tensor]:
        """The prediction of a pair in raw numbers, as `images.read_raw`: x_init (3, H, W) and log_size (1, H, W)."""
        raw = {kind: images.read_raw(file) for kind, file in self.files(name).items()}
        if "log_size" in raw:
            raw["log_size"] = raw["log_size"][:1]
        return raw


def folder_of(root: str | Path, split: str, variant: str) -> Path:
    """The folder of the predictions on a split of a dataset with one variant of blurry images."""
    root = Path(root)
    base = root.parent if root.is_file() else root  # a CSV manifest lies beside them
    return base / "predictions" / f"{split}_{variant}"


def to_log_size(level: Tensor) -> Tensor:
    """The log of the expected error, from the stored level in [0, 1]."""
    return LEAST_LOG_SIZE + (LARGEST_LOG_SIZE - LEAST_LOG_SIZE) * level
