import hashlib
import itertools
import math
import statistics
from typing import get_args

import lightning as L
import pytest
import torch
import torch.nn.functional as F

from deblur.checkpoints import update_index
from deblur.hub import CheckpointError
from deblur.models.diffusion import ScaleKind
from deblur.models.networks.nafnet import SlimPredictor
from deblur.models.networks.u2net import U2NetPredictor
from deblur.models.networks.unet import UNetPredictor
from deblur.settings import SamplingSettings
from deblur.training.module import Predict, PredictAndRefine
from tests.tiny import Pairs, fit, module, stir


class Steps(L.Callback):
    """Each step of a fit: the rate it began with, its batch, and what the training step gave (loss, losses, levels)."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.append({"rate": trainer.optimizers[0].param_groups[0]["lr"], "batch": batch})

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen[-1] |= outputs


def steps_of(model, folder, count=1, validate=False):
    """`Steps` of so many."""
    steps = Steps()
    fit(model, folder, count, [steps], validate=validate)
    return steps.seen


def drawn(noises=1):
    """u and eps of two crops' noises, from generators that follow from the run's seed, 7, and the crop's number."""
    u, eps = [], []
    for crop in range(2):
        seed = int.from_bytes(hashlib.sha256(f"7/{crop}".encode()).digest()[:8], "little", signed=True)
        generator = torch.Generator().manual_seed(seed)
        u += torch.rand(noises, generator=generator, dtype=torch.float64).tolist()
        eps += [torch.randn(1, 3, 16, 16, generator=generator) for _ in range(noises)]
    return u, torch.cat(eps)


def pair_of(step):
    """The blurry and the sharp crops of a step, in [-1, 1]."""
    return (step["batch"][key] * 2 - 1 for key in ("blurry", "sharp"))


