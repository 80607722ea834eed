"""Checkpoints that are saved, exported and loaded, also by a hub id, and what is said of those that cannot be."""

import json
import os
import pickle
import shutil
import tempfile
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from deblur import hub as index
from deblur.architectures import require_network
from deblur.checkpoints import checkpoint_hash, network_hash, save_presets, update_index
from deblur.hub import CheckpointError
from deblur.models.networks.base import Cascade
from deblur.models.networks.nafnet import SlimPredictor
from deblur.models.networks.unet import UNetPredictor
from deblur.pipeline import DeblurPipeline, load_pipeline, read_pipeline
from deblur.settings import SamplingSettings
from deblur.working_size import WorkingSize
from tests.conftest import Hostile
from tests.tiny import rich_pipeline, tiny_pipeline

pytestmark = pytest.mark.filterwarnings("ignore")
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def folder(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_a_folder_loads_to_the_bit(folder):
    ours, stored = tiny_pipeline(), read_pipeline(str(folder))
    loaded = DeblurPipeline.from_pretrained(folder, precision="fp32").to("cpu")
    assert (loaded.precision, loaded.predictor.training) == ("fp32", False)
    blurry = torch.rand(2, 3, 21, 30)

    def restored(pipeline, seed):
        return pipeline(blurry, SamplingSettings("ddpm", steps=4), seed=seed, output_type="pt").images

    assert torch.equal(restored(ours, 5), restored(stored, 5))
    assert not torch.equal(restored(ours, 5), restored(ours, 6))
    assert torch.allclose(restored(ours, 5), restored(loaded, 5), atol=1e-5)  # in another layout of memory
    assert stored.config.residual_scale == 0.1
    assert stored.denoiser.prediction_type == "v_prediction"
    for part in (loaded.predictor, loaded.denoiser):
        assert not any(parameter.requires_grad for parameter in part.parameters())


@pytest.mark.parametrize("name", ["text", "pretrained/text"])
def test_a_folder_here_comes_before_the_repository_s_checkpoint_of_that_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert index.find_folder(name) == index.SHIPPED / "text"
    tiny_pipeline().save_pretrained(name)
    assert index.find_folder(name).resolve() == tmp_path / name
    assert read_pipeline(name).config.residual_scale == 0.1


def test_any_other_folder_of_that_name_is_none_of_it(tmp_path, monkeypatch):
    """Such as the one that --output lite has just made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lite").mkdir()
    assert index.find_folder("lite") == index.SHIPPED / "lite"


def test_bf16_stays_close_to_fp32(folder):
    blurry = torch.rand(1, 3, 32, 32)
    pipelines = (load_pipeline(str(folder), precision=precision) for precision in ("fp32", "bf16"))
    images = [pipeline(blurry, SamplingSettings(steps=3), output_type="pt").images for pipeline in pipelines]
    assert images[1].dtype == torch.float32
    assert 0 < (images[0] - images[1]).abs().mean() < 0.005


def test_in_bf16_normalisation_stays_float32(tmp_path):
    tiny_pipeline(UNetPredictor(8, (1, 2), 1, norm="pixel")).save_pretrained(tmp_path)
    pipeline = load_pipeline(str(tmp_path), precision="bf16")
    types = {name: value.dtype for name, value in pipeline.predictor.named_parameters()}
    norms = {name for name in types if ".norm." in name}
    assert norms
    assert {types[name] for name in norms} == {torch.float32}
    assert {types[name] for name in types.keys() - norms} == {torch.bfloat16}


def changed(file):
    """Change a number in a file of weights, or a value in another; its name and size say nothing of it."""
    if file.suffix == ".safetensors":
        state = load_file(file)
        next(iter(state.values())).view(-1)[0] += 1
        save_file(state, file)
    else:
        content = json.loads(file.read_text() or "{}")
        file.write_text(json.dumps(content | {"other": 1}))


def test_the_hash_follows_the_content_of_each_file_but_not_the_presets(tmp_path):
    rich_pipeline().save_pretrained(tmp_path)
    before = checkpoint_hash(str(tmp_path))
    assert len(before) == 64
    others = index.read_index(tmp_path)["presets"].keys() - {"balanced"}
    assert others
    save_presets(tmp_path, {"balanced": SamplingSettings(steps=3)})
    assert others < index.read_index(tmp_path)["presets"].keys()
    with pytest.raises(ValueError, match=r"balanced have the schedule mine\.own, which is your own code: no preset"):
        save_presets(tmp_path, {"balanced": SamplingSettings(schedule="mine.own")})
    assert checkpoint_hash(str(tmp_path)) == before
    (tmp_path / "predictor" / "model.onnx").touch()  # as in a folder of tools.export_onnx
    before = checkpoint_hash(str(tmp_path))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    seen = {before}
    for file in files:
        content = file.read_bytes()
        changed(file)
        seen.add(checkpoint_hash(str(tmp_path)))
        file.write_bytes(content)
    assert len(seen) == 1 + len(files) == 11
    (tmp_path / "README.md").write_text("a card")
    assert checkpoint_hash(str(tmp_path)) == before


def test_the_hash_of_a_cascade_is_that_of_its_stored_one(tmp_path):
    torch.manual_seed(0)
    cascade = Cascade(SlimPredictor((8, 12), (1, 1)), SlimPredictor((8, 12), (1, 1), images=2))
    DeblurPipeline(cascade, None, tiny_pipeline().scheduler, working_size={}).save_pretrained(tmp_path)
    loaded = read_pipeline(str(tmp_path))
    assert network_hash(loaded.predictor) == network_hash(cascade)
    assert loaded.working_size == WorkingSize()
    next(loaded.predictor.first.parameters()).data.add_(1)
    assert network_hash(loaded.predictor) != network_hash(cascade)


class Own(SlimPredictor):
    """A user's own network, which does not convert its input."""

    def forward(self, *images):
        return images[-1] + self.unet.stem(nn.functional.pixel_unshuffle(torch.cat(images, dim=1), 2)).mean()


@pytest.mark.parametrize(("first", "second"), [(Own, None), (Own, SlimPredictor), (SlimPredictor, Own)])
def test_an_own_network_computes_in_float32_also_in_a_cascade(tmp_path, first, second):
    torch.manual_seed(0)
    predictor = first((8, 12), (1, 1))
    if second is not None:
        predictor = Cascade(predictor, second((8, 12), (1, 1), images=2))
    DeblurPipeline(predictor, None, tiny_pipeline().scheduler).save_pretrained(tmp_path)
    pipeline = load_pipeline(str(tmp_path), precision="bf16", classes=[Own])
    for network in pipeline.predictor.children() if second is not None else [pipeline.predictor]:
        assert network.unet.stem.weight.dtype == (torch.float32 if type(network) is Own else torch.bfloat16)
    assert pipeline(torch.rand(3, 16, 16), SamplingSettings(blend=0.0), output_type="pt").images.isfinite().all()


class Drawing(Own):
    """Another one, which draws random numbers."""

    def forward(self, *images):
        return super().forward(*images) + torch.rand(1)


@pytest.mark.parametrize("training", [True, False])
def test_an_own_network_is_tried_and_stays_as_it_was_handed_over(training):
    network = Drawing((8, 12), (1, 1)).train(training)
    drawn_before = torch.get_rng_state()
    require_network(network, "predictor")
    assert torch.equal(torch.get_rng_state(), drawn_before)
    assert network.training == training


def test_the_hash_of_a_network_has_one_zero_and_follows_its_weights_of_whatever_type():
    network = tiny_pipeline().predictor
    weight = next(network.parameters()).data
    weight.view(-1)[0] = 0.0
    before = network_hash(network)
    weight.view(-1)[0] = -0.0
    assert network_hash(network) == before
    weight.view(-1)[0] = 1e-30
    assert network_hash(network) != before
    halved = network_hash(network.half())
    assert network_hash(network.float()) == halved


def sentence(source):
    with pytest.raises(CheckpointError, match=r"\A[^\n]*\Z") as caught:
        load_pipeline(str(source))
    return str(caught.value)


def test_what_is_missing_is_named(folder, tmp_path):
    assert "neither" in sentence(tmp_path / "nowhere")
    assert "does not exist" in sentence(tmp_path / "nowhere.ckpt")
    (tmp_path / "empty").mkdir()
    assert "model_index.json does not exist" in sentence(tmp_path / "empty")
    os.remove(folder / "denoiser" / WEIGHTS)
    assert "denoiser has no weights" in sentence(folder)
    shutil.rmtree(folder / "predictor")
    assert "predictor" in sentence(folder)
    assert "config.json does not exist" in sentence(folder)


def test_another_architecture_is_refused_by_its_first_differing_key(folder):
    state = load_file(folder / "denoiser" / WEIGHTS)
    config = json.loads((folder / "denoiser" / "config.json").read_text())
    (folder / "denoiser" / "config.json").write_text(json.dumps(config | {"channels": 16}))
    message = sentence(folder)
    assert "size mismatch for unet." in message
    assert "Size([8" in message
    assert "Size([16" in message
    (folder / "denoiser" / "config.json").write_text(json.dumps(config))
    save_file({key: value for key, value in state.items() if key != "unet.head.weight"}, folder / "denoiser" / WEIGHTS)
    assert 'Missing key(s) in state_dict: "unet.head.weight"' in sentence(folder)
    save_file(state | {"extra": torch.zeros(1)}, folder / "denoiser" / WEIGHTS)
    assert 'Unexpected key(s) in state_dict: "extra"' in sentence(folder)


@pytest.mark.parametrize("wrong", [{"condition": "sharp"}, {"norm": "batch"}, {"channels": "many"}, {"channels": -8}])
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
    facts = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(facts | {"_class_name": "StableDiffusionPipeline"}))
    assert "StableDiffusionPipeline" in sentence(folder)
    (folder / "model_index.json").write_text(json.dumps(facts | {"denoiser": ["os", "system"]}))
    assert "unknown class 'system'" in sentence(folder)


