"""What train.py says of flags, configs and paths that are wrong, before anything is built, and its help."""

from pathlib import Path

import pytest

import train
from training.command import DEFAULTS

pytestmark = [pytest.mark.usefixtures("run_folder"), pytest.mark.filterwarnings("ignore")]


def said(capsys, *args):
    assert train.main(list(args)) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train.py: ")]
    return line.removeprefix("train.py: error: ")


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
            "model.predictor: not a class with its module, as models.unet.Denoiser: UNett",
        ),
        (
            ["--model.predictor", "data.layouts.Source"],
            "model.predictor: Import path data.layouts.Source does not correspond to a subclass of Module",
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
    Path("old.yaml").write_text("model: {class_path: models.lightning_module.Predict, init_args: {loss: l2, lr: 0.1}}")
    Path("deep.yaml").write_text("model: {init_args: {predictor_training: join}}")
    assert said(capsys, "fit", "--config", "run.yaml", *flags).startswith(sentence)
    assert not Path("runs").exists()


def test_a_run_without_a_config_is_told_of_one(run_folder, capsys):
    wanted = "model.predictor is missing: give a config, as python train.py fit --config configs/demo.yaml"
    assert said(capsys, "fit", "--model.optimizer.lr", "1e-3") == wanted


def test_commands(capsys):
    assert said(capsys).startswith("no command is given: it is one of fit, validate, test")
    assert said(capsys, "fitt").startswith("fitt is no command: it is one of fit, validate, test")
    assert train.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {command} " in text for command in train.COMMANDS) and "train.py fit --help" in text


def test_help_describes_all_flags(capsys):
    assert train.main(["fit", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: python train.py fit --config FILE") and "known subclasses" not in text
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
