"""The operations of a training step, and what makes it fast, on small real runs."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from deblur.models.losses import Objective
from deblur.models.networks.base import Predictor, register_to_config
from deblur.models.networks.nafnet import SlimDenoiser
from deblur.models.networks.u2net import U2NetPredictor
from deblur.models.networks.unet import UNetPredictor
from deblur.tools.benchmarks.training import step_flops
from deblur.training.module import Predict, PredictAndRefine
from deblur.training.resume import read_checkpoint
from tests.tiny import fit, module, train_run

pytestmark = [pytest.mark.commands, pytest.mark.usefixtures("run_folder"), pytest.mark.filterwarnings("ignore")]


class Convolution(Predictor):
    @register_to_config
    def __init__(self, groups=1):
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3, padding=1, groups=groups)

    def forward(self, x):
        return self.layer(x)


class TestFlops:
    @pytest.mark.parametrize(("groups", "inputs"), [(1, 3), (3, 1)], ids=["dense", "depthwise"])
    def test_of_a_convolution_are_those_by_hand(self, groups, inputs):
        once = 2 * (2 * 3 * 8 * 10) * (inputs * 3 * 3)  # an addition and a product for each output and kernel weight
        model = Predict(Convolution(groups))
        assert step_flops(model, (2, 3, 8, 10)) == 2 * once  # forward, and the weights' gradient
        model.predictor.requires_grad_(False)
        assert step_flops(model, (2, 3, 8, 10)) == once

    @pytest.mark.parametrize(
        ("predictor", "noises"),
        [(UNetPredictor(4, (1, 2), 1), 3), pytest.param(U2NetPredictor("lite"), 1, marks=pytest.mark.slow)],
        ids=["unet", "u2net"],
    )
    def test_are_those_of_a_step_that_is_done_and_touch_nothing(self, predictor, noises):
        model = PredictAndRefine(predictor, SlimDenoiser(), objective=Objective(noises=noises))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        state, counted = torch.get_rng_state(), step_flops(model, (2, 3, 32, 32))
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())
        image = torch.rand(2, 3, 32, 32)
        with FlopCounterMode(display=False) as counter:
            model.predictor(image).sum().backward()
            for _ in range(noises):
                model.denoiser(image, image, torch.tensor([0.5, 0.5]), image, image[:, :1]).sum().backward()
        assert counted == counter.get_total_flops()


class StopAfterThree(Callback):
    """Ends a run after the third step and its checkpoint."""

    def on_validation_end(self, trainer, pl_module):
        if trainer.global_step == 3:
            trainer.should_stop = True


def test_a_compiled_run_leaves_the_same_names_and_goes_on():
    """Without the compiler even. It stands aside here, which leaves its wrappers, and they must not show."""
    last = "run/checkpoints/last.ckpt"
    with torch.compiler.set_stance("force_eager"):
        train_run("run", "--model.compiled", "true", "--trainer.callbacks+", "tests.training.test_speed.StopAfterThree")
        compiled = read_checkpoint(Path(last))
        train_run("run", "--ckpt_path", last)
    resumed = read_checkpoint(Path(last))
    assert (compiled["global_step"], resumed["global_step"]) == (3, 6)
    assert all(compiled[key].keys() == resumed[key].keys() for key in ("state_dict", "current_model_state"))


@pytest.mark.slow
def test_compiled_networks_train_as_they_are(tmp_path):
    losses = {}
    for compiled in (False, True):
        model = module(compiled=compiled)
        fit(model, tmp_path, 2, validate=True)
        losses[compiled] = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.allclose(losses[True], losses[False], atol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