@pytest.mark.parametrize("betas", [0.5, "linear", [], [0.1, None], [0.1, "0.2"], [0.1, 1.0], [0.1, float("nan")]])
def test_a_training_schedule_that_is_none_is_refused(folder, betas):
    file = folder / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"trained_betas": betas}))
    assert f"{folder} lacks the training schedule's betas" in sentence(folder)


NO_PAIRS = [None, "UNetPredictor", ["UNetPredictor"], ["deblur.models.networks.unet", []]]
NO_SCALES = [None, "2", [1.0, 2.0], [1.0, 2.0, "3"]]
NO_PRESETS = [
    ("balanced", "has presets that are none: settings by their names, got 'balanced'"),
    ({"balanced": 3}, "has a preset balanced that is none: "),
    ({"balanced": {}, "own": {"stepz": 3}}, "has a preset own that is none: "),
    ({"own": {"steps": "3"}}, "has a preset own that is none: steps must be a whole number of 1 or more, got '3'"),
    ({"own": {"blend": "0.5"}}, "has a preset own that is none: blend must be between 0 and 1, got '0.5'"),
    ({"own": {"beta_end": None}}, "has a preset own that is none: beta_end must be a finite number, got None"),
    ({"own": {"average": "no"}}, "has a preset own that is none: average must be true or false, got 'no'"),
]
NO_VALUES = [
    *(({part: pair}, f"has a {part} that is no pair") for part in ("predictor", "denoiser") for pair in NO_PAIRS),
    *(({"residual_scale": scale}, "lacks the residual scale: a number, or one for each") for scale in NO_SCALES),
    *(({"presets": presets}, f"model_index.json {words}") for presets, words in NO_PRESETS),
    *(({end: s}, f"{end} {s!r}: it is a noise") for end in ("sigma_min", "sigma_max") for s in (0, -1.0, "high")),
    ({"sigma_min": 12.0, "sigma_max": 0.05}, "sigma_min 12.0, which is not below its sigma_max 0.05"),
    ({"scale_kind": "own"}, "has a scale_kind 'own'; known are global, local, learned"),
]


