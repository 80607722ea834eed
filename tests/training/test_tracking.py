"""What a run leaves for Weights & Biases and TensorBoard, read back from their files."""

import json
import math
import struct
from pathlib import Path

import pytest
import torch

import train
from data import images
from evaluation import panels

FIT = ["fit", "--config", "run.yaml", "--trainer.default_root_dir", "run"]
KEY = "0123456789abcdef" * 2 + "5ec2e7ed"  # has the form of an API key
pytestmark = [pytest.mark.usefixtures("run_folder"), pytest.mark.filterwarnings("ignore")]


def records(path):
    """The records of a .wandb file: LevelDB's log format, in blocks of 32 KiB after 7 bytes of its own."""
    from wandb.proto import wandb_internal_pb2

    log, place, parts = path.read_bytes(), 7, []
    while place < len(log):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", log[place : place + 7])
        parts.append(log[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # the whole of a record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def item(entry):
    return "/".join(entry.nested_key) or entry.key, json.loads(entry.value_json)


def test_an_offline_run_of_weights_and_biases_reads_back_whole_and_holds_no_key(run_folder, monkeypatch, capfd):
    import wandb

    for name in ("HOME", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(run_folder / "home"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger = "logger: {class_path: lightning.pytorch.loggers.WandbLogger, init_args: {project: test}}"
    Path("run.yaml").write_text(Path("run.yaml").read_text().replace("logger: false", logger))
    assert train.main([*FIT, "--scores.panels", "1"]) == 0
    wandb.teardown()  # as at the end of a process: all is on the disk
    (log,) = Path("run/wandb").glob("offline-run-*/run-*.wandb")
    curves, config = {}, {}
    for record in records(log):
        for entry in record.history.item:
            name, value = item(entry)
            curves.setdefault(name, []).append(value)
        for update in (record.run.config.update, record.config.update):
            config |= dict(map(item, update))
    for name, count in {"train/loss": 6, "val/psnr": 2, "grad_norm/predictor": 6, "grad_norm/denoiser": 6}.items():
        assert len(curves[name]) == count and all(map(math.isfinite, curves[name])), name
    assert sum(len(values) for name, values in curves.items() if name.startswith("denoiser_loss/snr_")) >= 6
    assert config["config"]["model"]["class_path"] == "models.lightning_module.PredictAndRefine" and "commit" in config
    shown = [log.parent / "files" / file for files in curves["val/panel_0/filenames"] for file in files]
    assert len(shown) == 2 and all(image.stat().st_size > 1000 for image in shown)

    said = "".join(capfd.readouterr())
    assert KEY not in said and "has no effect" not in said
    files = [path for path in run_folder.rglob("*") if path.is_file()]
    assert len(files) > 20 and not [path for path in files if KEY.encode() in path.read_bytes()]


def test_tensorboard_by_one_line(run_folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    line = "logger: {class_path: lightning.pytorch.loggers.TensorBoardLogger}"
    Path("run.yaml").write_text(Path("run.yaml").read_text().replace("logger: false", line))
    assert train.main([*FIT, "--trainer.max_steps", "3", "--scores.panels", "1"]) == 0
    (events,) = Path("run").rglob("events.out.tfevents.*")
    log = accumulator.EventAccumulator(str(events.parent)).Reload()
    assert {"train/loss", "val/psnr", "grad_norm/denoiser"} <= set(log.Tags()["scalars"])
    assert set(log.Tags()["images"]) == {"val/panel_0"}
    # What the panel shows, in its columns: those after the mean are shifted by the deviation's colour bar.
    shown = images.read("run/panels/step_3_0.png") * 255
    left, top, height = panels.GAP + panels.NAME, panels.TITLE, round(panels.WIDTH * 40 / 44)
    starts = [left + at * (panels.WIDTH + panels.GAP) for at in range(6)]
    blurry, _, *samples, mean = (shown[:, top : top + height, x : x + panels.WIDTH] for x in starts)
    assert (torch.stack(samples).mean(0) - mean).abs().max() < 2.5  # roundings, of what is resized and of files
    assert all((one - mean).abs().max() > 5 for one in (blurry, *samples))
