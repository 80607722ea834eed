"""Every config file builds the run it describes, through the command line that people use."""

from pathlib import Path

import pytest

import train
from evaluation.grid import read_grid
from models.lightning_module import PredictAndRefine
from models.settings import SamplingSettings

CONFIGS = sorted(Path(__file__).parents[1].glob("configs/*.yaml"))
GRIDS = sorted(Path(__file__).parents[1].glob("configs/grid/*.yaml"))


def build(config, folder, *flags):
    quiet = ["--trainer.logger", "false", "--trainer.accelerator", "cpu"]
    return train.cli(["--config", str(config), "--trainer.default_root_dir", str(folder), *quiet, *flags], run=False)


@pytest.fixture(autouse=True)
def no_network(tmp_path, monkeypatch):
    """LPIPS finds no backbone: an empty weights cache, and a proxy that refuses at once."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")
def test_every_config_builds(config, tmp_path):
    built = build(config, tmp_path)
    assert isinstance(built.model, PredictAndRefine)
    assert built.trainer.max_steps > 0 and built.trainer.default_root_dir == str(tmp_path)
    assert {"EMAWeightAveraging", "Scores", "Export"} <= {type(c).__name__ for c in built.trainer.callbacks}


@pytest.mark.filterwarnings("ignore")
def test_the_paper_s_own_objective_by_flags(tmp_path):
    flags = ["--model.denoiser.init_args.prediction_type", "epsilon", "--model.residual_scale", "1.0"]
    flags += ["--model.predictor_weight", "0"]
    model = build(CONFIGS[0].with_name("gopro.yaml"), tmp_path, *flags).model
    assert model.denoiser.prediction_type == "epsilon" and model.scale() == 1.0
    assert model.predictor_weight == 0 and model.predictor_training == "joint"


@pytest.mark.parametrize("grid", GRIDS, ids=lambda path: path.stem)
def test_every_grid_reads(grid):
    assert read_grid(grid, SamplingSettings)
