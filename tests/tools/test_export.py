"""Runs and checkpoints that are exported as a folder: averaged weights, their mean, and smaller numbers."""

import shutil

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from safetensors.torch import load_file, save_file

from deblur.checkpoints import update_index
from deblur.hub import CheckpointError
from deblur.models.networks.unet import UNetPredictor
from deblur.pipeline import load_pipeline
from deblur.storage import FolderInUse
from deblur.tools.export import export_checkpoint
from tests.tiny import fit, module, tiny_pipeline

pytestmark = pytest.mark.filterwarnings("ignore")
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder whose last.ckpt has averaged and raw weights."""
    folder = tmp_path_factory.mktemp("run")
    saver = ModelCheckpoint(dirpath=folder / "checkpoints", every_n_train_steps=4, save_last=True)
    fit(module(), folder, 4, [EMAWeightAveraging(decay=0.9), saver])
    return folder


def test_export_takes_the_averaged_weights(run, tmp_path):
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    averaged, raw = checkpoint["state_dict"], checkpoint["current_model_state"]
    export_checkpoint(str(run), str(tmp_path / "ema"), "fp32")
    pipeline = load_pipeline(str(tmp_path / "ema"), precision="fp32")
    for part in ("predictor", "denoiser"):
        for key, value in getattr(pipeline, part).state_dict().items():
            assert torch.equal(value, averaged[f"{part}.{key}"])
    running_mean = raw["residual_square"]
    assert pipeline.config.residual_scale == pytest.approx(running_mean.sqrt().item())
    assert any(not torch.equal(value, raw[key]) for key, value in averaged.items())
    with pytest.raises(FolderInUse, match="not an empty folder"):
        export_checkpoint(str(run), str(tmp_path / "ema"))


def test_runs_are_averaged_weight_by_weight(tmp_path):
    sources = []
    for k, scale in enumerate((0.1, 0.2, 0.6)):
        pipeline = tiny_pipeline(residual_scale=scale)
        for part in (pipeline.predictor, pipeline.denoiser):
            for parameter in part.parameters():
                parameter.data.fill_(k**2)
        sources.append(str(tmp_path / f"{k}"))
        pipeline.save_pretrained(sources[-1])
    update_index(tmp_path / "1", working_size={"smallest": 300})  # of a run that began with another checkpoint
    export_checkpoint(sources[0], str(tmp_path / "mean"), dtype="fp32", average_with=",".join(sources[1:]))
    found = load_pipeline(str(tmp_path / "mean"), precision="fp32")
    for part in (found.predictor, found.denoiser):
        assert all(torch.allclose(parameter, torch.tensor(5 / 3)) for parameter in part.parameters())
    assert found.config.residual_scale == pytest.approx(0.3)
    tiny_pipeline(UNetPredictor(4, (1, 2), 1)).save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="other has other networks"):
        export_checkpoint(sources[0], str(tmp_path / "never"), average_with=str(tmp_path / "other"))
    assert not (tmp_path / "never").exists()


def test_fp16_weights_load_as_float32(run, tmp_path):
    export_checkpoint(str(run / "checkpoints" / "last.ckpt"), str(tmp_path / "small"))
    file = tmp_path / "small" / "predictor" / WEIGHTS
    assert {value.dtype for value in load_file(file).values()} == {torch.float16}
    small = load_pipeline(str(tmp_path / "small"), precision="fp32")
    whole = load_pipeline(str(run / "checkpoints" / "last.ckpt"), precision="fp32")
    blurry = torch.rand(1, 3, 16, 16)
    assert {p.dtype for p in small.predictor.parameters()} == {torch.float32}
    assert 0 < (small.predict(blurry).images - whole.predict(blurry).images).abs().max() < 1e-2
    shutil.copyfile(file, file.with_name("other.safetensors"))
    with pytest.raises(CheckpointError, match="several weight files"):
        load_pipeline(str(tmp_path / "small"))


def test_values_too_large_for_fp16_are_refused(tmp_path):
    folder = tmp_path / "checkpoint"
    tiny_pipeline().save_pretrained(folder)
    state = load_file(folder / "denoiser" / WEIGHTS)
    state["unet.head.bias"] += 1e6
    save_file(state, folder / "denoiser" / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"denoiser's unet\.head\.bias .* not finite in fp16"):
        export_checkpoint(str(folder), str(tmp_path / "small"))
    assert sorted(tmp_path.iterdir()) == [folder]
    export_checkpoint(str(folder), str(tmp_path / "small"), dtype="bf16")
