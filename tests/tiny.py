"""Small parts that many tests use: networks, a pipeline, pairs, a run of a few steps and what it wrote."""

import csv
from pathlib import Path

import lightning as L
import numpy as np
import PIL.Image
import tifffile
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle
from torch.utils.data import DataLoader, Dataset

import train
from deblur.models.losses import Objective, PredictorLoss, Residual
from deblur.models.networks.base import Cascade, Predictor, register_to_config
from deblur.models.networks.layers import extended
from deblur.models.networks.nafnet import SlimDenoiser, SlimPredictor
from deblur.models.networks.unet import Denoiser, UNetPredictor
from deblur.models.schedules import linear
from deblur.pipeline import DeblurPipeline, stored_schedule
from deblur.settings import SamplingSettings
from deblur.training.module import Optimizer, Predict, PredictAndRefine

RUN = """
seed_everything: 3
trainer:
  accelerator: cpu
  precision: 32-true
  max_steps: 6
  val_check_interval: 3
  num_sanity_val_steps: 0
  enable_progress_bar: false
  enable_model_summary: false
  log_every_n_steps: 1
  logger: false
  gradient_clip_val: 1.0
ema: {decay: 0.5}
model:
  class_path: deblur.training.module.PredictAndRefine
  init_args:
    predictor:
      class_path: deblur.models.networks.unet.UNetPredictor
      init_args: {channels: 4, multipliers: [1, 2], blocks: 1, dropout: 0.1}
    denoiser:
      class_path: deblur.models.networks.unet.Denoiser
      init_args: {channels: 4, multipliers: [1, 2], blocks: 1}
    validation: {steps: 2}
    optimizer: {lr: 1.0e-2, warmup_steps: 2}
data:
  train: photos
  val: photos
  blur:
    camera: [{class_path: deblur.data.camera.CameraShake, init_args: {length: [2.0, 5.0]}}]
    shot_noise: [0.0, 2.0e-4]
  patch_size: 16
  batch_size: 2
"""


PARTS = "predictor", "denoiser"
GROUPS = {"optimizer": Optimizer, "objective": Objective, "predictor_loss": PredictorLoss, "residual": Residual}


def stir(network):
    """Give the zero-started layers values, so that a test sees what flows through them."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and not layer.weight.any():
            nn.init.normal_(layer.weight, std=0.05)
    return network.eval()


def tiny_pipeline(predictor=None, stirred=True, residual_scale=0.1):
    torch.manual_seed(0)
    predictor, denoiser = predictor or UNetPredictor(8, (1, 2), 1), Denoiser(8, (1, 2), 1)
    if stirred:
        stir(predictor), stir(denoiser)
    return DeblurPipeline(predictor.eval(), denoiser.eval(), stored_schedule(linear(2000)), residual_scale)


class TwoStages(Predictor):
    """Two stages, each a convolution at a quarter of the size, as MAXIM has three."""

    receptive_field, stride = None, 4

    @register_to_config
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3 * 16, 3 * 16, 1) for _ in range(2)])

    @property
    def stages(self):
        return len(self.layers)

    def forward(self, blurry, stages=None):
        height, width = blurry.shape[-2:]
        image = extended(blurry, -height % 4, -width % 4)
        for layer in self.layers[:stages]:
            image = image + pixel_shuffle(layer(pixel_unshuffle(image, 4)), 4)
        return image[..., :height, :width]


RICH = "tests.tiny.TwoStages"  # the class that a rich checkpoint names


def rich_pipeline():
    """What a simplest pipeline lacks: two networks in a row, stages, a size head, a scale for luma and each axis of
    chroma, presets with stages, and a denoiser that sees the scale."""
    torch.manual_seed(0)
    first, second = TwoStages(), SlimPredictor((8, 12), (1, 1), size_head=True, images=2)
    denoiser = SlimDenoiser((12, 16), (1, 1), embedding_channels=8)
    for network in (first, second, denoiser):
        for weight in network.parameters():
            nn.init.normal_(weight, std=0.05)
    predictor, schedule = Cascade(first, second).eval(), stored_schedule(linear(2000))
    pipeline = DeblurPipeline(predictor, denoiser.eval(), schedule, [1.5, 0.8, 0.9], scale_kind="learned")
    presets = {"balanced": {"steps": 2, "blend": 0.5}, "fast": {"steps": 1, "stages": 1}}
    pipeline.register_to_config(presets=presets, sigma_min=0.05, sigma_max=12.0)
    return pipeline


def write_rich_photographs(folder):
    """Photographs of odd and different sides in folders of scenes: RGB, grey, of 16 bits, with transparent pixels."""
    generator = torch.Generator().manual_seed(0)

    def values(channels, height, width, levels=256):
        return torch.randint(levels, (height, width, channels), generator=generator).numpy()

    for scene in ("über", "scene 2/sub"):
        (Path(folder) / scene).mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(np.uint8(values(3, 37, 54))).save(Path(folder, "über", "größe.png"))
    PIL.Image.fromarray(np.uint8(values(1, 33, 41)[..., 0])).save(Path(folder, "über", "grey.jpg"))
    tifffile.imwrite(Path(folder, "scene 2", "deep.tif"), np.uint16(values(3, 29, 47, 1 << 16)), photometric="rgb")
    PIL.Image.fromarray(np.uint8(values(4, 45, 31))).save(Path(folder, "scene 2", "sub", "clear.png"))


class Pairs(Dataset):
    """Small images and a darker copy, each from its index alone."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        sharp = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(index))
        return {"blurry": 0.8 * sharp + 0.1, "sharp": sharp, "name": str(index)}