@pytest.mark.parametrize(("values", "words"), NO_VALUES)
def test_an_index_with_values_that_are_none_is_refused_by_name(folder, values, words):
    update_index(folder, **values)
    assert str(folder) in sentence(folder)
    assert words in sentence(folder)


def test_a_hostile_pickle_executes_nothing(tmp_path):
    torch.save({"state_dict": Hostile(tmp_path / "executed")}, tmp_path / "hostile.ckpt")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(Hostile(tmp_path / "executed")))
    for name in ("hostile.ckpt", "plain.ckpt"):
        assert "was not loaded" in sentence(tmp_path / name)
    tiny_pipeline().save_pretrained(tmp_path / "folder")
    weights = tmp_path / "folder" / "denoiser" / WEIGHTS
    weights.write_bytes(pickle.dumps(Hostile(tmp_path / "executed")))
    assert "is damaged" in sentence(tmp_path / "folder")
    weights.rename(weights.with_suffix(".bin"))
    assert "has no weights" in sentence(tmp_path / "folder")
    assert not (tmp_path / "executed").exists()
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    assert "not written by train.py" in sentence(tmp_path / "foreign.ckpt")


@pytest.mark.parametrize("name", ["run.ckpt", f"predictor/{WEIGHTS}"])
def test_a_file_that_may_not_be_read_is_not_said_to_be_damaged(folder, name):
    file = folder / name
    torch.save({}, folder / "run.ckpt")
    file.chmod(0)
    for parent in (folder, *folder.parents):
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may read everything
    try:
        with pytest.raises(PermissionError) as caught:
            load_pipeline(str(file if name == "run.ckpt" else folder))
    finally:
        os.seteuid(user)
    assert caught.value.filename == str(file)


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


@pytest.mark.parametrize(("source", "revision"), [("me/deblur", None), ("me/deblur@v1.2", "v1.2")])
def test_a_name_and_its_revision_are_asked_for_and_only_a_checkpoint_s_files(tmp_path, monkeypatch, source, revision):
    tiny_pipeline().save_pretrained(tmp_path)
    asked = []

    def download(name, **options):
        asked.append((name, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_pipeline(source, precision="fp32").config.residual_scale == 0.1
    assert asked == [("me/deblur", {"revision": revision, "allow_patterns": index.DOWNLOADED_FILES})]
    assert index.DOWNLOADED_FILES == ["*.json", "*.safetensors", "*.onnx", "*.md"]  # no code, no pickle


def test_what_the_hub_refuses_is_one_sentence_without_the_token(monkeypatch):
    def download(name, **options):
        raise OSError("no entry for Bearer hf_secret\nat all")

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError) as caught:
        load_pipeline("me/nothing")
    wanted = "checkpoint me/nothing is not a folder here, and the hub did not give it: no entry for Bearer ***"
    assert str(caught.value) == wanted
