"""The options of evaluate.py, and checks of them that need no torch."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from deblur.evaluation.catalogue import require_known
from deblur.evaluation.grid import read_grid
from deblur.hub import stored_index
from deblur.settings import SamplingSettings, require_device
from deblur.storage import require_writable


@dataclass(frozen=True)
class Evaluation:
    """The command line.

    Writes results.csv and results.json (one row per setting, and the rows blurry, predictor, sharp and two controls),
    per_image.parquet, report.html, pareto.png, panel.png, and journal/, from which a stopped run is resumed. Under
    torchrun or SLURM the processes share the images.

    Args:
        data: root folder of a dataset of pairs, in any layout of docs/data.md, or a CSV manifest.
        output: folder for the results.
        checkpoint: exported folder, hub id (user/name or user/name@revision), or .ckpt file of train.py; default:
            pretrained/lite, which comes with the repository.
        grid: YAML file with the settings to score, such as configs/grid/quick.yaml; default: the checkpoint's presets.
        outputs: folder of images that another program restored, named as the pairs of the dataset. They are scored as
            an additional row, or alone if no grid is given.
        checkpoints: two checkpoints instead of one, A and B: the same grid on the same images and noise, written to the
            folders A and B of the output, and comparison.csv and report.html with the paired differences.
        split: which split of the dataset.
        variant: which blurry images of the dataset, such as blur_gamma; blur is the first variant of every layout.
        seed: the same seed gives the same noise for an image of the same name, in every setting.
        device: cpu, cuda, cuda:1, mps, or auto for the first available of cuda, mps, cpu.
        precision: of the networks; auto is bf16 where the device supports it in hardware.
        provider: what runs an ONNX folder (docs/deployment.md): openvino, the default if it is installed; or cpu, cuda
            or tensorrt of ONNX Runtime.
        classes: your own networks that the checkpoint names, such as mypred.MyPredictor, separated by commas
            (docs/extend.md).
        batch_size: images per batch of the networks; default: chosen by the device and the images' size.
        metrics: names from docs/metrics.md, separated by commas, or functions of your own, such as mymetric.contrast
            (docs/extend.md); psnr and ssim are always included.
        language: of the texts that cer compares with, as Tesseract names it: eng, deu, eng+fra.
        limit: score at most this many pairs, spread evenly over the list.
        panel: file for the comparison of a few images at the most perceptual setting; default: panel.png in the output.
        images: also write the image of every row but the controls, to images/ROW in the output, such as for FID
            (docs/metrics.md).
        save_presets: write the settings with the best PSNR (fidelity), the best LPIPS (perceptual) and the knee between
            them (balanced) into the checkpoint's folder, for sample.py --preset.
        overwrite: discard the scores of another evaluation in the output folder.
    """

    data: str
    output: str
    checkpoint: str | None = None
    grid: str | None = None
    outputs: str | None = None
    checkpoints: tuple[str, str] | None = None
    split: str = "test"
    variant: str = "blur"
    seed: int = 0
    device: str = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    provider: Literal["openvino", "cpu", "cuda", "tensorrt"] | None = None
    classes: str | None = None
    batch_size: int | None = None
    metrics: str = "psnr,ssim,lpips"
    language: str = "eng"
    limit: int | None = None
    panel: str | None = None
    images: bool = False
    save_presets: bool = False
    overwrite: bool = False

    def __post_init__(self):
        for name in ("batch_size", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be 1 or more, got {value}")
        if self.checkpoints and self.grid is None:
            raise ValueError("--checkpoints needs a --grid: two checkpoints have presets of their own")
        if self.checkpoints and (self.checkpoint or self.outputs or self.save_presets):
            raise ValueError("--checkpoints takes no --checkpoint, --outputs or --save_presets")
        if self.panel_path.suffix != ".png":
            raise ValueError(f"--panel must name a .png file, got {self.panel}")

    @property
    def panel_path(self) -> Path:
        """The file for the panel."""
        return Path(self.panel) if self.panel else Path(self.output) / "panel.png"

    @property
    def metric_names(self) -> set[str]:
        """The requested metrics, and psnr and ssim."""
        return {"psnr", "ssim", *self.metrics.replace(" ", "").split(",")} - {""}

    @cached_property
    def settings(self) -> list[SamplingSettings]:
        """The settings of the grid; empty without a grid."""
        return [] if self.grid is None else read_grid(self.grid)


def check(evaluation: Evaluation) -> None:
    """Raise ValueError for a wrong name or path, before the libraries and the data are loaded."""
    require_known(evaluation.metric_names)
    require_device(evaluation.device)
    data = Path(evaluation.data)
    if not (data.is_dir() or data.is_file()):
        raise ValueError(f"--data {data} does not exist: give the root folder of a dataset, or a CSV manifest")
    if evaluation.outputs is not None and not Path(evaluation.outputs).exists():
        raise ValueError(f"--outputs {evaluation.outputs} does not exist")
    checkpoints = evaluation.checkpoints or ([evaluation.checkpoint] if evaluation.checkpoint else [])
    for checkpoint in checkpoints:
        stored_index(checkpoint)
    evaluation.settings  # noqa: B018 (reads the grid)
    require_writable(evaluation.panel_path.parent, "--panel" if evaluation.panel else "--output")
    require_writable(Path(evaluation.output))
