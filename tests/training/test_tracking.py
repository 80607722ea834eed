"""What a run leaves for TensorBoard, read back from its files; tests/test_train.py has Weights & Biases."""

import math
from pathlib import Path

import pytest
import torch

import train
from data import images
from evaluation import panels

FIT = ["fit", "--config", "run.yaml", "--trainer.default_root_dir", "run"]
pytestmark = [pytest.mark.usefixtures("run_folder"), pytest.mark.filterwarnings("ignore")]


def test_tensorboard_by_one_line(run_folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    line = "logger: {class_path: lightning.pytorch.loggers.TensorBoardLogger}"
    Path("run.yaml").write_text(Path("run.yaml").read_text().replace("logger: false", line))
    assert train.main([*FIT, "--trainer.max_steps", "3", "--scores.panels", "1"]) == 0
    (events,) = Path("run").rglob("events.out.tfevents.*")
    log = accumulator.EventAccumulator(str(events.parent)).Reload()
    for name, steps in {"train/loss": 3, "val/psnr": 1, "grad_norm/predictor": 3, "grad_norm/denoiser": 3}.items():
        values = [event.value for event in log.Scalars(name)]
        assert len(values) == steps and all(map(math.isfinite, values)), name
    assert any(name.startswith("denoiser_loss/snr_") for name in log.Tags()["scalars"])
    assert set(log.Tags()["images"]) == {"val/panel_0"}
    # What the panel shows, in its columns: those after the mean are shifted by the deviation's colour bar.
    shown = images.read("run/panels/step_3_0.png") * 255
    left, top, height = panels.GAP + panels.NAME, panels.TITLE, round(panels.WIDTH * 40 / 44)
    starts = [left + at * (panels.WIDTH + panels.GAP) for at in range(6)]
    blurry, _, *samples, mean = (shown[:, top : top + height, x : x + panels.WIDTH] for x in starts)
    assert (torch.stack(samples).mean(0) - mean).abs().max() < 2.5  # roundings, of what is resized and of files
    assert all((one - mean).abs().max() > 5 for one in (blurry, *samples))
