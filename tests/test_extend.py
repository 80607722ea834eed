"""The parts of docs/extend.md, which lie outside the repository: each is written as the page has it, and used."""

import json
import re
import shlex
import sys

import pytest
import torch
from torch import nn

import evaluate
import sample
import train
from deblur.data.files import images
from deblur.data.layouts import DatasetError, find_pairs
from deblur.hub import CheckpointError
from deblur.models.networks.base import Predictor, register_to_config
from deblur.pipeline import load_pipeline
from deblur.tools import doctor
from tests.conftest import ROOT
from tests.tiny import tiny_pipeline

PAGE = (ROOT / "docs" / "extend.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))
MODEL = ["--model.predictor", "mypredictor.MyPredictor", "--model.predictor.width", "4"]
MODEL += ["--model.denoiser", "mydenoiser.MyDenoiser"]
SHORT = ["--trainer.max_steps", "2", "--trainer.val_check_interval", "2", "--trainer.default_root_dir", "run"]
NAMED = "mypredictor.MyPredictor,mydenoiser.MyDenoiser"

pytestmark = [pytest.mark.commands, pytest.mark.usefixtures("run_folder"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def outside(tmp_path_factory, monkeypatch):
    """A folder on the path of modules, outside the repository, with the files of the page."""
    folder = tmp_path_factory.mktemp("outside")
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in FILES:
        sys.modules.pop(name, None)


def fit(*flags):
    return train.main(["fit", "--config", "run.yaml", *SHORT, *flags])


def test_own_networks_are_trained_stored_and_used(outside, run_folder, capsys):
    assert fit(*MODEL) == 0
    (run_folder / "pairs").mkdir()
    for side in ("blur", "sharp"):
        images.write(run_folder / "pairs" / side / "a.png", torch.rand(3, 24, 24))
    for checkpoint in ("run/checkpoint", "run/checkpoints/last.ckpt"):
        restored = [str(run_folder / "photos"), "--checkpoint", checkpoint, "--output", "out", "--steps", "2"]
        capsys.readouterr()
        assert sample.main(restored) == 2
        said = capsys.readouterr().err
        assert "unknown class 'MyPredictor'" in said
        assert "--classes MODULE.MyPredictor" in said
        assert sample.main([*restored, "--classes", NAMED, "--overwrite"]) == 0
    (run_folder / "grid.yaml").write_text("settings: [{steps: 2}]\n")
    flags = ["--checkpoint", "run/checkpoint", "--classes", NAMED, "--grid", "grid.yaml"]
    evaluate.command(["--data", "pairs", "--output", "scores", *flags, "--metrics", "psnr,mymetric.contrast"])
    recipe = json.loads((run_folder / "scores" / "results.json").read_text())["metrics"]["mymetric.contrast"]
    assert "Absolute difference of the standard deviations" in json.dumps(recipe)
    assert "(code " in json.dumps(recipe)
    assert load_pipeline("run/checkpoint", classes=NAMED).predictor.config.width == 4
    assert fit(*MODEL, "--model.init_from", "run/checkpoint", "--auto_resume", "false") == 0


@pytest.mark.parametrize("place", ["objective", "predictor_loss"])
def test_a_run_with_an_own_loss_is_resumed_and_another_one_is_refused(outside, capsys, caplog, place):
    def train_to(steps, weight):
        loss = f"--model.{place}.image_loss"
        return fit(loss, "myloss.Edges", f"{loss}.weight", weight, "--trainer.max_steps", steps)

    assert train_to("2", "0.5") == 0
    for name in FILES:
        sys.modules.pop(name, None)  # as in another process
    with caplog.at_level("INFO"):
        assert train_to("3", "0.5") == 0
    assert "resumed from run/checkpoints/last.ckpt, step 2" in caplog.text
    assert train_to("4", "0.25") == 2
    assert f"model.{place}.image_loss.weight is 0.25 here and 0.5 there" in capsys.readouterr().err


def plain(image, sharp):
    return (image - sharp).abs().mean()


def test_a_run_with_a_function_as_its_loss_is_resumed(run_folder, capsys):
    loss = ["--model.objective.image_loss", "tests.test_extend.plain"]
    assert fit(*loss) == 0
    assert fit(*loss, "--trainer.max_steps", "3") == 0
    assert fit("--trainer.max_steps", "4") == 2
    assert "model.objective.image_loss is None here and tests.test_extend.plain there" in capsys.readouterr().err


def test_an_own_sampler_restores(outside):
    from mysampler import euler  # pyright: ignore[reportMissingImports]

    pipeline, blurry = tiny_pipeline(), torch.rand(2, 3, 32, 32)
    few, many = (euler(pipeline, blurry, steps, torch.Generator().manual_seed(0)) for steps in (2, 5))
    assert few.shape == blurry.shape
    assert few.min() >= 0
    assert few.max() <= 1
    assert not torch.equal(few, many)


def test_an_own_schedule_is_sampled_with_and_trained_on_and_resumed(outside, run_folder, caplog):
    schedule = ["--model.schedule", "{name: myschedules.karras, steps: 30}"]
    assert fit(*schedule) == 0
    with caplog.at_level("INFO"):
        assert fit(*schedule, "--trainer.max_steps", "3") == 0
    assert "resumed from run/checkpoints/last.ckpt, step 2" in caplog.text
    assert fit("--trainer.max_steps", "4") == 2
    for checkpoint in ("run/checkpoint", "run/checkpoints/last.ckpt"):
        levels = load_pipeline(checkpoint).levels
        assert len(levels) == 30
        assert levels[[0, -1]].tolist() == pytest.approx([1 / 145, 1 / 1.0025])
    command = [str(run_folder / "photos"), "--checkpoint", "run/checkpoint", "--output", "out", "--steps", "3"]
    assert sample.main([*command, "--schedule", "myschedules.karras"]) == 0
    assert "myschedules.karras" in (run_folder / "out" / "manifest.json").read_text()
    assert sample.main([*command, "--schedule", "myschedules.nothing", "--overwrite"]) == 2


def test_an_own_layout_is_trained_on_resumed_and_evaluated(outside, run_folder, caplog):
    for split in ("train", "val", "test"):
        for name in ("a", "b"):
            for side in ("blurry", "sharp"):
                images.write(run_folder / "BURSTS" / split / f"{name}_{side}.png", torch.rand(3, 24, 24))
    (run_folder / "layout.yaml").write_text(re.search(r"```yaml\n(data:.*?)```", PAGE, re.DOTALL)[1] + "  blur: null\n")
    run = train.cli(["fit", "--config", "run.yaml", "--config", "layout.yaml", *SHORT])
    assert [len(split) for split in (run.datamodule.train_set.parts[0], run.datamodule.val_set)] == [2, 2]
    with caplog.at_level("INFO"):
        assert fit("--config", "layout.yaml", "--trainer.max_steps", "3") == 0
    assert "resumed from run/checkpoints/last.ckpt, step 2" in caplog.text
    assert (run_folder / "run" / "checkpoint").is_dir()
    [command] = re.findall(r"python evaluate.py (--data '{.*)", PAGE)
    (run_folder / "grid.yaml").write_text("settings: [{steps: 1}]\n")
    evaluate.command(
        [*shlex.split(command), "--checkpoint", "run/checkpoint", "--grid", "grid.yaml", "--controls", "no"]
    )
    assert json.loads((run_folder / "scores" / "results.json").read_text())["data"]["layout"] == "bursts"


def test_an_own_layout_is_examined_and_found_by_every_command(outside, run_folder, capsys):
    for split in ("train", "test"):
        for side in ("blurry", "sharp"):
            images.write(run_folder / "BURSTS" / split / f"a_{side}.png", torch.rand(3, 24, 24))
    layout = re.search(r"tools.doctor '(.*?)'", PAGE)[1]
    assert f"evaluate.py --data '{layout}'" in PAGE
    doctor.main(layout, num_workers=0)
    assert "layout bursts, variant blur: 1 pairs in train, 0 pairs in val, 1 pairs in test" in capsys.readouterr().out
    assert [pair.name for pair in find_pairs(layout)] == ["a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{class_path: nowhere.Bursts}", "No module named 'nowhere'"),
        ("{class_path: mylayout.Bursts, init_args: {rot: BURSTS}}", "unexpected keyword argument 'rot'"),
        ("{class_path: collections.Counter}", "Counter is not derived from deblur.data.layouts.Source"),
        ("{class_path: [}", "names no layout: while parsing"),
    ],
)
def test_what_is_no_layout_is_said(outside, text, words):
    with pytest.raises(DatasetError) as error:
        find_pairs(text)
    assert words in str(error.value)


class Alone(nn.Module):
    """Not a predictor."""


class Forgetful(Predictor):
    def __init__(self, width: int = 3):
        super().__init__()


class Shrinks(Predictor):
    @register_to_config
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 3, 3, stride=2, padding=1)

    def forward(self, blurry):
        return self.body(blurry)


