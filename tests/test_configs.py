"""Every config file builds the run it describes, through the command line that people use."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from deblur.data import images
from deblur.data.camera import SixDegrees
from deblur.models.checkpoints import load_pipeline
from deblur.models.lightning_module import PredictAndRefine
from deblur.training import command as train
from tests.conftest import ROOT

CONFIGS, STAGES = (sorted(ROOT.glob(f"configs/{folder}*.yaml")) for folder in ("", "pretrained_u2net/"))
pytestmark = [pytest.mark.usefixtures("no_network"), pytest.mark.filterwarnings("ignore")]


def build(config, folder, *flags):
    quiet = ["--trainer.logger", "false", "--trainer.accelerator", "cpu"]
    return train.cli(["--config", str(config), "--trainer.default_root_dir", str(folder), *quiet, *flags], run=False)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_builds(config, tmp_path):
    built = build(config, tmp_path)
    assert isinstance(built.model, PredictAndRefine)
    assert built.trainer.max_steps > 0 and built.trainer.default_root_dir == str(tmp_path)
    assert {"Averages", "Speed", "Scores"} <= {type(c).__name__ for c in built.trainer.callbacks}


def test_no_config_or_benchmark_chooses_a_precision_that_a_processor_may_have_to_emulate():
    for file in [*ROOT.glob("configs/**/*.yaml"), *ROOT.glob("tools/benchmarks/*.yaml")]:
        config = yaml.safe_load(file.read_text())
        assert "precision" not in config.get("base", config).get("trainer", {}), file


FURTHER = {"demo": "u2net", "finetune": "lite", "finetune text/finetune": "text"}
FURTHER["finetune pretrained_u2net/finetune"] = "u2net"


@pytest.mark.parametrize(("configs", "name"), FURTHER.items())
def test_a_checkpoint_is_trained_further_on_the_blurry_images_of_pairs(configs, name, tmp_path):
    """Were they ignored, as where a config blurs the sharp ones, black ones would leave the same weights; were they
    blurred once more, a run without the config's blur would leave others."""
    sharp, weights = torch.rand(3, 48, 48), {}
    flags = ["--trainer.max_steps=1", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    flags += ["--trainer.logger=false", "--data.patch_size=32", "--data.batch_size=2", "--data.num_workers=0"]
    flags += ["--data.val=null", "--model.optimizer.warmup_steps=1", "--trainer.precision=32-true", "--ema.decay=0"]
    blurred, black = sharp.roll(2, -1), torch.zeros_like(sharp)
    alone = [("alone", blurred, "--data.blur=null")] * (configs == "demo")
    for kind, blurry, *more in (("blurred", blurred), ("black", black), *alone):
        images.write(tmp_path / kind / "sharp" / "a.png", sharp)
        images.write(tmp_path / kind / "blur" / "a.png", blurry)
        given = [f"--data.train={tmp_path / kind}", f"--trainer.default_root_dir={tmp_path / 'runs' / kind}"]
        files = [f"--config={CONFIGS[0].parent / config}.yaml" for config in configs.split()]
        assert train.main(["fit", *files, *flags, *given, *more]) == 0
        trained = load_pipeline(str(tmp_path / "runs" / kind / "checkpoint"), precision="fp32")
        weights[kind] = trained.predictor.state_dict()
    start = load_pipeline(name, precision="fp32").predictor.state_dict()
    for one in weights.values():
        assert one.keys() == start.keys() and any(not torch.equal(one[key], start[key]) for key in start)
        assert all((one[key] - start[key]).abs().max() < 1e-3 for key in start)  # a step of 1e-4 from its weights
    assert any(not torch.equal(weights["blurred"][key], weights["black"][key]) for key in start)
    if "alone" in weights:
        assert all(torch.equal(weights["blurred"][key], weights["alone"][key]) for key in start)


def test_the_stages_of_u2net_go_together(tmp_path):
    stages = [stage for stage in STAGES if not stage.stem.startswith(("pairs", "finetune"))]
    runs = {stage.stem: build(stage, tmp_path, "--model.init_from", "null") for stage in stages}
    models, refiners = {stage: built.model for stage, built in runs.items()}, {"refine", "refine_finish"}
    assert set(models) == {"distil", "predictor", "predictor_longer", "predictor_finish"} | refiners
    weights = models["distil"].predictor.state_dict()
    both = [{"root": "pairs_video", "weight": 1}, {"root": "pairs_shake", "weight": 1}]
    sources = {"predictor_finish": both, "refine_finish": "pairs_video"}
    for stage in set(models) - {"distil"}:
        models[stage].predictor.load_state_dict(weights)
        source = yaml.safe_load((STAGES[0].parent / f"{stage}.yaml").read_text())["data"]["train"]
        assert source == sources.get(stage, "pairs")
    for stage in refiners:
        assert models[stage].predictor_training == "frozen"
        models[stage].denoiser.load_state_dict(models["refine"].denoiser.state_dict())


def test_the_stages_of_lite_train_its_networks(tmp_path):
    shipped = load_pipeline("lite", precision="fp32")
    for stage in ("predictor", "refine"):
        config = CONFIGS[0].with_name("pretrained_lite") / f"{stage}.yaml"
        model = build(config, tmp_path, "--model.init_from", "null").model
        model.predictor.load_state_dict(shipped.predictor.state_dict())
    assert model.predictor_training == "frozen"
    model.denoiser.load_state_dict(shipped.denoiser.state_dict())


LONGER, NAF = {"lr": 7e-4, "decay_steps": 4500}, {"lr": 8e-4, "warmup_steps": 200, "decay_steps": 5000}


@pytest.mark.parametrize(
    ("stage", "over", "changed"), [("predictor", "predictor_longer", LONGER), ("refine", "refine_naf", NAF)]
)
def test_a_config_over_another_changes_its_own_keys_of_a_group_alone(stage, over, changed, tmp_path):
    folder, flags = CONFIGS[0].with_name("text"), ["--model.init_from", "null"]
    first = build(folder / f"{stage}.yaml", tmp_path, *flags).model
    longer = build(folder / f"{stage}.yaml", tmp_path, "--config", str(folder / f"{over}.yaml"), *flags).model
    assert longer.optimizer == replace(first.optimizer, **changed)
    assert longer.objective_values() == first.objective_values()


def test_the_paper_s_own_objective_by_flags(tmp_path):
    flags = ["--model.denoiser.init_args.prediction_type", "epsilon", "--model.residual.scale", "1.0"]
    flags += ["--model.predictor_loss.weight", "0"]
    model = build(CONFIGS[0].with_name("gopro.yaml"), tmp_path, *flags).model
    assert model.denoiser.prediction_type == "epsilon" and model.scale() == 1.0
    assert model.predictor_loss.weight == 0 and model.predictor_training == "joint"


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
            assert len(data.blur.camera) == 6 and isinstance(data.blur.camera[3], SixDegrees)
            assert data.blur.jpeg == (88, 100) and data.blur.file_values == 0.5
            assert data.blur.moves == [0.2, 0.2, 0.2, 0, 0, 0] and data.blur.softens[-1] == 0
