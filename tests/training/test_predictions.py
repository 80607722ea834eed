"""Stored predictions in training: the loss of running the frozen network, which is not run, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import train
from deblur.checkpoints import network_hash
from deblur.data.files import images
from deblur.data.pairs import draw_windows, generator_of, shuffled
from deblur.models.networks.base import Cascade
from deblur.models.networks.nafnet import SlimPredictor
from deblur.pipeline import read_pipeline
from deblur.tools.make_pairs import main as make_pairs
from tests.tiny import RUN, metrics, stir, tiny_pipeline

pytestmark = [pytest.mark.commands, pytest.mark.usefixtures("run_folder"), pytest.mark.filterwarnings("ignore")]

PREDICTOR = "{class_path: deblur.models.networks.nafnet.SlimPredictor, "
PREDICTOR += "init_args: {widths: [8, 12], blocks: [1, 1], size_head: true}}"
SIDE = 16  # of the pairs, which is that of the crops


@pytest.fixture
def pairs(run_folder):
    """Six pairs, and the checkpoint that is refined; its predictions are stored beside the pairs."""
    generator = torch.Generator().manual_seed(0)
    for name in "abcdef":
        sharp = torch.rand(3, SIDE, SIDE, generator=generator)
        images.write(run_folder / f"pairs/sharp/{name}.png", sharp)
        images.write(run_folder / f"pairs/blur/{name}.png", 0.3 + 0.4 * sharp)
    save_checkpoint("checkpoint", seed=1)
    make_pairs(["pairs", "--predict", "checkpoint", "--device", "cpu"])
    Path("run.yaml").write_text(RUN.replace("train: photos", "train: pairs").replace("val: photos", "val: null"))
    return run_folder / "pairs"


def save_checkpoint(folder, seed):
    torch.manual_seed(seed)
    predictor = stir(SlimPredictor((8, 12), (1, 1), size_head=True))
    tiny_pipeline(predictor).save_pretrained(folder)


def fit(root, *flags):
    command = ["fit", "--config", "run.yaml", "--trainer.default_root_dir", root, "--data.blur", "null"]
    command += ["--model.predictor", PREDICTOR, "--model.init_from", "checkpoint", "--model.denoiser.channels", "8"]
    command += ["--model.predictor_training", "frozen", "--model.residual.scale_kind", "learned"]
    command += ["--trainer.max_steps", "2", "--trainer.val_check_interval", "1", "--model.optimizer.lr", "1e-4"]
    return train.main([*command, *flags])


def seed_without_turns(steps):
    """A seed with which the first crops, two in each step, are neither turned nor flipped."""
    for seed in range(100_000):
        windows = [draw_windows(SIDE, SIDE, SIDE, 1, generator_of(seed, number))[0] for number in range(2 * steps)]
        if set(windows) == {(0, 0, 0, 0)}:
            return str(seed)
    raise AssertionError("no seed")


def losses(root):
    return [float(row["train/denoiser_loss"]) for row in metrics(root)]


def test_the_loss_is_that_of_running_the_predictor_which_is_not_run(pairs, monkeypatch):
    """Of whole images: a crop's own prediction does not see its surroundings, and a network does not turn with it."""
    seed = seed_without_turns(2)
    assert fit("run", "--data.seed", seed) == 0
    calls = []
    monkeypatch.setattr(SlimPredictor, "estimates", lambda self, *images: calls.append(len(images)))
    stored = ["--data.seed", seed, "--data.predictions", "true"]
    assert fit("stored", *stored) == 0
    assert calls == []
    assert losses("stored") == pytest.approx(losses("run"), rel=2e-3)  # x_init has 8 bits
    scales = [read_pipeline(f"{root}/checkpoint").config.residual_scale for root in ("run", "stored")]
    assert scales[1] == pytest.approx(scales[0], rel=2e-3)
    # The refiner of a run, and the type of stored weights, do not matter to the next run on the same predictor.
    first, refined = (read_pipeline(source).predictor for source in ("checkpoint", "stored/checkpoint"))
    assert network_hash(first) == network_hash(refined)
    assert network_hash(first) != network_hash(tiny_pipeline().predictor)
    # A prediction of another image changes the loss.
    one, other = ("abcdef"[shuffled(number, 6, int(seed))] for number in (0, 3))
    folder = pairs / "predictions/train_blur/x_init"
    (folder / f"{one}.png").write_bytes((folder / f"{other}.png").read_bytes())
    assert fit("swapped", *stored) == 0
    assert abs(losses("swapped")[0] / losses("stored")[0] - 1) > 0.02


def test_predictions_of_another_checkpoint_are_refused(pairs, capsys):
    save_checkpoint("checkpoint", seed=2)
    assert fit("stored", "--data.predictions", "true") == 2
    assert "those of another network than the frozen one of model.init_from" in capsys.readouterr().err
    assert not Path("stored/checkpoint").exists()