@pytest.mark.filterwarnings("ignore")
class TestTraining:
    @pytest.mark.parametrize("loss", ["l1", "l2"])
    def test_loss_is_the_stated_one(self, tmp_path, loss):
        """The first step's, from its own random numbers: the paper's formula, and L2 on eps at log-normal levels."""
        options = {"residual": {"scale": 0.2}, "predictor_loss": {"weight": 0.5 if loss == "l1" else 0.0}}
        if loss == "l2":
            options |= {"objective": {"loss": "l2", "levels": "log_normal"}, "prediction_type": "epsilon"}
        (seen,) = steps_of(module(**options), tmp_path)
        fresh = module(**options)
        y, x = pair_of(seen)
        x_init = fresh.predictor(y)
        r_0 = (x - x_init) / 0.2
        levels = [1.0, *fresh.levels.flip(0).tolist()]
        u, eps = drawn()
        if loss == "l1":
            steps = [one * len(fresh.levels) for one in u]
            a = torch.tensor([levels[int(t)] + (t % 1) * (levels[int(t) + 1] - levels[int(t)]) for t in steps])
        else:
            a = 1 / (1 + torch.tensor([math.exp(statistics.NormalDist(-1.2, 1.2).inv_cdf(one)) for one in u]) ** 2)
        aa = a.view(-1, 1, 1, 1)
        output = fresh.denoiser(aa.sqrt() * r_0 + (1 - aa).sqrt() * eps, y, a, x_init)
        expected = (output - eps).square().mean()
        if loss == "l1":
            v = aa.sqrt() * eps - (1 - aa).sqrt() * r_0
            expected = F.l1_loss(output, v) + 0.5 * F.l1_loss(x_init, x)
        assert seen["loss"].item() == pytest.approx(expected.item(), rel=1e-5)

    def test_a_checkpoint_knows_both_ends_of_its_training_s_levels(self):
        bounded = module(objective={"levels": "log_normal", "sigma_range": (0.1, 9.0)}).pipeline().describe()
        assert (bounded["sigma_min"], bounded["sigma_max"]) == (0.1, 9.0)
        whole = module().pipeline().describe()
        assert (whole["sigma_min"], whole["sigma_max"]) == (None, None)

    def test_the_image_loss_is_added_to_the_predictor_s_loss(self, tmp_path):
        def squares(x_init, sharp):
            return 3 * (x_init - sharp).square().mean()

        (seen,) = steps_of(module(kind=Predict, predictor_loss={"image_loss": squares}), tmp_path)
        y, x = pair_of(seen)
        x_init = module(kind=Predict).predictor(y)
        expected = F.l1_loss(x_init, x) + 3 * (x_init - x).square().mean()
        assert seen["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
        for weight, training in ((0.0, "detached"), (1.0, "frozen")):
            with pytest.raises(ValueError, match=r"predictor_loss\.image_loss belongs to a loss without effect"):
                module(predictor_loss={"image_loss": squares, "weight": weight}, predictor_training=training)

    def test_what_each_kind_of_training_trains(self, tmp_path):
        def moved(**options):
            model = module(**options)
            before = {name: value.clone() for name, value in model.named_parameters()}
            fit(model, tmp_path, 3)
            return {name.split(".")[0] for name, v in model.named_parameters() if not torch.equal(v, before[name])}

        assert moved() == {"predictor", "denoiser"}
        assert moved(predictor_training="joint", predictor_loss={"weight": 0.0}) == {"predictor", "denoiser"}
        assert moved(predictor_training="detached", predictor_loss={"weight": 0.0}) == {"denoiser"}
        assert moved(predictor_training="frozen") == {"denoiser"}
        assert moved(kind=Predict) == {"predictor"}

    def test_the_optimizer_has_the_numbers_of_the_config(self, tmp_path):
        numbers = {"lr": 3e-3, "weight_decay": 0.04, "betas": (0.8, 0.95)}
        trainer = fit(module(optimizer=numbers | {"warmup_steps": 1}), tmp_path, 1)
        (group,) = trainer.optimizers[0].param_groups
        assert isinstance(trainer.optimizers[0], torch.optim.AdamW)
        assert (group["initial_lr"], group["weight_decay"], tuple(group["betas"])) == (3e-3, 0.04, (0.8, 0.95))

    def test_dropout_differs_from_batch_to_batch_and_comes_back_with_the_seed(self, tmp_path):
        def masks():
            model, found = module(predictor=UNetPredictor(4, (1, 2), 1, dropout=0.5), optimizer={"lr": 0.0}), []
            layer = next(layer for layer in model.predictor.modules() if isinstance(layer, torch.nn.Dropout))
            layer.register_forward_hook(lambda _, given, output: found.append((output == 0) & (given[0] != 0)))
            fit(model, tmp_path, 3)
            return found

        once, again = masks(), masks()
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
        assert not any(torch.equal(a, b) for a, b in itertools.combinations(once, 2))

    def test_a_size_head_adds_a_hundredth_of_its_loss(self, tmp_path):
        (seen,) = steps_of(module(kind=Predict, predictor=SlimPredictor((8, 12), (1, 1), size_head=True)), tmp_path)
        error = 2 * (seen["batch"]["sharp"] - seen["batch"]["blurry"])  # the untrained predictor is the identity
        # The head starts at 0.02; the likelihood is counted from that of a residual of 0.005.
        size_loss = error.abs().mean() / 0.02 + math.log(0.02) - math.log(0.005)
        assert seen["loss"].item() == pytest.approx((error.abs().mean() + 0.01 * size_loss).item(), rel=1e-5)

    def test_a_frozen_predictor_keeps_its_batch_statistics(self, tmp_path):
        model = module(predictor=U2NetPredictor("lite"), predictor_training="frozen")
        before = {name: value.clone() for name, value in model.predictor.state_dict().items()}
        fit(model, tmp_path, 2)
        assert all(torch.equal(value, before[name]) for name, value in model.predictor.state_dict().items())

    def test_the_residual_scale_is_measured(self, tmp_path):
        # The untrained predictor is the identity, so the residual is sharp - blurry, in the units of [-1, 1].
        model = module(predictor_training="frozen")
        fit(model, tmp_path, 12)
        images = Pairs(24)
        missed = torch.stack([2 * (images[i]["sharp"] - images[i]["blurry"]) for i in range(24)])
        assert model.pipeline().config.residual_scale == pytest.approx(missed.square().mean().sqrt().item(), rel=1e-5)
        assert module(residual={"scale": 1.0}).pipeline().config.residual_scale == 1.0
        late = module(predictor_training="frozen")
        late.residual_steps.fill_(5000)  # by now every step has a thousandth
        fit(late, tmp_path, 1)
        expected = 1 + (missed[:2].square().mean().item() - 1) / 1000
        assert late.residual_square.item() == pytest.approx(expected, rel=1e-5)

    def test_of_luma_and_chroma_each_scale_is_measured(self, tmp_path):
        model = module(predictor_training="frozen", residual={"colours": "luma_chroma"})
        fit(model, tmp_path, 12)
        images = Pairs(24)
        missed = torch.stack([2 * (images[i]["sharp"] - images[i]["blurry"]) for i in range(24)])
        red, green, blue = missed.unbind(1)
        axes = [(red + green + blue) / 3**0.5, (red - green) / 2**0.5, (red + green - 2 * blue) / 6**0.5]
        wanted = [axis.square().mean().sqrt().item() for axis in axes]
        assert model.pipeline().config.residual_scale == pytest.approx(wanted, rel=1e-5)

    @pytest.mark.parametrize("colours", ["luma", "luma_chroma"])
    def test_a_denoiser_of_other_colours_is_no_start(self, tmp_path, colours):
        start = str(tmp_path / "start")
        module(residual={"colours": colours}).pipeline().save_pretrained(start)
        assert module(residual={"colours": colours}, init_from=start)
        with pytest.raises(ValueError, match=f"was trained with {colours}: give --model.residual.colours {colours}"):
            module(init_from=start)

    def test_deep_supervision_is_in_the_loss(self, tmp_path):
        model = module(kind=Predict, predictor=U2NetPredictor("lite"))
        fit(model, tmp_path, 1)
        assert all(model.predictor.get_submodule(f"side{k}").weight.any() for k in range(1, 7))

    @pytest.mark.parametrize(("warmup", "decay"), [(4, None), (2, 4)])
    def test_the_learning_rate_warms_up_stays_at_its_peak_and_decays_to_zero(self, tmp_path, warmup, decay):
        options = {"warmup_steps": warmup, "decay_steps": decay}
        rates = [step["rate"] for step in steps_of(module(optimizer=options), tmp_path, 12)]
        decay = decay or 12 - warmup
        cosine = [0.01 * 0.5 * (1 + math.cos(math.pi * k / decay)) for k in range(decay)]
        peak = [0.01] * (12 - warmup - decay)
        assert rates == pytest.approx([0.01 * (k + 1) / warmup for k in range(warmup)] + peak + cosine)

    def test_noises_of_a_crop_share_its_prediction_and_have_strata_of_their_own(self, tmp_path):
        """Three noises for each of two crops, from each crop's own random numbers; levels in six equal shares."""
        objective = {"loss": "l2", "levels": "log_normal", "log_normal": (0.3, 1.1), "stratified": True, "noises": 3}
        model = module(residual={"scale": 0.2}, objective=objective, predictor_training="frozen")
        given, calls = {}, []
        model.predictor.register_forward_hook(lambda *_: calls.append("predictor"))
        model.denoiser.register_forward_hook(lambda _, inputs, __: given.update(r_t=inputs[0], blurry=inputs[1]))

        (seen,) = steps_of(model, tmp_path)
        assert calls == ["predictor"]
        assert seen["losses"].shape == (6,)
        assert torch.equal(given["blurry"][0], given["blurry"][2])
        assert not torch.equal(given["r_t"][0], given["r_t"][1])
        y, x = pair_of(seen)
        r_0 = (x - y) / 0.2  # the untrained predictor is the identity
        u, eps = drawn(3)
        for n in range(6):
            crop, k = divmod(n, 3)
            log_sigma = statistics.NormalDist(0.3, 1.1).inv_cdf((2 * k + crop + u[n]) / 6)
            a = 1 / (1 + math.exp(2 * log_sigma))
            assert seen["alpha_bar"][n].item() == pytest.approx(a, rel=1e-5)
            assert torch.allclose(given["r_t"][n], a**0.5 * r_0[crop] + (1 - a) ** 0.5 * eps[n], atol=1e-5)

    def test_the_denoiser_s_image_loss_sees_the_restored_image_and_rises(self, tmp_path):
        seen = {}

        def image_loss(restored, sharp):
            seen.update(restored=restored, sharp=sharp)
            return restored.mean() * 0 + 100.0

        fixed = {"residual": {"scale": 0.2}, "predictor_training": "frozen", "prediction_type": "sample"}
        model = module(**fixed, objective={"image_loss": image_loss, "image_loss_ramp": (1, 4)}, optimizer={"lr": 0.0})
        shares = [(step["loss"] - step["losses"].mean()).item() / 100 for step in steps_of(model, tmp_path, 5)]
        assert shares == pytest.approx([0, 1 / 3, 2 / 3, 1, 1], abs=1e-3)
        # The denoiser starts at zero, so its estimate of r_0 is zero and the restored image is the prediction.
        assert torch.allclose(seen["restored"], (seen["sharp"] + 1) / 2 * 1.6 + 0.2 - 1, atol=1e-4)

    def test_the_denoiser_s_image_loss_counts_from_its_noise_level_on(self, tmp_path):
        crops = []

        def image_loss(restored, sharp):
            crops.append(len(restored))
            return restored.mean() * 0 + 100.0

        objective = {"levels": "log_normal", "log_normal": (0.4, 1.0), "stratified": True, "noises": 4}
        objective |= {"image_loss": image_loss, "image_loss_sigma": 1.5}
        model = module(residual={"scale": 0.2}, predictor_training="frozen", objective=objective)
        (seen,) = steps_of(model, tmp_path)
        # ln 1.5 is the mean of ln sigma: half of the eight levels lie above.
        assert crops == [4]
        assert (seen["alpha_bar"] <= 1 / (1 + 1.5**2)).sum() == 4
        assert (seen["loss"] - seen["losses"].mean()).item() / 100 == pytest.approx(0.5, abs=1e-3)

    @pytest.mark.parametrize("loss", ["l1", "l2", "psnr"])
    def test_the_predictor_s_distance_is_the_named_one(self, tmp_path, loss):
        (seen,) = steps_of(module(kind=Predict, predictor_loss={"distance": loss}), tmp_path)
        error = 2 * (seen["batch"]["blurry"] - seen["batch"]["sharp"]).double()
        distances = {"l1": error.abs(), "l2": error**2}
        # In [0, 1] the floor is 1e-3, the mean square at 30 dB.
        distances["psnr"] = torch.stack([math.log(1 + (e / 2).square().mean() / 1e-3) * torch.ones(1) for e in error])
        assert seen["loss"].item() == pytest.approx(distances[loss].mean().item(), rel=1e-5)


@pytest.mark.parametrize("kind", get_args(ScaleKind))
@pytest.mark.parametrize("training", ["detached", "frozen"])
def test_no_gradient_of_the_refiner_reaches_a_predictor_that_is_not_joint(kind, training):
    torch.manual_seed(0)
    predictor = SlimPredictor((8, 16), (1, 1), size_head=True)
    model = module(
        predictor=predictor,
        residual={"scale": 0.1, "scale_kind": kind},
        predictor_training=training,
        predictor_loss={"weight": 0.0},
        condition="blurry+x_init",
    )
    stir(model.denoiser)  # what starts at zero lets no gradient through
    model.trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    model.log = lambda *args, **options: None  # it does not run
    model.generators = [torch.Generator().manual_seed(crop) for crop in range(2)]
    batch = {name: torch.rand(2, 3, 16, 16) for name in ("blurry", "sharp")}
    model.training_step(batch, 0)["loss"].backward()
    gradients = [p.grad for p in predictor.parameters() if p.grad is not None]
    assert not any(gradient.any() for gradient in gradients)
    assert any(p.grad is not None and p.grad.any() for p in model.denoiser.parameters())


@pytest.mark.parametrize("kind", [Predict, PredictAndRefine])
def test_a_run_takes_the_rule_for_large_images_from_where_it_starts_and_keeps_it_when_it_resumes(tmp_path, kind):
    module().pipeline().save_pretrained(tmp_path)
    update_index(tmp_path, working_size={"smallest": 300})
    assert module(kind=kind).pipeline().working_size is None
    started, stored = module(kind=kind, predictor=UNetPredictor(4, (1, 2), 1), init_from=str(tmp_path)), {}
    assert started.pipeline().working_size.smallest == 300
    started.on_save_checkpoint(stored)
    resumed = module(kind=kind)
    resumed.on_load_checkpoint(stored)
    assert resumed.pipeline().working_size.smallest == 300


@pytest.mark.parametrize("kind", [Predict, PredictAndRefine])
def test_validation_is_at_full_size_whatever_the_rule_for_large_images_says(kind):
    model = module(kind=kind)
    stir(model.predictor)
    model.working_size = {"smallest": 8, "nearly_largest": 1.0}
    batch = {"blurry": torch.rand(1, 3, 40, 64), "name": ["a"]}
    assert model.pipeline()(batch["blurry"], SamplingSettings(blend=0), output_type="pt").scale < 1
    assert model.restore(batch).scale == 1


def test_a_run_starts_from_the_weights_of_a_checkpoint_of_its_architecture(tmp_path):
    start = module()
    start.pipeline().save_pretrained(tmp_path)
    torch.manual_seed(9)
    model = module(predictor=UNetPredictor(4, (1, 2), 1), init_from=str(tmp_path))
    for part in ("predictor", "denoiser"):
        weights = getattr(start, part).state_dict()
        assert all(torch.equal(value, weights[key]) for key, value in getattr(model, part).state_dict().items())
    with pytest.raises(CheckpointError, match=r"size mismatch for unet\.stem\.weight: .*Size\(\[4, .*Size\(\[16, "):
        module(predictor=UNetPredictor(16, (1, 2), 1), init_from=str(tmp_path))
    with pytest.raises(CheckpointError, match="Missing key"):  # a deeper one, whose other weights would stay random
        module(predictor=UNetPredictor(4, (1, 2), 2), init_from=str(tmp_path))
    module(predictor=UNetPredictor(4, (1, 2), 1, size_head=True), init_from=str(tmp_path))  # which may be added