class Refuses(Shrinks):
    def forward(self, blurry):
        raise RuntimeError("no such image")


@pytest.mark.parametrize(
    ("part", "name", "sentence"),
    [
        ("predictor", "Alone", "Alone is no deblur.models.networks.base.Predictor, which a predictor is derived from"),
        ("predictor", "Forgetful", "Forgetful.__init__ lacks @register_to_config"),
        ("predictor", "Shrinks", "Shrinks makes (1, 3, 32, 32) of an image (1, 3, 64, 64): a predictor keeps the size"),
        ("predictor", "Refuses", "Refuses cannot be called as a predictor is: no such image"),
        ("denoiser", "Shrinks", "Shrinks lacks the attribute prediction_type"),
        ("denoiser", "Alone", "Alone is not derived from deblur.models.networks.base.ModelMixin and ConfigMixin"),
    ],
)
def test_what_a_class_lacks_is_said_before_training(run_folder, capsys, part, name, sentence):
    assert fit(f"--model.{part}", f"tests.test_extend.{name}") == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert not (run_folder / "run" / "checkpoints").exists()


@pytest.mark.parametrize("name", ["nowhere.Net", "json.JSONDecoder", "Net"])
def test_a_class_that_is_no_network_is_refused(name):
    with pytest.raises(CheckpointError, match=f"class {name}"):
        load_pipeline("lite", classes=name)


def test_the_line_of_the_page_that_loads_own_networks_loads_them(outside, run_folder):
    from mypredictor import MyPredictor  # pyright: ignore[reportMissingImports]

    tiny_pipeline(MyPredictor(width=4)).save_pretrained(run_folder / "own")
    line = re.search(r"`(load_pipeline\(folder, classes=[^`]*)`", PAGE)[1]
    pipeline = eval(line, {"load_pipeline": load_pipeline, "folder": "own", "MyPredictor": MyPredictor})
    assert type(pipeline.predictor) is MyPredictor
