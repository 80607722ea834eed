"""What a resumed run takes over from the new command, and what it refuses: the table of docs/training.md."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

import train
from deblur.training.resume import changed_settings, read_checkpoint
from tests.conftest import ROOT, draw_photographs, flags_of_train_py, folder_to_train_in
from tests.deblur.test_storage import holder
from tests.tiny import RUN, metrics

pytestmark = [
    pytest.mark.usefixtures("run_folder"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.commands,
    pytest.mark.xdist_group("takeover"),  # most tests take over the same run
]
EARLY = ["--trainer.max_steps", "4", "--trainer.limit_val_batches", "1"]
ONE_STEP = ["--trainer.max_steps", "5", "--trainer.val_check_interval", "1"]


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The folder of a run of four steps."""
    with folder_to_train_in(tmp_path_factory, "started") as folder:
        Path("run.yaml").write_text(RUN.replace("val_check_interval: 3", "val_check_interval: 2"))
        assert train.main(["fit", "--config", "run.yaml", "--trainer.default_root_dir", "run", *EARLY]) == 0
    return folder / "run"


def copied(started, name="run"):
    """The command that goes on with a copy of the run's folder for a step."""
    shutil.copytree(started, name)
    shutil.copy(started.parent / "run.yaml", "run.yaml")
    return ["fit", "--config", "run.yaml", "--trainer.default_root_dir", name, *EARLY, *ONE_STEP]


def resume(started, name, *flags):
    """The checkpoint of the same run one step later, of a copy of its folder."""
    assert train.main([*copied(started, name), *flags]) == 0
    return read_checkpoint(Path(name) / "checkpoints" / "last.ckpt")


def averages(checkpoint):
    return {key: value for key, value in checkpoint["state_dict"].items() if value.is_floating_point()}


def test_the_optimizer_s_settings_are_those_of_the_new_command(started, caplog):
    before = read_checkpoint(started / "checkpoints" / "last.ckpt")
    flags = ["--model.optimizer.lr", "1e-3", "--model.optimizer.weight_decay", "0.25"]
    flags += ["--model.optimizer.betas", "[0.5, 0.75]"]
    flags += ["--model.optimizer.warmup_steps", "10", "--ema.decay", "0.875", "--trainer.gradient_clip_val", "1e-6"]
    flags += ["--trainer.max_steps", "20", "--trainer.limit_val_batches", "0"]
    flags += ["--trainer.callbacks+", "tests.training.test_takeover.StopAfterOne"]
    after = resume(started, "run", *flags)
    assert after["global_step"] == 5
    (group,) = after["optimizer_states"][0]["param_groups"]
    assert (group["initial_lr"], group["weight_decay"], tuple(group["betas"])) == (1e-3, 0.25, (0.5, 0.75))
    assert after["lr_schedulers"][0]["base_lrs"] == [1e-3]
    # The fifth step is in the new warm-up, at 5/10 of the new rate; the sixth comes next.
    assert [(row["step"], float(row["lr"])) for row in metrics("run", 1)] == [("5", pytest.approx(5e-4))]
    assert group["lr"] == pytest.approx(6e-4)
    # Moments after a step: exp_avg = 0.5 exp_avg + 0.5 g, and g is clipped to 1e-6.
    moments = [(before["optimizer_states"][0]["state"][k], v) for k, v in after["optimizer_states"][0]["state"].items()]
    clipped = torch.cat([(2 * b["exp_avg"] - a["exp_avg"]).flatten() for a, b in moments])
    assert clipped.norm().item() == pytest.approx(1e-6, rel=0.2)
    for key, value in averages(after).items():
        kept = 0.0 if key.startswith("residual_") else 0.875
        expected = kept * before["state_dict"][key] + (1 - kept) * after["current_model_state"][key]
        assert torch.allclose(value, expected, rtol=1e-4, atol=1e-6)
    assert "changed since that checkpoint: " in caplog.text
    betas = "model.optimizer.betas [0.9, 0.999] -> [0.5, 0.75]"
    for change in ("model.optimizer.lr 0.01 -> 0.001", "ema.decay 0.5 -> 0.875", betas):
        assert change in caplog.text


