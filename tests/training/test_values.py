"""The numbers that a run logs, against the same numbers worked out by hand from files and weights."""

import math
from pathlib import Path

import lpips
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from PIL import Image

import train
from data import images
from evaluation.perceptual import Lpips
from models.checkpoints import load_pipeline
from models.settings import SamplingSettings
from tests.tiny import metrics, train_run

pytestmark = [pytest.mark.usefixtures("run_folder"), pytest.mark.filterwarnings("ignore")]


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
        pipeline = load_pipeline("run/checkpoints/last.ckpt", precision="fp32")
        scores = {}
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
        assert row["val/lpips"] == "nan" and math.isfinite(float(row["val/psnr"]))


class Tint(Callback):
    """The prediction of step 1, 2, 3 is off by so much everywhere; nothing else is."""

    offsets = 0.4, 0.1, 0.2

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        torch.nn.init.constant_(pl_module.predictor.unet.head.bias, self.offsets[trainer.global_step])


def test_the_best_checkpoints_are_the_best_of_three_validations():
    save_pairs()
    flags = ["--data.val", "pairs", "--model.validation.blend", "0", "--model.optimizer.lr", "1e-9", "--ema.decay", "0"]
    flags += ["--trainer.max_steps", "3", "--trainer.val_check_interval", "1"]
    train_run("run", *flags, "--trainer.callbacks+", "tests.training.test_values.Tint")
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
    train_run("run", *flags, "--trainer.callbacks+", "tests.training.test_values.Losses")
    rows = [row for row in metrics("run") if any(row.get(f"denoiser_loss/snr_{k}") for k in range(5))]
    assert [row["step"] for row in rows] == ["3", "6"] and len(Losses.seen) == 6
    for row, steps in zip(rows, (Losses.seen[:3], Losses.seen[3:]), strict=True):
        bins = {k: [] for k in range(5)}
        for losses, levels in steps:
            for loss, a in zip(losses, levels, strict=True):
                bins[sum(math.log(a / (1 - a)) > edge for edge in (-8, -4, 0, 4))].append(loss)
        assert len(list(filter(None, bins.values()))) > 2
        for k, values in bins.items():
            shown = row.get(f"denoiser_loss/snr_{k}")
            assert float(shown) == pytest.approx(sum(values) / len(values), rel=1e-4) if values else shown is None
