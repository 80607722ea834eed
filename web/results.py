"""A visitor's restoration: kept on disk, and blended again without running a network."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.images import ImageFile
from models.samples import Samples, blended, to_world
from models.settings import SamplingSettings
from restoration.options import Options
from restoration.outputs import outputs_of


@dataclass(frozen=True, eq=False)
class Photo:
    """An opened photograph: its file under its original name, and its pixels."""

    path: Path
    image: ImageFile

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, after rotation to upright."""
        return tuple(self.image.pixels.shape[-2:])


@dataclass(eq=False)
class Result:
    """The result of a run; its strength and its mask can be changed.

    Args:
        number: of the run in this visit.
        photo: the input photograph.
        folder: of the inputs of `models.samples.blended`, as files of float32 (1, C, H, W), 672 MB for 24 megapixels:
            x_init, s, and the samples r_0, r_1 and so on.
        settings: the sampling settings; `blend` is the strength.
        preset: the preset's settings without changes.
        options: of sample.py.
        facts: information about the run, by name.
        mask: factor on the strength at each pixel, (h, w) in [0, 1], with the photograph's aspect ratio at any
            resolution; None for 1 everywhere.
        tiles: as in `models.pipeline.DeblurOutput`.
    """

    number: int
    photo: Photo
    folder: Path
    settings: SamplingSettings
    preset: SamplingSettings
    options: Options
    facts: dict[str, str] = field(default_factory=dict)
    mask: Tensor | None = None
    tiles: dict[str, int | None] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return sum(file.stat().st_size for file in self.folder.iterdir())

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(list(self.folder.glob("r_*.npy")))

    @property
    def kinds(self) -> list[str]:
        """The kinds of images it has; the last one is the requested result."""
        count = self.samples
        if count < 2:
            return ["prediction", *["restored"] * count]
        return ["prediction", *(f"sample {k + 1} of {count}" for k in range(count)), f"mean of {count} samples"]

    def image(self, kind: str) -> Tensor:
        """One of `kinds` as the pipeline returns it: (3, H, W) float32 in [0, 1], blended with the mask, if any."""
        if kind == "prediction":
            return to_world(self._read("x_init"))[0]
        if kind.startswith("mean"):
            return self._collected().images()[0]
        return self._sample(self._number(kind))[0]

    def std(self) -> Tensor | None:
        """Standard deviation over the samples, (3, H, W) in units of the [0, 1] range; None for one sample."""
        return self._collected().std()[0] if self.samples > 1 else None

    def file_name(self, kind: str) -> str:
        """The file name that sample.py would use."""
        [(_, target)] = outputs_of([str(self.photo.path)], str(self.folder)).work
        one_of_several = self.samples > 1 and kind.startswith("sample")
        return f"{target.stem}_{self._number(kind)}{target.suffix}" if one_of_several else target.name

    def command(self, kind: str) -> str | None:
        """The command line that makes the same file; None with a mask, which sample.py does not support."""
        if kind == "prediction":
            wanted = replace(self.preset, blend=0.0)
        elif self.mask is not None:
            return None
        else:
            wanted = replace(self.settings, average=kind.startswith("mean"))
        numbers = {name: value for name, value in asdict(wanted).items() if value != getattr(self.preset, name)}
        sides = {"tile": self.tiles.get("denoiser"), "predictor_tile": self.tiles.get("predictor")}
        usual = Options("")
        options = {name: value for name, value in vars(self.options).items() if value != getattr(usual, name)}
        flags = options | numbers | {name: side for name, side in sides.items() if side}
        name = self.photo.path.name
        words = ["python", "sample.py", f"./{name}" if name.startswith("-") else name, "--output", "restored"]
        for flag, value in flags.items():
            words += [f"--{flag}", str(value).lower() if isinstance(value, bool) else str(value)]
        return shlex.join(words)

    def _number(self, kind: str) -> int:
        return int(kind.split()[1]) - 1 if kind.startswith("sample") else 0

    def _sample(self, k: int) -> Tensor:
        blend = self.settings.blend
        if self.mask is not None:
            blend = blend * F.interpolate(self.mask[None, None], self.photo.size, mode="bilinear")[0, 0]
        return blended(self._read("x_init"), self._read(f"r_{k}"), self._read("s"), blend)

    def _collected(self) -> Samples:
        samples = Samples(replace(self.settings, num_samples=self.samples, average=True))
        for k in range(self.samples):
            samples.add(self._sample(k))
        return samples

    def _read(self, name: str) -> Tensor:
        return torch.from_numpy(np.load(self.folder / f"{name}.npy", mmap_mode="c"))


def mask_of(layers: Sequence[np.ndarray], outside: bool) -> Tensor | None:
    """A mask (h, w) in [0, 1] from layers (h, w, 4) of uint8, inverted if `outside`; None if nothing is painted."""
    painted = [torch.from_numpy(layer[..., 3].copy()).float().div_(255) for layer in layers]
    if not any(layer.any() for layer in painted):
        return None
    mask = torch.stack(painted).amax(0)
    return 1 - mask if outside else mask
