"""train.py as people call it: real runs of a few steps on small real files."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import train
from models.checkpoints import load_pipeline
from tests.tiny import RUN, metrics, train_run

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("run_folder")
SHORT = "[{class_path: data.camera.CameraShake, init_args: {length: [1.0, 2.0]}}]"  # leaves enough for LPIPS


@pytest.mark.filterwarnings("ignore")
def test_a_run_leaves_checkpoints_logs_config_and_the_averaged_pipeline_and_is_scored(capsys):
    train_run("run")
    kept = {f"{name}.ckpt" for name in ("previous", "last", "best-psnr", "best-lpips")}
    assert {file.name for file in Path("run/checkpoints").iterdir()} == kept
    assert Path("run/config.yaml").is_file()
    rows = metrics("run")
    assert [row["step"] for row in rows] == list("123456")
    for name, steps in {"val/psnr": "36", "val/psnr_prediction": "36", "train/loss": "123456", "lr": "123456"}.items():
        assert "".join(row["step"] for row in rows if name in row) == steps
    assert float(rows[3]["train/device/samples_per_sec"]) > 0 and rows[3]["train/samples"] == "8"
    logged = yaml.safe_load(Path("run/logs/version_0/hparams.yaml").read_text())
    assert logged["config"] == yaml.safe_load(Path("run/config.yaml").read_text())
    assert logged["config"]["model"]["init_args"]["optimizer"]["lr"] == 0.01 and "commit" in logged
    exported, averaged = load_pipeline("run/checkpoint", precision="fp32"), torch.load("run/checkpoints/last.ckpt")
    name = "unet.head.weight"
    assert torch.equal(exported.denoiser.state_dict()[name], averaged["state_dict"][f"denoiser.{name}"])
    assert not torch.equal(exported.denoiser.state_dict()[name], averaged["current_model_state"][f"denoiser.{name}"])
    ckpt = load_pipeline("run/checkpoints/last.ckpt", precision="fp32")
    assert ckpt.config.residual_scale == pytest.approx(exported.config.residual_scale, rel=1e-6)
    flags = ["--config", "run.yaml", "--trainer.default_root_dir", "run", "--data.test", "photos"]
    for command, split in (("validate", "val"), ("test", "test")):
        train.cli([command, *flags, "--ckpt_path", "run/checkpoints/last.ckpt"])
        assert f"{split}/psnr_prediction" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_staged_training_by_config(run_folder):
    predict = RUN.replace("PredictAndRefine", "Predict")
    lines = [line for line in predict.splitlines() if "denoiser:" not in line and "validation:" not in line]
    Path("stage1.yaml").write_text("\n".join(lines))
    train.cli(["fit", "--config", "stage1.yaml", "--trainer.default_root_dir", "stage1"])
    flags = ["--model.init_from", "stage1/checkpoint", "--model.predictor_training", "frozen"]
    train_run("stage2", *flags)
    first = load_file("stage1/checkpoint/predictor/diffusion_pytorch_model.safetensors")
    second = load_file("stage2/checkpoint/predictor/diffusion_pytorch_model.safetensors")
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.filterwarnings("ignore")
def test_the_perceptual_term_by_the_config():
    term = "{class_path: evaluation.perceptual.PerceptualLoss}"
    flags = ["--data.patch_size", "32", "--data.blur.init_args.camera", SHORT, "--trainer.val_check_interval", "2"]
    train_run("run", *flags, "--model.predictor_loss.perceptual", term, "--trainer.max_steps", "2")
    rows = metrics("run")
    assert [float(row["train/perceptual_loss"]) > 0 for row in rows if "train/loss" in row] == [True, True]
    checkpoint = torch.load("run/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["objective"]["predictor_loss"]["perceptual"] == "0.1 LPIPS (alex)"
    assert all(name.startswith(("predictor", "denoiser", "residual")) for name in checkpoint["state_dict"])
    # The file that a run leaves is the run again.
    assert train.main(["fit", "--config", "run/config.yaml", "--trainer.max_steps", "4"]) == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_run_below_the_interval_is_validated_at_its_end(run_folder, accumulated):
    flags = ["--trainer.val_check_interval", "1000", "--trainer.accumulate_grad_batches", str(accumulated)]
    run = train_run("run", "--trainer.max_steps", "3", *flags)
    assert run.trainer.global_step == 3 and run.trainer.val_check_interval == 3 * accumulated
    assert {file.name for file in Path("run/checkpoints").iterdir()} >= {"last.ckpt", "best-psnr.ckpt"}


def test_a_run_says_at_its_start_at_most_eight_lines_of_what_holds(run_folder):
    """With all that may be said: a val set that is trained on, a logger without a key."""
    logger = "{class_path: lightning.pytorch.loggers.WandbLogger, init_args: {project: p, name: n}}"
    flags = ["--trainer.max_steps", "1", "--trainer.default_root_dir", "run"]
    command = [sys.executable, ROOT / "train.py", "fit", "--config", "run.yaml", *flags, "--trainer.logger", logger]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = (done.stdout + done.stderr).partition("wrote run/checkpoint")[0].splitlines()
    said = [line for line in lines if line.strip()]
    assert len(said) <= 8, said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data.train", "empty"], "holds no image"),
        (["--trainer.max_steps", "7"], "multiple of trainer.val_check_interval"),
        (["--trainer.accumulate_grad_batches", "2"], "multiple of trainer.accumulate_grad_batches (2)"),
        (["--trainer.strategy", "fsdp"], "fsdp"),
        (["--trainer.devices", "[a]"], "the trainer cannot be made: "),
        (["--model.init_from", "nowhere"], "checkpoint nowhere"),
        (["--model.schedule.steps", "0"], "steps"),
        (["--model.objective.log_normal", "[0, 0]"], "objective.log_normal"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_bad_input_is_one_sentence(run_folder, capsys, flags, words):
    (run_folder / "empty").mkdir()
    assert train.main(["fit", "--config", "run.yaml", "--trainer.default_root_dir", "run", *flags]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train.py: error: ")]
    assert len(said) == 1 and words in said[0]
    assert not Path("run/checkpoints").exists()


def test_the_process_says_it_without_a_traceback():
    command = [sys.executable, ROOT / "train.py", "fit", "--config", "run.yaml", "--data.train", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("train.py: error: data.train: nowhere ")
