"""The plan of a step against the step itself."""

import pytest
import torch

import train
from models.lightning_module import PredictAndRefine
from models.u2net import U2NetPredictor
from models.unet import Denoiser, UNetPredictor
from tests.test_train import run_folder  # noqa: F401 (a fixture)
from training.plan import keeping, measure, plan
from training.scale import recompute_activations


@pytest.mark.parametrize(("precision", "recomputes"), [("bf16-mixed", False), ("32-true", True)])
def test_what_a_plan_keeps_is_what_a_step_keeps(precision, recomputes):
    kept = {}
    for predictor in (UNetPredictor(8, (1, 2), 1), U2NetPredictor("lite")):
        module = PredictAndRefine(predictor, Denoiser(8, (1, 2), 1))
        if recomputes:
            recompute_activations(module)
        expected = plan(module, 2, 32, precision).kept
        with keeping(module) as real:
            measure(module, 2, 32, precision, "cpu", steps=0)
        assert sum(real.values()) == pytest.approx(expected, rel=0.02)
        kept[type(predictor)] = expected
    assert kept[UNetPredictor] < kept[U2NetPredictor]


def test_a_plan_counts_states_and_grows_with_the_crops():
    module = PredictAndRefine(UNetPredictor(8, (1, 2), 1), Denoiser(8, (1, 2), 1), predictor_training="frozen")
    own, double, two = plan(module, 2, 32, "32-true"), plan(module, 4, 32, "32-true"), plan(module, 2, 32, "32-true", 2)
    sharded = plan(module, 2, 32, "32-true", 2, sharded=True)
    count = sum(parameter.numel() for parameter in module.denoiser.parameters())
    assert own.trained == count and own.parameters > count
    # Weights and averages of all; gradients and two moments of what is trained; a second copy of gradients for DDP.
    assert own.states == 8 * own.parameters + 12 * count and two.states == own.states + 4 * count
    assert sharded.states == 8 * (own.parameters - count) + 10 * count and sharded.kept == own.kept
    assert double.kept == pytest.approx(2 * own.kept, rel=0.05) and double.flops == pytest.approx(
        2 * own.flops, rel=0.01
    )


@pytest.mark.filterwarnings("ignore")
def test_the_command(run_folder, capsys):  # noqa: F811
    torch.manual_seed(0)
    assert train.main(["plan", "--measure", "--config", "run.yaml", "--scale.activation_checkpointing", "true"]) == 0
    said = capsys.readouterr().out
    assert "kept for the backward pass" in said and "2 crops in 32-true" in said and "measured: " in said
    assert not (run_folder / "runs").exists()
