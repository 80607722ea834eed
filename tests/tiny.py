"""Small parts that many tests use: networks, a pipeline, pairs, a run of a few steps and what it wrote."""

import csv
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, Dataset

from deblur.models.losses import Objective, PredictorLoss, Residual
from deblur.models.networks.unet import Denoiser, UNetPredictor
from deblur.models.schedules import linear
from deblur.pipeline import DeblurPipeline, stored_schedule
from deblur.settings import SamplingSettings
from deblur.training import command as train
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