def test_predictions_of_some_stages_are_said(pairs, caplog):
    file = pairs / "predictions/train_blur/predictor.json"
    with caplog.at_level("INFO"):
        assert fit("all", "--data.predictions", "true") == 0
    assert "--stages" not in caplog.text
    file.write_text(json.dumps(json.loads(file.read_text()) | {"stages": 1}))
    with caplog.at_level("INFO"):
        assert fit("one", "--data.predictions", "true") == 0
    assert "train_blur are of --stages 1: what is trained on them belongs to samples with as many" in caplog.text


def test_a_predictor_that_learns_takes_no_stored_predictions(pairs, capsys):
    assert fit("stored", "--data.predictions", "true", "--model.predictor_training", "detached") == 2
    assert "data.predictions belongs to model.predictor_training frozen" in capsys.readouterr().err


def test_a_resumed_run_is_the_same_to_the_bit(pairs):
    stored = ["--data.predictions", "true"]
    assert fit("whole", *stored) == 0
    assert fit("parts", *stored, "--trainer.max_steps", "1") == 0
    assert fit("parts", *stored) == 0
    whole, parts = (read_pipeline(f"{root}/checkpoint").denoiser for root in ("whole", "parts"))
    assert network_hash(whole) == network_hash(parts)


def test_the_same_command_adds_what_is_missing(pairs, capsys):
    file = pairs / "predictions/train_blur/x_init/c.png"
    before = file.read_bytes()
    file.unlink()
    make_pairs(["pairs", "--predict", "checkpoint", "--device", "cpu"])
    assert file.read_bytes() == before
    assert "pairs: the predictions of 6 pairs by checkpoint" in capsys.readouterr().out


# A cascade: predictions of its frozen first network, to train the second one on.

FIRST = "{class_path: deblur.models.networks.nafnet.SlimPredictor, init_args: {widths: [8, 12], blocks: [1, 1]}}"
SECOND = FIRST.replace("blocks", "images: 2, blocks")
CASCADE = f"{{class_path: deblur.models.networks.base.Cascade, init_args: {{first: {FIRST}, second: {SECOND}}}}}"


@pytest.fixture
def first_predictions(pairs):
    """A checkpoint of a cascade, whose first network's predictions are stored."""
    torch.manual_seed(3)
    first, second = (stir(SlimPredictor((8, 12), (1, 1), images=images)) for images in (1, 2))
    tiny_pipeline(Cascade(first, second)).save_pretrained("cascade")
    shutil.rmtree(pairs / "predictions")
    make_pairs(["pairs", "--predict", "cascade", "--first", "true", "--device", "cpu"])
    return pairs


def fit_second(root, *flags):
    """Train the cascade's second network: there is no denoiser."""
    before, rest = Path("run.yaml").read_text().split("model:")
    model = f"model: {{class_path: Predict, init_args: {{init_from: cascade, predictor: {CASCADE}}}}}\n"
    Path("second.yaml").write_text(before + model + "data:" + rest.split("data:")[1])
    command = ["fit", "--config", "second.yaml", "--trainer.default_root_dir", root, "--data.blur", "null"]
    return train.main([*command, "--trainer.max_steps", "2", "--trainer.val_check_interval", "1", *flags])


def test_a_cascades_second_network_learns_from_the_first_ones_stored_predictions(first_predictions, monkeypatch):
    seed = ["--data.seed", seed_without_turns(2)]
    assert fit_second("run", *seed) == 0
    calls = []
    monkeypatch.setattr(Cascade, "first_estimate", lambda self, blurry, **options: calls.append(len(blurry)))
    assert fit_second("stored", *seed, "--data.predictions", "true") == 0
    assert calls == []
    run, stored = ([float(row["train/loss"]) for row in metrics(root)] for root in ("run", "stored"))
    assert stored == pytest.approx(run, rel=2e-3)
    before, after = (read_pipeline(source).predictor for source in ("cascade", "stored/checkpoint"))
    assert network_hash(before.first) == network_hash(after.first)
    assert network_hash(before.second) != network_hash(after.second)


def test_a_whole_cascades_predictions_do_not_train_its_second_network(first_predictions, capsys):
    shutil.rmtree(first_predictions / "predictions")
    make_pairs(["pairs", "--predict", "cascade", "--device", "cpu"])
    assert fit_second("stored", "--data.predictions", "true") == 2
    assert "make_pairs PAIRS --predict CHECKPOINT --first true" in capsys.readouterr().err


def test_a_cascade_that_learns_whole_takes_no_stored_predictions(first_predictions, capsys):
    flags = ["--data.predictions", "true", "--model.predictor.init_args.frozen", "false"]
    assert fit_second("stored", *flags) == 2
    assert "a cascade whose first network is frozen" in capsys.readouterr().err