def test_without_auto_resume_a_run_starts_anew_over_what_is_there(started):
    assert resume(started, "run", "--auto_resume", "false", "--trainer.max_steps", "1")["global_step"] == 1


def test_a_checkpoint_that_is_named_is_resumed_in_place_of_the_newest(started, caplog):
    previous = "run/checkpoints/previous.ckpt"
    assert resume(started, "run", "--ckpt_path", previous, "--trainer.max_steps", "3")["global_step"] == 3
    assert f"resumed from {previous}, step 2" in caplog.text


class StopAfterOne(Callback):
    """Ends the run after the step at hand."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.should_stop = True


class Seen(Callback):
    """Keeps what the first step was made of."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        Seen.names, Seen.shape = {Path(name).stem for name in batch["name"]}, tuple(batch["sharp"].shape)
        data = trainer.datamodule
        Seen.settings = data.blur.response, data.seed, pl_module.objective.noises


DATA = ["--data.batch_size", "4", "--data.patch_size", "24", "--data.crops_per_image", "4", "--data.train", "more"]
DATA += ["--data.seed", "1"]
DATA += ["--data.blur", "{class_path: deblur.data.blur.SyntheticBlur, init_args: {response: linear}}"]
DATA += ["--model.objective.noises", "2"]
WATCHING = ["--guard.patience", "3", "--data.num_workers", "1", "--trainer.log_every_n_steps", "3"]
WATCHING += ["--model.validation.steps", "3", "--data.val", "more"]


def test_data_and_seeds_are_those_of_the_new_command_and_what_only_watches_changes_nothing(started, caplog):
    draw_photographs(Path("drawn"))
    Path("drawn/photos/a.png").rename("more.png")
    Path("more").mkdir()
    Path("more.png").rename("more/other.png")
    blind = ["--trainer.limit_val_batches", "0"]
    same = averages(resume(started, "same", *blind))

    def equal(name, *flags):
        other = averages(resume(started, name, *blind, *flags))
        return all(torch.equal(other[key], value) for key, value in same.items())

    assert not equal("seed", "--seed_everything", "4")
    assert not equal("data", *DATA, "--trainer.callbacks+", "tests.training.test_takeover.Seen")
    assert Seen.shape == (4, 3, 24, 24)
    assert Seen.names == {"other"}
    assert Seen.settings == ("linear", 1, 2)
    for change in ("data.batch_size 2 -> 4", "seed_everything 3 -> 4", "model.objective.noises 1 -> 2"):
        assert change in caplog.text
    assert equal("watching", *WATCHING, "--model.init_from", str(started / "checkpoint"))


@pytest.mark.slow
def test_a_run_resumes_in_another_precision(started):
    flags = ["--trainer.limit_val_batches", "0", "--trainer.precision"]
    same, rounded = (averages(resume(started, one, *flags, one)) for one in ("32-true", "bf16-mixed"))
    assert all(torch.allclose(rounded[key], value, atol=0.02) for key, value in same.items())


def test_a_run_of_a_version_with_other_settings_is_resumed(started):
    command, path = copied(started), Path("run/checkpoints/last.ckpt")
    checkpoint = read_checkpoint(path)
    settings = checkpoint["config"]["model"]["init_args"]
    del settings["objective"]["stratified"], settings["residual"]
    settings["objective"]["segments"] = settings["predictor"]["init_args"]["stem"] = 5
    torch.save(checkpoint, path)
    Path("run/checkpoints/previous.ckpt").unlink(missing_ok=True)
    assert train.main([*command, "--model.objective.levels", "log_normal"]) == 2
    assert train.main(command) == 0
    assert read_checkpoint(path)["global_step"] == 5


