"""Every config file builds the run it describes, through the command line that people use."""

import re
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

import train
from deblur.data.camera import SixDegrees
from deblur.data.files import images
from deblur.hub import shipped
from deblur.pipeline import load_pipeline
from deblur.training.module import PredictAndRefine
from deblur.training.run import Run
from tests.conftest import ROOT

CONFIGS = sorted(ROOT.glob("configs/*.yaml"))
RECIPES = sorted(ROOT.glob("pretrained/*/recipe.yaml"))
BLURS = sorted(ROOT.glob("configs/blur/*.yaml"))
pytestmark = [pytest.mark.commands, pytest.mark.usefixtures("no_network"), pytest.mark.filterwarnings("ignore")]


def build(config, folder, *flags):
    quiet = ["--trainer.logger", "false", "--trainer.accelerator", "cpu"]
    return Run(None, ["--config", str(config), "--trainer.default_root_dir", str(folder), *quiet, *flags], ExitStack())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_builds_networks_of_the_size_that_the_readme_says(config, tmp_path):
    built = build(config, tmp_path)
    assert isinstance(built.model, PredictAndRefine)
    [row] = [row for row in (ROOT / "README.md").read_text().splitlines() if row.startswith(f"| `{config.name}` ")]
    networks = built.model.predictor, built.model.denoiser
    millions = [sum(weight.numel() for weight in network.parameters()) / 1e6 for network in networks]
    for size, told in zip(millions, re.findall(r"([\d.]+) M\b", row), strict=True):
        assert float(told) == round(size, len(told.partition(".")[2]))
    assert built.trainer.max_steps > 0
    assert built.trainer.default_root_dir == str(tmp_path)
    assert {"Averages", "Speed", "Scores"} <= {type(c).__name__ for c in built.trainer.callbacks}


def test_no_config_chooses_a_precision_that_a_processor_may_have_to_emulate():
    for file in [*ROOT.glob("configs/**/*.yaml"), *ROOT.glob("pretrained/*/*.yaml")]:
        config = yaml.safe_load(file.read_text())
        assert "precision" not in config.get("trainer", {}), file


def test_no_config_sends_images_or_scores_to_others():
    for file in [*ROOT.glob("configs/**/*.yaml"), *ROOT.glob("pretrained/*/*.yaml")]:
        assert "logger" not in yaml.safe_load(file.read_text()).get("trainer", {}), file


FURTHER = {
    "configs/demo": "u2net",
    "configs/finetune": "lite",
    "configs/finetune pretrained/text/finetune": "text",
    "configs/finetune pretrained/u2net/finetune": "u2net",
}


