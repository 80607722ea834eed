import json
import os
import pickle
import shutil

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from safetensors.torch import load_file, save_file

from models import checkpoints
from models.checkpoints import CheckpointError, checkpoint_hash, copy_weights, export, load_pipeline
from models.lightning_module import PredictAndRefine
from models.settings import SamplingSettings
from models.u2net import U2NetPredictor
from models.unet import Denoiser, UNetPredictor
from tests.models.test_lightning_module import fit
from tests.models.test_pipeline import tiny_pipeline

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def folder(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_a_folder_loads_to_the_bit(folder):
    loaded = load_pipeline(str(folder), precision="fp32")
    blurry = torch.rand(1, 3, 16, 16)
    ours = tiny_pipeline()(blurry, SamplingSettings(steps=2), output_type="pt").images
    assert torch.allclose(loaded(blurry, SamplingSettings(steps=2), output_type="pt").images, ours, atol=1e-5)
    for part in ("predictor", "denoiser"):
        state = load_file(folder / part / WEIGHTS)
        assert all(torch.equal(value, state[key]) for key, value in getattr(loaded, part).state_dict().items())
        assert not any(parameter.requires_grad for parameter in getattr(loaded, part).parameters())


def test_bf16_stays_close_to_fp32(folder):
    blurry = torch.rand(1, 3, 32, 32)
    images = [
        load_pipeline(str(folder), precision=p)(blurry, SamplingSettings(steps=3), output_type="pt").images
        for p in ("fp32", "bf16")
    ]
    assert images[1].dtype == torch.float32
    assert 0 < (images[0] - images[1]).abs().mean() < 0.005


def test_the_hash_follows_the_weights(folder):
    before = checkpoint_hash(str(folder))
    assert before == checkpoint_hash(str(folder)) and len(before) == 64
    state = load_file(folder / "denoiser" / WEIGHTS)
    state["unet.head.bias"] += 1
    save_file(state, folder / "denoiser" / WEIGHTS)
    assert checkpoint_hash(str(folder)) != before


def sentence(source):
    with pytest.raises(CheckpointError) as caught:
        load_pipeline(str(source))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_missing_is_named(folder, tmp_path):
    assert "neither" in sentence(tmp_path / "nowhere")
    assert "does not exist" in sentence(tmp_path / "nowhere.ckpt")
    (tmp_path / "empty").mkdir()
    assert "model_index.json does not exist" in sentence(tmp_path / "empty")
    os.remove(folder / "denoiser" / WEIGHTS)
    assert "denoiser has no weights" in sentence(folder)
    shutil.rmtree(folder / "predictor")
    assert "predictor" in sentence(folder) and "config.json does not exist" in sentence(folder)


def test_another_architecture_is_refused_by_its_first_differing_key(folder):
    state = load_file(folder / "denoiser" / WEIGHTS)
    config = json.loads((folder / "denoiser" / "config.json").read_text())
    (folder / "denoiser" / "config.json").write_text(json.dumps(config | {"channels": 16}))
    message = sentence(folder)
    assert "unet.down.0.conv1.bias has shape (8,), expected (16,)" in message
    (folder / "denoiser" / "config.json").write_text(json.dumps(config))
    save_file({key: value for key, value in state.items() if key != "unet.head.weight"}, folder / "denoiser" / WEIGHTS)
    assert "lacks unet.head.weight" in sentence(folder)
    save_file(state | {"extra": torch.zeros(1)}, folder / "denoiser" / WEIGHTS)
    assert "has extra" in sentence(folder)


def test_damaged_files_are_named(folder):
    for file in (folder / "denoiser" / WEIGHTS, folder / "denoiser" / "config.json", folder / "model_index.json"):
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        assert file.name in sentence(folder)
        file.write_bytes(whole)
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"_class_name": "StableDiffusionPipeline"}))
    assert "StableDiffusionPipeline" in sentence(folder)
    (folder / "model_index.json").write_text(json.dumps(index | {"denoiser": ["os", "system"]}))
    assert "unknown class 'system'" in sentence(folder)


class Hostile:
    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_a_hostile_pickle_executes_nothing(tmp_path):
    torch.save({"state_dict": Hostile(tmp_path / "executed")}, tmp_path / "hostile.ckpt")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(Hostile(tmp_path / "executed")))
    for name in ("hostile.ckpt", "plain.ckpt"):
        assert "was not loaded" in sentence(tmp_path / name)
    shutil.copyfile(tmp_path / "hostile.ckpt", tmp_path / "hostile.pth")
    with pytest.raises(CheckpointError, match="was not loaded"):
        copy_weights(str(tmp_path / "hostile.pth"), U2NetPredictor("lite"))
    assert not (tmp_path / "executed").exists()
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    assert "not written by train.py" in sentence(tmp_path / "foreign.ckpt")


