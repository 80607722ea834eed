"""The numbers that a run logs, worked out by hand; its trackers' files; and batches that are not finite."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import lpips
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from PIL import Image

import train
from deblur.data.files import images
from deblur.evaluation import plots
from deblur.evaluation.perceptual import Lpips
from deblur.models.networks.u2net import U2NetPredictor
from deblur.pipeline import load_pipeline
from deblur.settings import SamplingSettings
from deblur.training.callbacks import Averages, Track, log_offline_without_key
from tests.tiny import fit, metrics, module, train_run, weights

pytestmark = [pytest.mark.commands, pytest.mark.usefixtures("run_folder"), pytest.mark.filterwarnings("ignore")]


def save_pairs():
    """Two pairs of photographs in pairs/blur and pairs/sharp, which have other colours."""
    generator = torch.Generator().manual_seed(1)
    for name, size in (("first", (40, 44)), ("second", (36, 50))):
        sharp = torch.rand(3, *size, generator=generator)
        images.write(Path("pairs/sharp", f"{name}.png"), sharp)
        images.write(Path("pairs/blur", f"{name}.png"), 0.6 * sharp + torch.tensor([0.3, 0.2, 0.1])[:, None, None])


def file(name, image=None):
    """An image's file, written before where there is an image, as numbers from 0 to 255."""
    if image is not None:
        images.write(name, image)
    return np.asarray(Image.open(name)).astype(float)


def decibels(image, sharp):
    return 10 * math.log10(255**2 / ((image - sharp) ** 2).mean())


class TestValidation:
    @pytest.fixture
    def found(self):
        """What validation of a trained checkpoint on pairs of files logs."""
        save_pairs()
        scale = ["--model.residual.scale", "0.3"]
        train_run("run", *scale, "--trainer.max_steps", "3")
        flags = ["--config", "run.yaml", "--trainer.default_root_dir", "again", "--data.val", "pairs", *scale]
        command = train.cli(["validate", *flags, "--ckpt_path", "run/checkpoints/last.ckpt"])
        return {name: value.item() for name, value in command.trainer.callback_metrics.items()}

    def test_scores_are_those_of_the_saved_images(self, found):
        network = lpips.LPIPS(net="alex", version="0.1", pnet_rand=True, verbose=False).eval()
        network.load_state_dict(Lpips().network.state_dict())
        pipeline, scores = load_pipeline("run/checkpoints/last.ckpt", precision="fp32"), {}
        for name in ("first", "second"):
            blurry, sharp = (file(f"pairs/{side}/{name}.png") for side in ("blur", "sharp"))
            output = pipeline(images.read(f"pairs/blur/{name}.png"), SamplingSettings(steps=2), 0, [name], "pt")
            restored, prediction = file("restored.png", output.images[0]), file("p.png", output.predictions[0])
            for suffix, image in {"": restored, "_prediction": prediction, "_blurry": blurry}.items():
                scores.setdefault(f"val/psnr{suffix}", []).append(decibels(image, sharp))
                pair = (torch.tensor(x / 127.5 - 1).float().movedim(-1, 0)[None] for x in (image, sharp))
                with torch.no_grad():
                    scores.setdefault(f"val/lpips{suffix}", []).append(network(*pair).item())
        for name, values in scores.items():
            assert found[name] == pytest.approx(sum(values) / 2, rel=1e-4, abs=1e-6), name
        assert abs(found["val/psnr"] - found["val/psnr_prediction"]) > 0.1  # so that one cannot stand for the other

    def test_a_score_that_cannot_be_had_leaves_no_mean(self):
        """One image is too small for LPIPS: the mean of the others would look whole."""
        save_pairs()
        for side in ("blur", "sharp"):
            images.write(Path("pairs", side, "third.png"), torch.rand(3, 20, 40))
        train_run("run", "--data.val", "pairs", "--trainer.max_steps", "3")
        row = metrics("run")[-1]
        assert row["val/lpips"] == "nan"
        assert math.isfinite(float(row["val/psnr"]))


