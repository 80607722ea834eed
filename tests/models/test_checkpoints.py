import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.checkpoints import checkpoint_hash, copy_weights, load_pipeline, read_pipeline, save_presets
from models.index import CheckpointError
from models.settings import SamplingSettings
from models.unet import Denoiser, UNetPredictor
from tests.conftest import Hostile
from tests.tiny import tiny_pipeline

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def folder(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_a_folder_loads_to_the_bit(folder):
    ours, stored, loaded = tiny_pipeline(), read_pipeline(str(folder)), load_pipeline(str(folder), precision="fp32")
    blurry = torch.rand(2, 3, 21, 30)

    def restored(pipeline, seed):
        return pipeline(blurry, SamplingSettings("ddpm", steps=4), seed=seed, output_type="pt").images

    assert torch.equal(restored(ours, 5), restored(stored, 5)) and not torch.equal(restored(ours, 5), restored(ours, 6))
    assert torch.allclose(restored(ours, 5), restored(loaded, 5), atol=1e-5)  # in another layout of memory
    assert stored.config.residual_scale == 0.1 and stored.denoiser.prediction_type == "v_prediction"
    for part in (loaded.predictor, loaded.denoiser):
        assert not any(parameter.requires_grad for parameter in part.parameters())


def test_bf16_stays_close_to_fp32(folder):
    blurry = torch.rand(1, 3, 32, 32)
    images = [
        load_pipeline(str(folder), precision=p)(blurry, SamplingSettings(steps=3), output_type="pt").images
        for p in ("fp32", "bf16")
    ]
    assert images[1].dtype == torch.float32
    assert 0 < (images[0] - images[1]).abs().mean() < 0.005


def test_in_bf16_normalisation_stays_float32(tmp_path):
    predictor = UNetPredictor(8, (1, 2), 1, norm="pixel")
    tiny_pipeline(predictor).save_pretrained(tmp_path)
    pipeline = load_pipeline(str(tmp_path), precision="bf16")
    types = {name: value.dtype for name, value in pipeline.predictor.named_parameters()}
    norms = {name for name in types if ".norm." in name}
    assert norms and {types[name] for name in norms} == {torch.float32}
    assert {types[name] for name in types.keys() - norms} == {torch.bfloat16}


def test_the_hash_follows_the_weights_and_not_the_presets(folder):
    before = checkpoint_hash(str(folder))
    save_presets(folder, {"balanced": SamplingSettings(steps=3)})
    assert checkpoint_hash(str(folder)) == before and len(before) == 64
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
    assert "size mismatch for unet." in message and "Size([8" in message and "Size([16" in message
    (folder / "denoiser" / "config.json").write_text(json.dumps(config))
    save_file({key: value for key, value in state.items() if key != "unet.head.weight"}, folder / "denoiser" / WEIGHTS)
    assert 'Missing key(s) in state_dict: "unet.head.weight"' in sentence(folder)
    save_file(state | {"extra": torch.zeros(1)}, folder / "denoiser" / WEIGHTS)
    assert 'Unexpected key(s) in state_dict: "extra"' in sentence(folder)


@pytest.mark.parametrize("wrong", [{"condition": "sharp"}, {"norm": "batch"}, {"channels": "many"}])
def test_a_config_that_the_network_does_not_accept_is_named(folder, wrong):
    file = folder / "denoiser" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | wrong))
    assert "denoiser has a config that Denoiser does not accept" in sentence(folder)


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


@pytest.mark.parametrize("value", [0, -1.0, "high"])
def test_a_noisiest_level_that_is_none_is_refused(folder, value):
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"sigma_max": value}))
    assert f"sigma_max {value!r}: it is a noise level" in sentence(folder)


def test_a_hostile_pickle_executes_nothing(tmp_path):
    torch.save({"state_dict": Hostile(tmp_path / "executed")}, tmp_path / "hostile.ckpt")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(Hostile(tmp_path / "executed")))
    for name in ("hostile.ckpt", "plain.ckpt"):
        assert "was not loaded" in sentence(tmp_path / name)
    assert not (tmp_path / "executed").exists()
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    assert "not written by train.py" in sentence(tmp_path / "foreign.ckpt")


def test_arguments_that_networks_once_had_are_ignored_and_weights_of_others_refused(folder):
    path = folder / "denoiser" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"modulation": "add", "stem": 1}))
    assert "modulation" not in load_pipeline(str(folder)).denoiser.config
    weights = load_file(folder / "denoiser" / WEIGHTS)
    weights |= {key: torch.cat([value, value]) for key, value in weights.items() if ".embed." in key}
    save_file(weights, folder / "denoiser" / WEIGHTS)
    path.write_text(json.dumps(config | {"modulation": "scale_shift", "stem": 1}))
    with pytest.raises(CheckpointError, match="is of another architecture"):
        load_pipeline(str(folder))


def test_weights_are_copied_for_staged_training(folder):
    predictor, denoiser = UNetPredictor(8, (1, 2), 1), Denoiser(8, (1, 2), 1)
    copy_weights(str(folder), predictor, denoiser)
    state = load_file(folder / "predictor" / WEIGHTS)
    assert all(torch.equal(value, state[key]) for key, value in predictor.state_dict().items())
    with pytest.raises(CheckpointError, match=r"size mismatch for unet\.stem\.weight: .*Size\(\[8, .*Size\(\[16, "):
        copy_weights(str(folder), UNetPredictor(16, (1, 2), 1))