def test_weights_are_copied_for_staged_training(folder):
    predictor, denoiser = UNetPredictor(8, (1, 2), 1), Denoiser(8, (1, 2), 1)
    copy_weights(str(folder), predictor, denoiser)
    state = load_file(folder / "predictor" / WEIGHTS)
    assert all(torch.equal(value, state[key]) for key, value in predictor.state_dict().items())
    with pytest.raises(CheckpointError, match=r"unet\.down\.0\.conv1\.bias has shape \(8,\), expected \(16,\)"):
        copy_weights(str(folder), UNetPredictor(16, (1, 2), 1))


# The stages of the official U2NET and U2NETP (model/u2net.py of xuebinqin/U-2-Net): kind, in, mid, out channels.
OFFICIAL = {
    "full": {
        "stage1": ("RSU7", 3, 32, 64),
        "stage2": ("RSU6", 64, 32, 128),
        "stage3": ("RSU5", 128, 64, 256),
        "stage4": ("RSU4", 256, 128, 512),
        "stage5": ("RSU4F", 512, 256, 512),
        "stage6": ("RSU4F", 512, 256, 512),
        "stage5d": ("RSU4F", 1024, 256, 512),
        "stage4d": ("RSU4", 1024, 128, 256),
        "stage3d": ("RSU5", 512, 64, 128),
        "stage2d": ("RSU6", 256, 32, 64),
        "stage1d": ("RSU7", 128, 16, 64),
    },
    "lite": {
        "stage1": ("RSU7", 3, 16, 64),
        "stage2": ("RSU6", 64, 16, 64),
        "stage3": ("RSU5", 64, 16, 64),
        "stage4": ("RSU4", 64, 16, 64),
        "stage5": ("RSU4F", 64, 16, 64),
        "stage6": ("RSU4F", 64, 16, 64),
        "stage5d": ("RSU4F", 128, 16, 64),
        "stage4d": ("RSU4", 128, 16, 64),
        "stage3d": ("RSU5", 128, 16, 64),
        "stage2d": ("RSU6", 128, 16, 64),
        "stage1d": ("RSU7", 128, 16, 64),
    },
}
SIDES = {"full": (64, 64, 128, 256, 512, 512), "lite": (64,) * 6}


def official_state(variant):
    """A state dict with the keys and shapes of u2net.pth or u2netp.pth, its values random."""
    torch.manual_seed(0)
    state = {}

    def convolution(name, before, after, size):
        state[f"{name}.weight"] = torch.randn(after, before, size, size) / 100
        state[f"{name}.bias"] = torch.randn(after) / 100

    for stage, (kind, before, mid, after) in OFFICIAL[variant].items():
        levels = int(kind[3])
        channels = {"rebnconvin": (before, after), "rebnconv1": (after, mid)}
        channels |= {f"rebnconv{i}": (mid, mid) for i in range(2, levels + 1)}
        channels |= {f"rebnconv{i}d": (2 * mid, mid) for i in range(levels - 1, 1, -1)}
        channels |= {"rebnconv1d": (2 * mid, after)}
        for block, (i, o) in channels.items():
            convolution(f"{stage}.{block}.conv_s1", i, o, 3)
            for name in ("weight", "bias", "running_mean", "running_var"):
                state[f"{stage}.{block}.bn_s1.{name}"] = torch.rand(o)
            state[f"{stage}.{block}.bn_s1.num_batches_tracked"] = torch.tensor(7)
    for k, before in enumerate(SIDES[variant], start=1):
        convolution(f"side{k}", before, 1, 3)
    convolution("outconv", 6, 1, 1)
    return state


@pytest.mark.parametrize(
    ("variant", "parameters", "zipped"),
    [("full", 44_009_869, True), ("lite", 1_131_181, True), ("lite", 1_131_181, False)],
)
def test_official_u2net_weights_start_encoder_and_decoder(tmp_path, variant, parameters, zipped):
    state = official_state(variant)
    assert sum(v.numel() for k, v in state.items() if not k.endswith(("mean", "var", "tracked"))) == parameters
    torch.save(state, tmp_path / "u2net.pth", _use_new_zipfile_serialization=zipped)
    predictor = U2NetPredictor(variant)
    heads = {key: value.clone() for key, value in predictor.state_dict().items() if key.startswith(("side", "outconv"))}
    copy_weights(str(tmp_path / "u2net.pth"), predictor)
    loaded = predictor.state_dict()
    body = state.keys() - heads.keys()
    assert body | heads.keys() == loaded.keys() and not body & heads.keys()
    assert all(torch.equal(loaded[key], state[key]) for key in body)
    assert all(torch.equal(loaded[key], value) for key, value in heads.items())
    blurry = torch.rand(1, 3, 32, 32)
    assert torch.equal(predictor.eval()(blurry), blurry)  # the new heads start at zero