def module(kind=PredictAndRefine, predictor=None, prediction_type="v_prediction", condition="blurry", **options):
    """`kind` of tiny networks; an option that is a group is given as a dict."""
    torch.manual_seed(0)
    predictor = predictor or UNetPredictor(4, (1, 2), 1)
    options["optimizer"] = {"lr": 1e-2, "warmup_steps": 2} | options.get("optimizer", {})
    options = {name: GROUPS[name](**value) if name in GROUPS else value for name, value in options.items()}
    if kind is Predict:
        return Predict(predictor, **options)
    denoiser = Denoiser(4, (1, 2), 1, condition=condition, prediction_type=prediction_type, embedding_channels=8)
    return PredictAndRefine(predictor, denoiser, **{"validation": SamplingSettings(steps=2)} | options)


def fit(model, folder, steps, callbacks=(), ckpt_path=None, validate=False, accelerator="cpu"):
    torch.manual_seed(7)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    length = {"max_epochs": -1, "max_steps": steps, "check_val_every_n_epoch": None, "val_check_interval": steps}
    quiet["enable_checkpointing"] = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    where = {"accelerator": accelerator, "devices": 1, "default_root_dir": folder}
    trainer = L.Trainer(callbacks=list(callbacks), **where, **length, **quiet)
    loader = DataLoader(Pairs(steps * 2), batch_size=2)
    trainer.fit(model, loader, DataLoader(Pairs(1)) if validate else None, ckpt_path=ckpt_path)
    return trainer


def train_run(root, *flags):
    return train.cli(["fit", "--config", "run.yaml", "--trainer.default_root_dir", root, *flags])


def metrics(root, version=0):
    """The rows of a run's metrics.csv, those of a step as one, without what they lack."""
    steps = {}
    with open(Path(root) / f"logs/version_{version}/metrics.csv", newline="") as file:
        for row in csv.DictReader(file):
            steps.setdefault(row["step"], {}).update({name: value for name, value in row.items() if value})
    return [steps[step] for step in sorted(steps, key=int)]


def weights(root):
    files = {part: Path(root, "checkpoint", part, "diffusion_pytorch_model.safetensors") for part in PARTS}
    return {f"{part}.{key}": value for part in PARTS for key, value in load_file(files[part]).items()}