@pytest.mark.parametrize(("configs", "name"), FURTHER.items())
def test_a_checkpoint_is_trained_further_on_the_blurry_images_of_pairs(configs, name, tmp_path):
    """Were they ignored, as where a config blurs the sharp ones, black ones would leave the same weights; were they
    blurred once more, a run without the config's blur would leave others."""
    sharp, weights = torch.rand(3, 48, 48), {}
    flags = ["--trainer.max_steps=1", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    flags += ["--trainer.logger=false", "--data.patch_size=32", "--data.batch_size=2", "--data.num_workers=0"]
    flags += ["--data.val=null", "--model.optimizer.warmup_steps=1", "--trainer.precision=32-true", "--ema.decay=0"]
    blurred, black = sharp.roll(2, -1), torch.zeros_like(sharp)
    alone = [("alone", blurred, "--data.blur=null")] if configs == "configs/demo" else []
    for kind, blurry, *more in (("blurred", blurred), ("black", black), *alone):
        images.write(tmp_path / kind / "sharp" / "a.png", sharp)
        images.write(tmp_path / kind / "blur" / "a.png", blurry)
        given = [f"--data.train={tmp_path / kind}", f"--trainer.default_root_dir={tmp_path / 'runs' / kind}"]
        files = [f"--config={ROOT / config}.yaml" for config in configs.split()]
        assert train.main(["fit", *files, *flags, *given, *more]) == 0
        trained = load_pipeline(str(tmp_path / "runs" / kind / "checkpoint"), precision="fp32")
        weights[kind] = trained.predictor.state_dict()
    start = load_pipeline(name, precision="fp32").predictor.state_dict()
    for one in weights.values():
        assert one.keys() == start.keys()
        assert any(not torch.equal(one[key], start[key]) for key in start)
        assert all((one[key] - start[key]).abs().max() < 1e-3 for key in start)  # a step of 1e-4 from its weights
    assert any(not torch.equal(weights["blurred"][key], weights["black"][key]) for key in start)
    if "alone" in weights:
        assert all(torch.equal(weights["blurred"][key], weights["alone"][key]) for key in start)


def test_the_configs_are_few():
    assert len([file for file in (ROOT / "configs").rglob("*") if file.is_file()]) <= 18
    assert [recipe.parent.name for recipe in RECIPES] == sorted(shipped())
    assert all(recipe.with_name("RECIPE.md").is_file() for recipe in RECIPES)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_a_recipe_trains_the_networks_of_its_checkpoint(recipe, tmp_path):
    checkpoint = load_pipeline(recipe.parent.name, precision="fp32")
    model = build(recipe, tmp_path, "--model.init_from", "null").model
    assert model.predictor_training == "frozen"
    model.predictor.load_state_dict(checkpoint.predictor.state_dict())
    model.denoiser.load_state_dict(checkpoint.denoiser.state_dict())


@pytest.mark.parametrize("blur", BLURS, ids=lambda path: path.stem)
def test_a_kind_of_blur_is_taken_by_any_config(blur, tmp_path):
    data = build(CONFIGS[0].with_name("gopro_lite.yaml"), tmp_path, "--config", str(blur)).datamodule
    assert len(data.blur.camera) == len(data.blur.weights)


def test_a_config_over_another_changes_its_own_keys_of_a_group_alone(tmp_path):
    first = build(CONFIGS[0].with_name("text.yaml"), tmp_path).model
    over = tmp_path / "over.yaml"
    optimizer = {"lr": 7e-4, "decay_steps": 4500}
    over.write_text(yaml.safe_dump({"model": {"init_args": {"optimizer": optimizer}}}))
    longer = build(CONFIGS[0].with_name("text.yaml"), tmp_path, "--config", str(over)).model
    assert longer.optimizer == replace(first.optimizer, **optimizer)
    assert (longer.objective, longer.predictor_loss) == (first.objective, first.predictor_loss)


def test_the_paper_s_own_objective_by_flags(tmp_path):
    flags = ["--model.denoiser.init_args.prediction_type", "epsilon", "--model.residual.scale", "1.0"]
    flags += ["--model.predictor_loss.weight", "0"]
    model = build(CONFIGS[0].with_name("gopro.yaml"), tmp_path, *flags).model
    assert model.denoiser.prediction_type == "epsilon"
    assert model.pipeline().config.residual_scale == 1.0
    assert model.predictor_loss.weight == 0
    assert model.predictor_training == "joint"


def test_the_data_page_s_examples_build(tmp_path):
    examples = [part.partition("```")[0] for part in (ROOT / "docs" / "data.md").read_text().split("```yaml\n")[1:]]
    assert len(examples) == 2
    np.savez(tmp_path / "kernels.npz", one=np.ones((3, 3)))
    for number, example in enumerate(examples):
        example = example.replace("kernels.npz", str(tmp_path / "kernels.npz"))
        (tmp_path / f"{number}.yaml").write_text(example)
        built = build(CONFIGS[0].with_name("gopro_lite.yaml"), tmp_path, "--config", str(tmp_path / f"{number}.yaml"))
        data = built.datamodule
        if number == 0:
            assert [source.weight for source in data.roots["train"]] == [3, 1, 1]
        else:
            assert len(data.blur.camera) == 6
            assert isinstance(data.blur.camera[3], SixDegrees)
            assert data.blur.jpeg == (88, 100)
            assert data.blur.file_values == 0.5
            assert data.blur.moves == [0.2, 0.2, 0.2, 0, 0, 0]
            assert data.blur.softens[-1] == 0
