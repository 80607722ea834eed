import shutil

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from safetensors.torch import load_file, save_file

from base.files import FolderInUse
from models.checkpoints import load_pipeline
from models.export import export
from models.index import CheckpointError
from models.lightning_module import PredictAndRefine
from models.optimizer import Optimizer
from models.unet import Denoiser, UNetPredictor
from tests.models.test_checkpoints import WEIGHTS, sentence
from tests.tiny import fit, tiny_pipeline


@pytest.fixture
def folder(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder whose last.ckpt has averaged and raw weights."""
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    model = PredictAndRefine(
        UNetPredictor(8, (1, 2), 1), Denoiser(8, (1, 2), 1), optimizer=Optimizer(lr=1e-2, warmup_steps=1)
    )
    saver = ModelCheckpoint(dirpath=folder / "checkpoints", every_n_train_steps=4, save_last=True)
    fit(model, folder, 4, [EMAWeightAveraging(decay=0.9), saver])
    return folder


@pytest.mark.filterwarnings("ignore")
def test_export_takes_the_averaged_weights(run, tmp_path):
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    averaged, raw = checkpoint["state_dict"], checkpoint["current_model_state"]
    export(str(run), str(tmp_path / "ema"), "fp32")
    pipeline = load_pipeline(str(tmp_path / "ema"), precision="fp32")
    for part in ("predictor", "denoiser"):
        for key, value in getattr(pipeline, part).state_dict().items():
            assert torch.equal(value, averaged[f"{part}.{key}"])
    assert pipeline.config.residual_scale == pytest.approx(averaged["residual_square"].sqrt().item())
    assert any(not torch.equal(value, raw[key]) for key, value in averaged.items())
    with pytest.raises(FolderInUse, match="not an empty folder"):
        export(str(run), str(tmp_path / "ema"))


def test_runs_are_averaged_weight_by_weight(tmp_path):
    sources = []
    for k, scale in enumerate((0.1, 0.2, 0.6)):
        pipeline = tiny_pipeline(residual_scale=scale)
        for part in (pipeline.predictor, pipeline.denoiser):
            for parameter in part.parameters():
                parameter.data.fill_(k**2)
        sources.append(str(tmp_path / f"{k}"))
        pipeline.save_pretrained(sources[-1])
    export(sources[0], str(tmp_path / "mean"), dtype="fp32", average_with=",".join(sources[1:]))
    found = load_pipeline(str(tmp_path / "mean"), precision="fp32")
    for part in (found.predictor, found.denoiser):
        assert all(torch.allclose(parameter, torch.tensor(5 / 3)) for parameter in part.parameters())
    assert found.config.residual_scale == pytest.approx(0.3)
    tiny_pipeline(UNetPredictor(4, (1, 2), 1)).save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="other has other networks"):
        export(sources[0], str(tmp_path / "never"), average_with=str(tmp_path / "other"))
    assert not (tmp_path / "never").exists()


@pytest.mark.filterwarnings("ignore")
def test_fp16_weights_load_as_float32(run, tmp_path):
    export(str(run / "checkpoints" / "last.ckpt"), str(tmp_path / "small"))
    file = tmp_path / "small" / "predictor" / WEIGHTS
    assert {value.dtype for value in load_file(file).values()} == {torch.float16}
    small = load_pipeline(str(tmp_path / "small"), precision="fp32")
    whole = load_pipeline(str(run / "checkpoints" / "last.ckpt"), precision="fp32")
    blurry = torch.rand(1, 3, 16, 16)
    assert {p.dtype for p in small.predictor.parameters()} == {torch.float32}
    assert 0 < (small.predict(blurry).images - whole.predict(blurry).images).abs().max() < 1e-2
    shutil.copyfile(file, file.with_name("other.safetensors"))
    assert "several weight files" in sentence(tmp_path / "small")


def test_values_too_large_for_fp16_are_refused(folder, tmp_path):
    state = load_file(folder / "denoiser" / WEIGHTS)
    state["unet.head.bias"] += 1e6
    save_file(state, folder / "denoiser" / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"denoiser's unet\.head\.bias .* not finite in fp16"):
        export(str(folder), str(tmp_path / "small"))
    assert sorted(tmp_path.iterdir()) == [folder]
    export(str(folder), str(tmp_path / "small"), dtype="bf16")
