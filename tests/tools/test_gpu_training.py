"""Training a checkpoint's denoiser from a GPU's memory, here on the CPU."""

import json
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from deblur.checkpoints import load_pipeline
from deblur.data.files import images
from deblur.models.losses import Objective
from deblur.models.networks.base import DDPMScheduler
from deblur.models.networks.nafnet import SlimDenoiser, SlimPredictor
from deblur.models.schedules import linear
from deblur.pipeline import DeblurPipeline
from deblur.tools import gpu_training
from tests.tiny import stir, tiny_pipeline

SCALES = 0.2, 0.04, 0.05


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A hundredth of a second passes whenever the time is asked, so that other load changes no number of steps."""
    ticks = count()
    monkeypatch.setattr(gpu_training, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 100))


def write_pairs(root, number):
    for name in range(number):
        sharp = torch.rand(3, 40, 40, generator=torch.Generator().manual_seed(name))
        images.write(root / "sharp" / f"{name}.png", sharp)
        images.write(root / "blur" / f"{name}.png", 0.5 * sharp + 0.25)


def with_axes():
    """A pipeline with a size head and a scale for luma and each axis of chroma."""
    torch.manual_seed(1)
    predictor = stir(SlimPredictor((8,), (1,), size_head=True))
    denoiser = stir(SlimDenoiser((8,), (1,), prediction_type="v_prediction"))
    scheduler = DDPMScheduler(num_train_timesteps=100, trained_betas=linear(100).tolist())
    return DeblurPipeline(predictor, denoiser, scheduler, list(SCALES), scale_kind="learned")


@pytest.mark.commands
def test_a_denoiser_is_trained_and_then_once_for_each_perceptual_term(tmp_path):
    with_axes().save_pretrained(tmp_path / "checkpoint")
    write_pairs(tmp_path / "pairs", 3)
    out = tmp_path / "out"
    gpu_training.train(
        str(tmp_path / "checkpoint"),
        [str(tmp_path / "pairs")],
        [1.0],
        str(out),
        seconds=6.0,
        lr=0.2,
        perceptual=[4.0, 12.0],
        side=40,
        crop=32,
        batch=4,
        device="cpu",
    )
    names = "denoiser", "denoiser_perceptual_4", "denoiser_perceptual_12"
    states = [load_file(tmp_path / "checkpoint/denoiser/diffusion_pytorch_model.safetensors")]
    states += [load_file(out / name / "diffusion_pytorch_model.safetensors") for name in names]
    for one, state in enumerate(states):
        for other in states[:one]:
            assert any(not torch.equal(state[key].float(), other[key].float()) for key in state)
    trained = type(load_pipeline(str(tmp_path / "checkpoint")).denoiser).from_pretrained(out / "denoiser")
    assert {key for key, _ in trained.named_parameters()} <= set(states[0])
    report = json.loads((out / "training.json").read_text())
    assert len(report["residual_scale"]) == 3
    assert report["pairs"][str(tmp_path / "pairs")]["number"] == 3


def test_the_predictions_and_the_scale_are_those_of_the_checkpoint(tmp_path):
    pipeline = with_axes()
    write_pairs(tmp_path, 4)
    group = gpu_training.Pairs("pairs", 1.0, gpu_training.read_pairs(str(tmp_path), 40, "cpu"))
    gpu_training.add_predictions(pipeline.predictor, group, 3)
    blurry, sharp = (group.frames[:, at].float() / 255 for at in (0, 1))
    prediction = pipeline.predict(blurry)
    assert (group.frames[:, 2].float() / 255 - prediction.images).abs().max() < 0.51 / 255
    assert torch.allclose(group.log_size.float(), prediction.log_size[:, 0], atol=2e-3)
    units = torch.ones(1, 3, 1, 1)
    scale = gpu_training.measure_scales([group], "learned", units, 40, 0)
    m = pipeline.scale(prediction, blurry) / torch.tensor(SCALES).view(1, 3, 1, 1)
    alone = gpu_training.measure_scales([group], "global", units[:, :1], 40, 0)
    deviation = (2 * (sharp - prediction.images)).square().mean().sqrt()
    assert alone.flatten().tolist() == [pytest.approx(deviation.item(), rel=0.1)]
    axes = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, 0.0], [1.0, 1.0, -2.0]])
    along = torch.einsum("kc,nchw->nkhw", axes / axes.norm(dim=1, keepdim=True), 2 * (sharp - prediction.images))
    assert scale.flatten().tolist() == pytest.approx((along / m).square().mean((0, 2, 3)).sqrt().tolist(), rel=0.1)


def steps_of(root, perceptual, number):
    """(loss, logged loss) of the first steps of a fresh denoiser."""
    torch.manual_seed(0)
    write_pairs(root, 4)
    group = gpu_training.Pairs("pairs", 1.0, gpu_training.read_pairs(str(root), 40, "cpu"))
    gpu_training.add_predictions(with_axes().predictor, group, 4)
    scale = gpu_training.measure_scales([group], "learned", torch.ones(1, 3, 1, 1), 40, 0)
    denoiser = SlimDenoiser((8,), (1,), prediction_type="v_prediction")
    trainer = gpu_training.Trainer(denoiser, seconds=60.0, lr=5e-2, clip=1.0, average=0.9)
    options = {"sigma_range": (0.05, 12.0), "stratified": True, "perceptual": perceptual}
    objective = Objective("l2", "log_normal", **options)
    losses = []
    step = trainer.step
    trainer.step = lambda loss, logged: (losses.append((loss.item(), logged.item())), step(loss, logged))
    steps = gpu_training.train_denoiser(denoiser, objective, scale, "learned", [group], trainer, 4, 32, 0)
    for _ in range(number):
        next(steps)
    return losses


def test_the_loss_falls(tmp_path):
    losses = [loss for loss, _ in steps_of(tmp_path, None, 150)]
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])


def test_a_perceptual_term_adds_to_the_loss_but_not_to_the_log(tmp_path):
    assert all(loss == logged for loss, logged in steps_of(tmp_path / "a", None, 2))
    assert all(loss == pytest.approx(logged + 3.0) for loss, logged in steps_of(tmp_path / "b", lambda *_: 3.0, 2))


def test_a_finish_starts_with_the_averaged_weights(tmp_path):
    with_axes().save_pretrained(tmp_path / "checkpoint")
    write_pairs(tmp_path / "pairs", 2)
    options = {"perceptual": [1.0, 2.0], "finish_share": 1e-9, "side": 40, "crop": 32, "batch": 4, "device": "cpu"}
    pairs = [str(tmp_path / "pairs")]
    gpu_training.train(str(tmp_path / "checkpoint"), pairs, [1.0], str(tmp_path / "out"), seconds=0.6, **options)
    files = [tmp_path / "out" / f"denoiser{name}" for name in ("", "_perceptual_1", "_perceptual_2")]
    plain, one, two = (load_file(file / "diffusion_pytorch_model.safetensors") for file in files)
    for key, value in plain.items():
        assert torch.equal(one[key], value)
        assert torch.equal(two[key], value)


def test_a_preparation_that_leaves_no_time_is_refused(tmp_path):
    with_axes().save_pretrained(tmp_path / "checkpoint")
    write_pairs(tmp_path / "pairs", 2)
    options = {"side": 40, "crop": 32, "batch": 4, "device": "cpu"}
    pairs = [str(tmp_path / "pairs")]
    with pytest.raises(ValueError, match=r"seconds is 0.001, and the preparation took .* s: give more"):
        gpu_training.train(str(tmp_path / "checkpoint"), pairs, [1.0], str(tmp_path / "out"), seconds=1e-3, **options)
    assert not (tmp_path / "out").exists()


def test_finishes_that_leave_no_time_are_refused(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    given = {"perceptual": [1.0, 2.0], "finish_share": 0.5, "device": "cpu"}
    with pytest.raises(ValueError, match="leave no time: give less"):
        gpu_training.train(str(tmp_path / "checkpoint"), [], [], str(tmp_path / "out"), **given)


def test_a_checkpoint_without_a_denoiser_is_refused(tmp_path):
    pipeline = tiny_pipeline()
    pipeline.denoiser = None
    pipeline.save_pretrained(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="has no denoiser that could be trained"):
        gpu_training.train(str(tmp_path / "checkpoint"), [], [], str(tmp_path / "out"), device="cpu")