class Tint(Callback):
    """The prediction of step 1, 2, 3 is off by so much everywhere; nothing else is."""

    offsets = 0.4, 0.1, 0.2

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        torch.nn.init.constant_(pl_module.predictor.unet.head.bias, self.offsets[trainer.global_step])


def test_the_best_checkpoints_are_the_best_of_three_validations():
    save_pairs()
    flags = ["--data.val", "pairs", "--model.validation.blend", "0", "--model.optimizer.lr", "1e-9", "--ema.decay", "0"]
    flags += ["--trainer.max_steps", "3", "--trainer.val_check_interval", "1"]
    train_run("run", *flags, "--trainer.callbacks+", "tests.training.test_callbacks.Tint")
    scores = {name: [float(row[name]) for row in metrics("run") if name in row] for name in ("val/psnr", "val/lpips")}
    best = max(scores["val/psnr"]), min(scores["val/lpips"])
    assert [values.index(one) for values, one in zip(scores.values(), best, strict=True)] == [1, 1], scores
    for name in ("best-psnr", "best-lpips"):
        checkpoint = torch.load(f"run/checkpoints/{name}.ckpt", weights_only=True)
        assert checkpoint["global_step"] == 2
        assert checkpoint["state_dict"]["predictor.unet.head.bias"].tolist() == pytest.approx([0.1] * 3, abs=1e-6)


class Losses(Callback):
    """Keeps each crop's loss and noise level, step by step, but for the first crop's, whose loss becomes infinite."""

    seen = ()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        Losses.seen = [*Losses.seen, (outputs["losses"][1:].tolist(), outputs["alpha_bar"][1:].tolist())]
        outputs["losses"][0] = math.inf


def test_the_loss_by_noise_level_is_a_mean_of_what_is_finite_over_the_steps_since_the_last_one():
    Losses.seen = []
    flags = ["--model.objective.levels", "log_normal", "--model.objective.log_normal", "[0.0, 3.0]"]
    flags += ["--trainer.log_every_n_steps", "3", "--data.batch_size", "8"]
    train_run("run", *flags, "--trainer.callbacks+", "tests.training.test_callbacks.Losses")
    rows = [row for row in metrics("run") if any(row.get(f"denoiser_loss/snr_{k}") for k in range(5))]
    assert [row["step"] for row in rows] == ["3", "6"]
    assert len(Losses.seen) == 6
    for row, steps in zip(rows, (Losses.seen[:3], Losses.seen[3:]), strict=True):
        bins = {k: [] for k in range(5)}
        for losses, levels in steps:
            for loss, a in zip(losses, levels, strict=True):
                bins[sum(math.log(a / (1 - a)) > edge for edge in (-8, -4, 0, 4))].append(loss)
        assert len(list(filter(None, bins.values()))) > 2
        for k, values in bins.items():
            shown = row.get(f"denoiser_loss/snr_{k}")
            assert float(shown) == pytest.approx(sum(values) / len(values), rel=1e-4) if values else shown is None


def test_a_checkpoint_has_the_losses_of_all_processes_once():
    track, checkpoint = Track(), {}
    track.sums += 3
    of_two = SimpleNamespace(reduce=lambda sums, reduce_op: sums.mul_(2))  # in place, as Lightning's
    track.on_save_checkpoint(SimpleNamespace(strategy=of_two), None, checkpoint)
    assert (track.sums == 3).all()
    for is_first, kept in ((True, 6), (False, 0)):
        resumed = Track()
        resumed.on_load_checkpoint(SimpleNamespace(is_global_zero=is_first), None, checkpoint)
        assert (resumed.sums == kept).all()


FIT = ["fit", "--config", "run.yaml", "--trainer.default_root_dir"]
KEY = "0123456789abcdef" * 2 + "5ec2e7ed"  # has the form of an API key


