"""train.py as people call it: real runs of a few steps on small real files, and what it says of wrong flags."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import train
from deblur import progress
from deblur.data.files import images
from deblur.pipeline import load_pipeline
from deblur.training.run import DEFAULTS
from tests import processes
from tests.conftest import ROOT
from tests.tiny import RUN, metrics, train_run

pytestmark = [pytest.mark.commands, pytest.mark.usefixtures("run_folder"), pytest.mark.filterwarnings("ignore")]
SHORT = "[{class_path: deblur.data.camera.CameraShake, init_args: {length: [1.0, 2.0]}}]"  # leaves enough for LPIPS


def test_a_run_leaves_checkpoints_logs_config_and_the_averaged_pipeline_and_is_scored(capsys):
    train_run("run")
    kept = {f"{name}.ckpt" for name in ("previous", "last", "best-psnr", "best-lpips")}
    assert {file.name for file in Path("run/checkpoints").iterdir()} == kept
    assert Path("run/config.yaml").is_file()
    rows = metrics("run")
    assert [row["step"] for row in rows] == list("123456")
    for name, steps in {"val/psnr": "36", "val/psnr_prediction": "36", "train/loss": "123456", "lr": "123456"}.items():
        assert "".join(row["step"] for row in rows if name in row) == steps
    assert float(rows[3]["train/device/samples_per_sec"]) > 0
    assert rows[3]["train/samples"] == "8"
    logged = yaml.safe_load(Path("run/logs/version_0/hparams.yaml").read_text())
    assert logged["config"] == yaml.safe_load(Path("run/config.yaml").read_text())
    assert logged["config"]["model"]["init_args"]["optimizer"]["lr"] == 0.01
    assert "commit" in logged
    exported, averaged = load_pipeline("run/checkpoint", precision="fp32"), torch.load("run/checkpoints/last.ckpt")
    name = "unet.head.weight"
    assert torch.equal(exported.denoiser.state_dict()[name], averaged["state_dict"][f"denoiser.{name}"])
    assert not torch.equal(exported.denoiser.state_dict()[name], averaged["current_model_state"][f"denoiser.{name}"])
    ckpt = load_pipeline("run/checkpoints/last.ckpt", precision="fp32")
    assert ckpt.config.residual_scale == pytest.approx(exported.config.residual_scale, rel=1e-6)
    flags = ["--config", "run.yaml", "--trainer.default_root_dir", "run", "--data.test", "photos:val"]
    config = Path("run/config.yaml").read_text()
    for command, split in (("validate", "val"), ("test", "test")):
        train.cli([command, *flags, "--ckpt_path", "run/checkpoints/last.ckpt"])
        assert f"{split}/psnr_prediction" in capsys.readouterr().out
    assert Path("run/config.yaml").read_text() == config


def test_staged_training_by_config(run_folder):
    config = yaml.safe_load(RUN)
    config["model"]["class_path"] = "deblur.training.module.Predict"
    del config["model"]["init_args"]["denoiser"]
    del config["model"]["init_args"]["validation"]
    Path("stage1.yaml").write_text(yaml.safe_dump(config))
    train.cli(["fit", "--config", "stage1.yaml", "--trainer.default_root_dir", "stage1"])
    train_run("stage2", "--model.init_from", "stage1/checkpoint", "--model.predictor_training", "frozen")
    first = load_file("stage1/checkpoint/predictor/diffusion_pytorch_model.safetensors")
    second = load_file("stage2/checkpoint/predictor/diffusion_pytorch_model.safetensors")
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_the_image_loss_by_the_config():
    term = "{class_path: deblur.evaluation.perceptual.PerceptualLoss}"
    flags = ["--data.patch_size", "32", "--data.blur.init_args.camera", SHORT, "--trainer.val_check_interval", "2"]
    train_run("run", *flags, "--model.predictor_loss.image_loss", term, "--trainer.max_steps", "2")
    rows = metrics("run")
    assert [float(row["train/image_loss"]) > 0 for row in rows if "train/loss" in row] == [True, True]
    checkpoint = torch.load("run/checkpoints/last.ckpt", weights_only=True)
    assert all(name.startswith(("predictor", "denoiser", "residual")) for name in checkpoint["state_dict"])
    # The file that a run leaves is the run again.
    assert train.main(["fit", "--config", "run/config.yaml", "--trainer.max_steps", "4"]) == 0


@pytest.mark.parametrize("way", ["--data.train pairs.csv", "--data.train=pairs.csv", "--config data.yaml"])
def test_a_manifest_is_data_and_no_config_of_data(run_folder, way):
    pairs = ["blur/a.png", "sharp/a.png"]
    for file in pairs:
        images.write(run_folder / file, torch.rand(3, 24, 24))
    Path("pairs.csv").write_text("blurry,sharp\n" + ",".join(pairs))
    Path("data.yaml").write_text("data: {train: pairs.csv}")
    run = train_run("run", "--trainer.max_steps", "1", "--data.blur", "null", "--data.val", "null", *way.split())
    assert [pair.name for pair in run.datamodule.train_set.parts[0].items] == ["blur/a"]


@pytest.mark.parametrize(("interval", "accumulated"), [("1000", 1), ("1000", 2), ("null", 1)])
def test_a_run_below_the_interval_is_validated_at_its_end(run_folder, interval, accumulated):
    flags = ["--trainer.val_check_interval", interval, "--trainer.accumulate_grad_batches", str(accumulated)]
    run = train_run("run", "--trainer.max_steps", "3", *flags)
    assert run.trainer.global_step == 3
    assert run.trainer.val_check_interval == 3 * accumulated
    assert {file.name for file in Path("run/checkpoints").iterdir()} >= {"last.ckpt", "best-psnr.ckpt"}


@pytest.mark.parametrize("seconds", [0, 1000])
def test_without_a_terminal_a_run_prints_a_line_now_and_then(monkeypatch, capsys, seconds):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", seconds)
    flags = ["--trainer.val_check_interval", "2", "--trainer.log_every_n_steps", "1", "--trainer.enable_progress_bar"]
    for steps, counted in ((2, [1, 2]), (4, [3, 4])):  # the second run resumes the first
        capsys.readouterr()
        train_run("run", "--trainer.max_steps", str(steps), *flags, "true")
        said = capsys.readouterr().err
        lines = re.findall(rf"^training: .* (\d)/{steps} .*loss", said, re.M)
        assert sorted({int(line) for line in lines}) == counted * (not seconds)  # closing repeats the last
        assert "\r" not in said
        assert "v_num" not in said


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


def test_the_last_step_is_validated_and_every_step_has_one_row(run_folder):
    train_run("run", "--trainer.max_steps", "5", "--data.crops_per_image", "4")  # 2 divide the batch
    train_run("run", "--trainer.max_steps", "7", "--model.init_from", "nowhere")  # without effect on resume
    for version, steps, validated in ((0, [1, 2, 3, 4, 5], [3, 5]), (1, [6, 7], [6, 7])):
        lines = Path(f"run/logs/version_{version}/metrics.csv").read_text().splitlines()
        rows = metrics("run", version)
        assert len(lines) == 1 + len(rows)
        assert [int(row["step"]) for row in rows] == steps
        assert [int(row["step"]) for row in rows if "val/psnr" in row] == validated
        assert all({"lr", "train/loss", "grad_norm/predictor"} <= row.keys() for row in rows)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data.train", "empty"], "holds no image"),
        (["--trainer.max_steps", "0"], "trainer.max_steps must be 1 or more"),
        (["--trainer.accumulate_grad_batches", "2"], "multiple of trainer.accumulate_grad_batches (2)"),
        (["--trainer.strategy", "fsdp"], "fsdp"),
        (["--trainer.strategy", "deepspeed"], "deepspeed"),
        (["--trainer.devices", "[a]"], "the trainer cannot be made: "),
        (["--model.init_from", "nowhere"], "checkpoint nowhere"),
        (["--model.schedule.steps", "0"], "steps"),
        (["--model.objective.log_normal", "[0, 0]"], "objective.log_normal"),
    ],
)
def test_bad_input_is_one_sentence(run_folder, capsys, flags, words):
    (run_folder / "empty").mkdir()
    assert words in said(capsys, "fit", "--config", "run.yaml", "--trainer.default_root_dir", "run", *flags)
    assert not Path("run/checkpoints").exists()


def test_the_process_says_it_without_a_traceback():
    done = processes.run("train.py", ["fit", "--config", "run.yaml", "--data.train", "nowhere"])
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("train.py: error: data.train: nowhere ")


def said(capsys, *args):
    assert train.main(list(args)) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train.py: ")]
    return re.fullmatch(r"train\.py: error: (.*)", line)[1]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--trainer.max_step", "3"], "--trainer.max_step is unknown: did you mean --trainer.max_steps?"),
        (["--model.init_args.compile=1"], "model.compile is unknown: did you mean compiled?"),
        (["--dat.train", "a"], "--dat.train is unknown: did you mean --data.train?"),
        (["--trainer.max_steps"], "argument --trainer.max_steps: expected one argument"),
        (["photos"], "photos belongs to no flag: a config follows --config"),
        (["other.yaml"], "other.yaml belongs to no flag: a config follows --config"),
        (["--config", "other.yaml"], "--config other.yaml cannot be read: No such file or directory"),
        (["--trainer.default_root_dir", "run.yaml/x"], "run.yaml/x: Not a directory"),
        (["--config", "list.yaml"], "--config list.yaml holds no keys with values"),
        (["--config", "torn.yaml"], "--config torn.yaml is not YAML"),
        (["--config", "typo.yaml"], "typo.yaml: --trainer.max_step is unknown: did you mean --trainer.max_steps?"),
        (["--config", "old.yaml"], "old.yaml: model.loss is unknown: "),
        (["--config", "deep.yaml"], "model.predictor_training is one of joint, detached, frozen, not join"),
        (["--data.train", "nowhere"], "data.train: nowhere does not exist"),
        (["--data.train", "[photos, nowhere]"], "data.train: nowhere does not exist"),
        (["--ckpt_path", "no.ckpt"], "ckpt_path: no.ckpt does not exist"),
        (["--model.optimizer.lrr", "1"], "model.optimizer.lrr is unknown"),
        (["--model.objective.loss", "l3"], "model.objective.loss is one of l1, l2, not l3"),
        (["--model.denoiser.init_args.chanels", "8"], "model.denoiser.chanels is unknown: did you mean channels?"),
        (["--model.denoiser.channels", "x"], "model.denoiser.channels is a whole number, not x"),
        (["--model.validation.step", "3"], "model.validation.step is unknown"),
        (["--model.validation.sampler", "dimm"], "model.validation.sampler is one of ddpm, ddim, dpmsolver++, unipc,"),
        (
            ["--model.predictor", "UNett"],
            "model.predictor: not a class with its module, as deblur.models.networks.unet.Denoiser: UNett",
        ),
        (
            ["--model.predictor", "deblur.data.layouts.Source"],
            "model.predictor: Import path deblur.data.layouts.Source does not correspond to a subclass of Module",
        ),
        (
            ["--model.predictor", "torch.nn.Linear"],
            "model.predictor: the following arguments are required: in_features, out_features",
        ),
        (["--model.optimizer.betas", "[1]"], "model.optimizer.betas is a tuple with 2 elements, not [1]"),
        (["--model.residual.scale", "x"], "model.residual.scale is a number, not x"),
        (["--auto_resume", "maybe"], "auto_resume is true or false, not maybe"),
    ],
)
def test_faults_found_before_anything_is_built(run_folder, capsys, flags, sentence):
    Path("list.yaml").write_text("- a")
    Path("torn.yaml").write_text("a: [")
    Path("typo.yaml").write_text("trainer: {max_step: 3}")
    Path("old.yaml").write_text("model: {class_path: deblur.training.module.Predict, init_args: {loss: l2, lr: 0.1}}")
    Path("deep.yaml").write_text("model: {init_args: {predictor_training: join}}")
    assert said(capsys, "fit", "--config", "run.yaml", *flags).startswith(sentence)
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", ["validate", "test"])
def test_only_a_trained_network_is_scored(run_folder, capsys, command):
    flags = ["--config", "run.yaml", "--data.test", "photos:val"]
    assert said(capsys, command, *flags).startswith(f"there is no network to {command}: give --ckpt_path")
    assert said(capsys, command, *flags, "--ckpt_path", ".").endswith("is a folder: give a .ckpt file")


def test_a_run_without_a_config_is_told_of_one(run_folder, capsys):
    wanted = "model.predictor is missing: give a config, as python train.py fit --config configs/demo.yaml"
    assert said(capsys, "fit", "--model.optimizer.lr", "1e-3") == wanted


def test_commands(capsys):
    assert said(capsys).startswith("no command is given: it is one of fit, validate, test")
    assert said(capsys, "fitt").startswith("fitt is no command: it is one of fit, validate, test")
    assert train.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {command} " in text for command in train.COMMANDS)
    assert "train.py fit --help" in text


def test_help_describes_all_flags(capsys):
    assert train.main(["fit", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: python train.py fit --config FILE")
    assert "known subclasses" not in text
    for flag, default in DEFAULTS.items():
        about = text.partition(f" --trainer.{flag} ")[2].partition(" --trainer.")[0]
        assert f"default: {'null' if default is None else default})" in about
    for flag, about in {
        "model.predictor_training": "frozen",
        "model.optimizer.lr": "learning rate",
        "guard.patience": "default: 10)",
        "data.mix_batches": "type: int, default: 1)",
        "auto_resume": "fit resumes from the newest checkpoint",
    }.items():
        assert about in text.partition(f" --{flag} ")[2].partition(" --")[0]


def test_print_config_prints_what_a_run_is_made_of(run_folder, capsys):
    assert train.main(["fit", "--config", "run.yaml", "--model.optimizer.lr", "0.125", "--print_config"]) == 0
    assert "lr: 0.125" in capsys.readouterr().out
    assert not (run_folder / "runs").exists()
