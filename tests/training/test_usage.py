"""What train.py says of flags and paths before it has loaded a library, and of those that its parser refuses."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from lightning.pytorch import Trainer

import train
from data.datamodule import DeblurDataModule
from models.lightning_module import Predict, PredictAndRefine
from tests.test_train import ROOT
from training import usage
from training.averages import Averages
from training.gates import Gates
from training.guards import Guard
from training.scale import Scale
from training.scores import Scores

pytestmark = pytest.mark.usefixtures("run_folder")
GROUPS = {
    "data": [DeblurDataModule],
    "model": [Predict, PredictAndRefine],
    "ema": [Averages],
    "scores": [Scores],
    "guard": [Guard],
    "scale": [Scale],
    "gates": [Gates],
    "trainer": [Trainer],
}


def said(capsys, *args):
    assert train.main(list(args)) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    return error[0].removeprefix("train.py: error: ")


def test_what_is_read_from_the_sources_is_what_the_classes_take():
    assert list(usage.CLASSES) == list(GROUPS)
    for group, classes in GROUPS.items():
        taken = [one for kind in classes for one in inspect.signature(kind.__init__).parameters.values()]
        names = {one.name for one in taken if one.kind != one.VAR_KEYWORD} - {"self"}
        assert set(usage.arguments(group)) == names
    assert usage.arguments("data")["on_error"].choices == ["stop", "skip"]
    assert usage.arguments("guard")["patience"].default == "10" and usage.arguments("guard")["patience"].text


@pytest.mark.filterwarnings("ignore")
def test_the_parser_has_these_flags_and_no_others():
    parser = train.cli(["--config", "run.yaml"], run=False).parser
    names = {action.dest.partition(".")[0] for action in parser._actions}
    assert names - {"help", "config", "print_shtab"} == {*usage.CLASSES, *usage.GENERAL}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--trainer.max_step", "3"], "--trainer.max_step is unknown: did you mean trainer.max_steps?"),
        (["--model.init_args.lrr=1"], "--model.init_args.lrr is unknown: did you mean model.lr?"),
        (["--dat.train", "a"], "--dat.train is unknown: did you mean data?"),
        (["--data.on_error", "stopp"], "--data.on_error is one of stop, skip, not stopp: did you mean stop?"),
        (["--trainer.max_steps"], "--trainer.max_steps needs a value"),
        (["photos"], "photos belongs to no flag: flags begin with --"),
        (["other.yaml"], "other.yaml belongs to no flag: did you mean --config other.yaml?"),
        (["--config", "other.yaml"], "--config other.yaml cannot be read: No such file or directory"),
        (["--config", "list.yaml"], "--config list.yaml holds no config"),
        (["--config", "torn.yaml"], "--config torn.yaml is not YAML"),
        (["--config", "typo.yaml"], "typo.yaml: trainer.max_step is unknown: did you mean trainer.max_steps?"),
        (["--config", "deep.yaml"], "deep.yaml: model.predictor_training is one of joint, detached, frozen, not join"),
        (["--data.train", "nowhere"], "data.train: nowhere does not exist"),
        (["--data.val", "[photos, nowhere]"], "data.val: nowhere does not exist"),
        (["--ckpt_path", "no.ckpt"], "ckpt_path: no.ckpt does not exist"),
    ],
)
def test_faults_found_before_a_library_is_loaded(run_folder, capsys, flags, sentence):
    Path("list.yaml").write_text("- a")
    Path("torn.yaml").write_text("a: [")
    Path("typo.yaml").write_text("trainer: {max_step: 3}")
    Path("deep.yaml").write_text("model: {init_args: {predictor_training: join}}")
    assert said(capsys, "fit", "--config", "run.yaml", *flags).startswith(sentence)
    with pytest.raises(usage.UsageError):
        usage.check("fit", ["--config", "run.yaml", *flags])


def test_a_run_without_a_config_is_told_of_one(run_folder, capsys):
    wanted = "model.predictor is missing: give a config, as python train.py fit --config configs/demo.yaml"
    assert said(capsys, "fit", "--model.lr", "1e-3") == wanted
    usage.check("fit", ["--model.predictor.class_path", "models.unet.UNetPredictor"])
    usage.check("fit", ["--model.init_args.predictor=models.unet.UNetPredictor"])


def test_commands(capsys):
    assert said(capsys).startswith("no command is given: it is one of fit, validate, test, replay")
    assert said(capsys, "fitt").startswith("fitt is no command: it is one of fit, validate, test, replay")
    assert said(capsys, "replay").startswith("replay wants a file first")
    for args in (["--help"], ["fit", "--help"], ["replay", "-h"]):
        assert train.main(args) == 0
        text = capsys.readouterr().out
        flags = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
        assert flags[:10] == [f"--{name.split()[0]}" for name in usage.COMMON]
        assert all(f"\n  {command} " in text for command in ("fit", "validate", "test", "replay"))
        assert ("--trainer.precision" in flags) == (args != ["--help"])


def test_neither_help_nor_a_wrong_flag_loads_a_library(run_folder):
    code = "import sys, train; codes = [train.main(['fit', '--help']), train.main(['fit', '--trainer.max_step', '3'])];"
    code += "print(codes, {'torch', 'lightning', 'jsonargparse', 'numpy'} & set(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stderr.splitlines()[-1] == "[0, 2] set()"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--model.objective.loss", "l3"], "model.objective.loss is one of l1, l2, not l3"),
        (["--model.denoiser.init_args.chanels", "8"], "model.denoiser.chanels is unknown: did you mean channels?"),
        (["--model.denoiser.channels", "x"], "model.denoiser.channels is a whole number, not x"),
        (["--model.validation.step", "3"], "model.validation.step is unknown"),
        (["--model.validation.sampler", "dimm"], "model.validation.sampler is one of ddpm, ddim, dpmsolver++, unipc,"),
        (["--model.predictor", "UNett"], "model.predictor: there is no class UNett;"),
        (["--model.predictor", "data.layouts.Source"], "model.predictor: data.layouts.Source is no Module"),
        (["--model.predictor", "torch.nn.Linear"], "model.predictor: torch.nn.Linear needs in_features, out_features"),
        (["--model.betas", "[1]"], "model.betas: Expected a tuple with 2 elements. Got value: [1]"),
        (["--model.residual_scale", "x"], "model.residual_scale is a number, not x"),
        (["--auto_resume", "maybe"], "auto_resume is true or false, not maybe"),
        (["--trainer.devices", "[a]"], "the trainer cannot be made: "),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_faults_found_by_the_parser(run_folder, capsys, flags, sentence):
    assert train.main(["fit", "--config", "run.yaml", *flags]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train.py: ")]
    assert line.removeprefix("train.py: error: ").startswith(sentence)