def test_weights_and_biases_without_a_key_is_offline_wherever_it_stands(run_folder, monkeypatch, caplog):
    for name in ("HOME", "NETRC"):
        monkeypatch.setenv(name, str(run_folder / "home"))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    with caplog.at_level("INFO"):
        log_offline_without_key([CSVLogger("run"), WandbLogger(project="test")])
    assert "the run is logged offline" in caplog.text


def test_an_offline_run_of_weights_and_biases_holds_what_is_logged_and_no_key(run_folder, monkeypatch, capfd):
    import wandb

    for name in ("HOME", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(run_folder / "home"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger = "logger: {class_path: lightning.pytorch.loggers.WandbLogger, init_args: {project: test}}"
    Path("run.yaml").write_text(Path("run.yaml").read_text().replace("logger: false", logger))
    assert train.main([*FIT, "run", "--scores.panels", "1"]) == 0
    wandb.teardown()  # as at the end of a process: all is on the disk
    (log,) = Path("run/wandb").glob("offline-run-*/run-*.wandb")
    content = log.read_bytes()
    for name, count in {b"train/loss": 6, b"val/psnr": 2, b"grad_norm/denoiser": 6, b"denoiser_loss/snr_": 6}.items():
        assert content.count(name) >= count, name
    assert b"deblur.training.module.PredictAndRefine" in content and b"commit" in content
    shown = list(log.parent.rglob("panel_0*.png"))
    assert len(shown) == 2
    assert all(image.stat().st_size > 1000 for image in shown)
    said = "".join(capfd.readouterr())
    assert KEY not in said
    assert "has no effect" not in said
    files = [path for path in run_folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_tensorboard_by_one_line(run_folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    line = "logger: {class_path: lightning.pytorch.loggers.TensorBoardLogger}"
    Path("run.yaml").write_text(Path("run.yaml").read_text().replace("logger: false", line))
    assert train.main([*FIT, "run", "--trainer.max_steps", "3", "--scores.panels", "1"]) == 0
    (events,) = Path("run").rglob("events.out.tfevents.*")
    log = accumulator.EventAccumulator(str(events.parent)).Reload()
    assert {"train/loss", "val/psnr", "grad_norm/denoiser"} <= set(log.Tags()["scalars"])
    assert set(log.Tags()["images"]) == {"val/panel_0"}
    shown = images.read("run/panels/step_3_0.png") * 255
    top, width, height = plots.TEXT_HEIGHT, plots.IMAGE_WIDTH, round(plots.IMAGE_WIDTH * 40 / 44)
    starts = [plots.GAP + column * (width + plots.GAP) for column in range(6)]
    blurry, _, *samples, mean = (shown[:, top : top + height, x : x + width] for x in starts)
    assert (torch.stack(samples).mean(0) - mean).abs().max() < 2.5  # roundings, of what is resized and of files
    assert all((one - mean).abs().max() > 5 for one in (blurry, *samples))


def state(trainer, pl_module):
    """Weights, buffers, averages and the optimizer's state, copied."""
    moments = trainer.optimizers[0].state_dict()["state"]
    flat = {f"{k}.{name}": value for k, entry in moments.items() for name, value in entry.items()}
    (averages,) = (c._average_model for c in trainer.callbacks if isinstance(c, Averages))
    return {name: value.clone() for name, value in (pl_module.state_dict() | averages.state_dict() | flat).items()}


class Plant(Callback):
    """Changes the last batch of a step, and compares what there is before the next step with what there was."""

    def __init__(self, steps: list[int], factor: float = float("nan")):
        self.steps, self.factor = steps, factor

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batches = trainer.accumulate_grad_batches
        is_first, is_last = batch_idx % batches == 0, (batch_idx + 1) % batches == 0
        if is_first and trainer.global_step - 1 in self.steps and self.factor != self.factor:
            after = state(trainer, pl_module)
            assert after.keys() == self.before.keys()
            assert all(torch.equal(after[name], value) for name, value in self.before.items())
        if is_first and trainer.global_step in self.steps:
            self.before = state(trainer, pl_module)
        if is_last and trainer.global_step in self.steps:
            batch["sharp"].mul_(self.factor)


def plant(steps, factor=".nan"):
    given = "--trainer.callbacks"
    return [f"{given}+", "tests.training.test_callbacks.Plant", f"{given}.steps={steps}", f"{given}.factor={factor}"]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_batch_that_is_not_finite_changes_nothing(caplog, accumulated):
    """Also not what the step's first batch, which was finite, has left in buffers."""
    flags = f"--trainer.accumulate_grad_batches {accumulated} --trainer.val_check_interval {3 * accumulated}".split()
    assert train.main([*FIT, "run", *flags, *plant("[1,4]")]) == 0
    assert all(value.isfinite().all() for value in weights("run").values())
    assert "step 5 is skipped" in caplog.text
    assert re.search(r"1 in a row, 2 in all; batch: \w", caplog.text)
    rows = metrics("run")
    assert train.main([*FIT, "run", *flags, *plant("[6]"), "--trainer.max_steps", "7"]) == 0  # resumed
    rows += metrics("run", 1)
    skipped = [(row["step"], row["guard/skipped"]) for row in rows if "guard/skipped" in row]
    assert skipped == [("2", "1"), ("5", "2"), ("7", "3")]


def test_the_guard_changes_no_finite_run():
    for patience in ("0", "10"):
        assert train.main([*FIT, patience, "--guard.patience", patience]) == 0
    off, on = weights("0"), weights("10")
    assert all(torch.equal(off[name], on[name]) for name in off)


def test_without_patience_no_batch_is_skipped(caplog):
    assert train.main([*FIT, "run", "--guard.patience", "0", "--data.val", "null", *plant("[5]")]) == 0
    checkpoint = torch.load("run/checkpoints/last.ckpt", weights_only=True)
    assert any(value.isnan().any() for value in checkpoint["current_model_state"].values())
    assert "is skipped" not in caplog.text


def test_gradients_are_logged_as_they_are_before_clipping():
    flags = ["--data.val", "null", "--trainer.gradient_clip_val", "1e-6", "--trainer.max_steps", "1"]
    train_run("run", *flags, "--trainer.val_check_interval", "1")
    (row,) = metrics("run")
    assert all(float(row[f"grad_norm/{part}"]) > 1e-3 for part in ("predictor", "denoiser"))


def test_many_in_a_row_stop_the_run(capsys):
    assert train.main([*FIT, "run", "--guard.patience", "2", *plant("[3,4,5]")]) == 2
    assert re.search(r"2 steps in a row had .* not finite, the last with \w.*: look at", capsys.readouterr().err)
    assert not list(Path("run/checkpoint").glob("*"))


def test_averages_are_lightning_s_but_for_the_running_mean(tmp_path):
    both = EMAWeightAveraging(decay=0.7), Averages(decay=0.7)
    model = module(predictor=U2NetPredictor("lite"))
    fit(model, tmp_path, 3, both)
    one, other = (averages._average_model.state_dict() for averages in both)
    assert one.keys() == other.keys()
    assert one["n_averaged"] == other["n_averaged"] == 3
    own = {f"module.{name}": buffer for name, buffer in model.named_buffers(recurse=False) if f"module.{name}" in one}
    assert "module.residual_square" in own
    assert one["module.residual_square"] != other["module.residual_square"]
    assert all(torch.equal(other[name], value) for name, value in own.items())
    assert all(torch.allclose(one[name], other[name], rtol=1e-6, atol=1e-8) for name in one.keys() - own.keys())


def test_a_run_says_how_large_its_steps_are(caplog):
    flags = ["--trainer.max_steps", "2", "--trainer.accumulate_grad_batches", "3"]
    flags += ["--trainer.val_check_interval", "3"]
    assert train.main([*FIT, "run", *flags]) == 0
    assert "2 steps of 1 x 2 x 3 crops" in caplog.text
    assert "32-true, seed 3" in caplog.text