LPIPS = "{class_path: deblur.evaluation.perceptual.PerceptualLoss, init_args: {weight: 0.3, net: squeeze}}"
LOSS = "deblur.evaluation.perceptual.PerceptualLoss"
REFUSED = {  # flag -> another value, and what the refusal says of it
    "model.predictor": ("{init_args: {channels: 8}}", ".channels is 8 here and 4 there"),
    "model.denoiser": ("{init_args: {channels: 8}}", ".channels is 8 here and 4 there"),
    "model.schedule": ("{name: cosine}", ".name is cosine here and linear there"),
    "model.objective.loss": ("l2", " is l2 here and l1 there"),
    "model.objective.levels": ("log_normal", " is log_normal here and alpha_bar there"),
    "model.objective.log_normal": ("[0, 1]", " is [0.0, 1.0] here and [-1.2, 1.2] there"),
    "model.objective.sigma_range": ("[0.1, 9]", " is [0.1, 9.0] here and None there"),
    "model.objective.stratified": ("true", " is True here and False there"),
    "model.objective.image_loss": (LPIPS, f" is {LOSS} here and None there"),
    "model.predictor_loss.distance": ("l2", " is l2 here and l1 there"),
    "model.predictor_loss.image_loss": (LPIPS, f" is {LOSS} here and None there"),
    "model.predictor_loss.weight": ("0.5", " is 0.5 here and 1.0 there"),
    "model.predictor_training": ("joint", " is joint here and detached there"),
    "model.residual.scale": ("1", " is 1.0 here and None there"),
    "model.residual.scale_kind": ("local", " is local here and global there"),
    "model.residual.colours": ("luma", " is luma here and rgb there"),
    "trainer.accumulate_grad_batches": ("2", " is 2 here and 1 there"),
}
ALONE = ("model.residual.colours",)  # contradicts a fixed scale


@pytest.mark.parametrize("names", [REFUSED.keys() - set(ALONE), ALONE], ids=["together", "alone"])
def test_what_the_weights_were_trained_for_cannot_change(started, capsys, names):
    flags = [part for name in names for part in (f"--{name}", REFUSED[name][0])]
    if "trainer.accumulate_grad_batches" in names:
        flags += ["--trainer.val_check_interval", "2"]
    sentences = [name + REFUSED[name][1] for name in names]
    command, last = copied(started), Path("run/checkpoints/last.ckpt")
    before = last.read_bytes()
    assert train.main([*command, *flags]) == 2
    named = capsys.readouterr().err.partition("this config cannot resume from run/checkpoints/last.ckpt: ")[2]
    assert [sentence for sentence in sentences if not re.search(rf"(^|; ){re.escape(sentence)}", named)] == []
    assert last.read_bytes() == before


def test_the_table_names_every_setting_and_says_what_these_tests_saw(run_folder):
    text = (ROOT / "docs" / "training.md").read_text()
    lines = re.findall(r"^\| (`.*) \| (.*) \|$", text.partition("| setting | on resume |")[2].partition("###")[0], re.M)
    said = {name: fate for names, fate in lines for name in re.findall(r"`([\w.]+)`", names)}
    assert {name for name in flags_of_train_py() if "." in name} <= said.keys()
    assert {name for name, fate in said.items() if fate.startswith("a change is refused")} == REFUSED.keys()
    fates = {re.split("[:,;]", fate)[0] for fate in said.values()}
    assert fates == {"a change is refused", "taken over", "without effect"}


def test_a_second_run_in_the_folder_is_refused(started, capsys):
    command = copied(started)
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*") if path.is_file()}
    first = holder(Path("run").absolute())
    assert train.main(command) == 2
    assert f"another run (pid {first.pid}) uses run: wait until it has ended" in capsys.readouterr().err
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    first.communicate("")
    assert train.main(command) == 0


def test_changes_are_named_as_flags():
    there = {"model": {"class_path": "a.B", "init_args": {"lr": 1, "net": {"class_path": "c", "init_args": {"n": 1}}}}}
    here = {"model": {"class_path": "a.B", "init_args": {"lr": 2, "net": {"class_path": "c", "init_args": {"n": 2}}}}}
    assert changed_settings(there, here | {"ckpt_path": "x"}) == ["model.lr 1 -> 2", "model.net.n 1 -> 2"]
    assert changed_settings(there, there) == []
    runs = [{"trainer": {"logger": [{"init_args": {"id": one, "name": "run"}}]}} for one in (None, "k3")]
    assert changed_settings(*runs) == []  # what Weights & Biases called it is no change of the command
    one, two = ({"trainer": {"callbacks": [{"n": n}]}} for n in (1, 2))
    assert changed_settings(one, two) == ["trainer.callbacks.0.n 1 -> 2"]
