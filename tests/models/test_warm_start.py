import pytest
import torch
from safetensors.torch import load_file

from models.u2net import U2NetPredictor
from models.unet import Denoiser, UNetPredictor
from models.warm_start import copy_weights
from models.weights import CheckpointError
from tests.models.test_checkpoints import WEIGHTS
from tests.tiny import tiny_pipeline


def test_weights_are_copied_for_staged_training(tmp_path):
    folder = tmp_path / "checkpoint"
    tiny_pipeline().save_pretrained(folder)
    predictor, denoiser = UNetPredictor(8, (1, 2), 1), Denoiser(8, (1, 2), 1)
    copy_weights(str(folder), predictor, denoiser)
    state = load_file(folder / "predictor" / WEIGHTS)
    assert all(torch.equal(value, state[key]) for key, value in predictor.state_dict().items())
    with pytest.raises(CheckpointError, match=r"unet\.down\.0\.conv1\.bias has shape \(8,\), expected \(16,\)"):
        copy_weights(str(folder), UNetPredictor(16, (1, 2), 1))


# The stages of the official U2NET and U2NETP (model/u2net.py of xuebinqin/U-2-Net): kind, in, mid, out channels.
FULL = {
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
}
LITE = {stage: (kind, 128 if stage.endswith("d") else 64, 16, 64) for stage, (kind, *_) in FULL.items()}
OFFICIAL = {"full": FULL, "lite": LITE | {"stage1": ("RSU7", 3, 16, 64)}}
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
    assert "lacks stage1.rebnconv1.bn_s1.bias (16,)" in refused(lite, {"weight": torch.zeros(1)})
    assert "norm batch" in refused(U2NetPredictor("lite", norm="none"), state)
    assert "U2NetPredictor" in refused(UNetPredictor(8, (1, 2), 1), state)
    assert "holds no weights" in refused(lite, {"epoch": 3})
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=r"bias has shape \(16,\), expected \(32,\)"):
        copy_weights(str(path), U2NetPredictor("full"))
