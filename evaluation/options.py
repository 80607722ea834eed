"""The options of evaluate.py; checking them needs no library."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deblur.hub import PRETRAINED, locate


@dataclass(frozen=True)
class Evaluation:
    """What evaluate.py scores, and how.

    Writes results.csv and results.json (one row per setting, and the rows blurry, predictor, sharp and two controls),
    per_image.parquet, report.html, pareto.png, and journal/, from which a stopped run is resumed. Under
    torchrun or SLURM the processes share the images.

    Args:
        data: root folder of a dataset of pairs, in any layout of docs/data.md, ROOT:SPLIT, a CSV manifest, or a layout
            of your own as in a config of train.py, '{class_path: ..., init_args: {...}}' (docs/extend.md).
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
            (docs/extend.md). psnr is always included, and ssim if lpips is not: the curve has two axes.
        controls: also score the controls, ten rows by which a setting is judged to be perceptual (docs/evaluation.md);
            false saves their time where a quick look is enough.
        language: of the texts that cer compares with, as Tesseract names it: eng, deu, eng+fra.
        limit: score at most this many pairs, spread evenly over the list.
        panel: also write this file: a few images at the most perceptual setting, with the mean and the deviation of
            four samples.
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
    controls: bool = True
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
        if self.checkpoints and (self.checkpoint or self.outputs or self.save_presets or self.panel):
            raise ValueError("--checkpoints takes no --checkpoint, --outputs, --save_presets or --panel")
        if self.scores_images_alone and (self.save_presets or self.panel):
            raise ValueError("--save_presets and --panel need settings of a checkpoint: give --checkpoint, too")
        if self.panel and Path(self.panel).suffix != ".png":
            raise ValueError(f"--panel must name a .png file, got {self.panel}")

    @property
    def scores_images_alone(self) -> bool:
        """Whether another program's images are scored, and no checkpoint."""
        return bool(self.outputs) and not (self.checkpoint or self.grid)

    @property
    def metric_names(self) -> set[str]:
        """The requested metrics, and those that the curve needs."""
        asked = set(self.metrics.replace(" ", "").split(",")) - {""}
        return asked | {"psnr"} | ({"ssim"} - asked if "lpips" not in asked else set())

    @property
    def checkpoints_by_letter(self) -> dict[str, str | None]:
        """The checkpoints by the folders of their results, A and B if there are two; None: only images are scored."""
        if self.checkpoints:
            return dict(zip("AB", map(locate, self.checkpoints), strict=True))
        if self.scores_images_alone:
            return {"": None}
        return {"": locate(self.checkpoint or PRETRAINED)}