def test_wrong_u2net_weights_are_refused_by_name(tmp_path):
    path, state = tmp_path / "u2netp.pth", official_state("lite")

    def refused(predictor, content):
        torch.save(content, path)
        before = {key: value.clone() for key, value in predictor.state_dict().items()}
        with pytest.raises(CheckpointError) as caught:
            copy_weights(str(path), predictor)
        assert all(torch.equal(value, before[key]) for key, value in predictor.state_dict().items())
        assert "\n" not in str(caught.value)
        return str(caught.value)

    key = "stage3.rebnconv2.conv_s1.weight"
    lite = U2NetPredictor("lite")
    assert f"lacks {key} (16, 16, 3, 3)" in refused(lite, {k: v for k, v in state.items() if k != key})
    wrong = refused(lite, state | {key: torch.zeros(16, 8, 3, 3)})
    assert f"{key} has shape (16, 8, 3, 3), expected (16, 16, 3, 3)" in wrong
    assert "has extra (1,)" in refused(lite, state | {"extra": torch.zeros(1)})
    assert "lacks outconv.bias (1,)" in refused(lite, {"weight": torch.zeros(1)})
    assert "norm batch" in refused(U2NetPredictor("lite", norm="none"), state)
    assert "U2NetPredictor" in refused(UNetPredictor(8, (1, 2), 1), state)
    assert "holds no weights" in refused(lite, {"epoch": 3})
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=r"side3\.weight has shape \(1, 64, 3, 3\), expected \(1, 128, 3, 3\)"):
        copy_weights(str(path), U2NetPredictor("full"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder whose last.ckpt has averaged and raw weights."""
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    model = PredictAndRefine(UNetPredictor(8, (1, 2), 1), Denoiser(8, (1, 2), 1), lr=1e-2, warmup_steps=1)
    saver = ModelCheckpoint(dirpath=folder / "checkpoints", every_n_train_steps=4, save_last=True)
    fit(model, folder, 4, [EMAWeightAveraging(decay=0.9), saver])
    return folder


@pytest.mark.filterwarnings("ignore")
def test_export_takes_the_weights_that_are_named(run, tmp_path):
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    states = {"ema": checkpoint["state_dict"], "raw": checkpoint["current_model_state"]}
    for weights, state in states.items():
        export(str(run), str(tmp_path / weights), weights, "fp32")
        pipeline = load_pipeline(str(tmp_path / weights), precision="fp32")
        for part in ("predictor", "denoiser"):
            for key, value in getattr(pipeline, part).state_dict().items():
                assert torch.equal(value, state[f"{part}.{key}"])
        assert pipeline.config.residual_scale == pytest.approx(state["residual_square"].sqrt().item())
    assert any(not torch.equal(value, states["raw"][key]) for key, value in states["ema"].items())
    with pytest.raises(CheckpointError, match="only one kind of weights"):
        export(str(tmp_path / "ema"), str(tmp_path / "again"), "raw")
    with pytest.raises(CheckpointError, match="not an empty folder"):
        export(str(run), str(tmp_path / "ema"))


@pytest.mark.filterwarnings("ignore")
def test_fp16_shards_load_as_float32(run, tmp_path):
    export(str(run / "checkpoints" / "last.ckpt"), str(tmp_path / "small"), max_shard_size="20KB")
    shards = sorted((tmp_path / "small" / "predictor").glob("*.safetensors"))
    assert len(shards) > 2 and all(value.dtype == torch.float16 for value in load_file(shards[0]).values())
    small = load_pipeline(str(tmp_path / "small"), precision="fp32")
    whole = load_pipeline(str(run / "checkpoints" / "last.ckpt"), precision="fp32")
    blurry = torch.rand(1, 3, 16, 16)
    assert {p.dtype for p in small.predictor.parameters()} == {torch.float32}
    assert 0 < (small.predict(blurry) - whole.predict(blurry)).abs().max() < 1e-2
    os.remove(shards[1])
    assert f"lacks {shards[1].name}" in sentence(tmp_path / "small")
    for file in (tmp_path / "small" / "predictor").glob("*.index.json"):
        os.remove(file)
    assert "several weight files" in sentence(tmp_path / "small")


def test_values_too_large_for_fp16_are_refused(folder, tmp_path):
    state = load_file(folder / "denoiser" / WEIGHTS)
    state["unet.head.bias"] += 1e6
    save_file(state, folder / "denoiser" / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"denoiser's unet\.head\.bias .* not finite in fp16"):
        export(str(folder), str(tmp_path / "small"))
    assert sorted(tmp_path.iterdir()) == [folder]
    export(str(folder), str(tmp_path / "small"), dtype="bf16")


def test_without_the_repository_s_checkpoint_a_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "PRETRAINED", tmp_path / "pretrained" / "lite")
    with pytest.raises(CheckpointError, match="no checkpoint is named"):
        checkpoints.pretrained()
    (tmp_path / "pretrained" / "lite").mkdir(parents=True)
    assert checkpoints.pretrained() == str(tmp_path / "pretrained" / "lite")


def test_a_broken_folder_is_not_pushed(folder):
    os.remove(folder / "denoiser" / WEIGHTS)
    with pytest.raises(CheckpointError, match="has no weights"):
        checkpoints.push(str(folder), "me/deblur")


def test_a_token_that_a_server_sends_back_is_not_repeated(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert checkpoints._reason(OSError("no entry for Bearer hf_secret\nat all")) == "no entry for Bearer ***"
