import json

import pytest
import torch
from torch import nn

from models.checkpoints import describe, load_pipeline
from models.lightning_module import PredictAndRefine
from models.optimizer import Optimizer
from models.settings import SamplingSettings
from models.spandrel_predictor import SpandrelPredictor
from models.unet import Denoiser
from models.weights import CheckpointError
from tests.tiny import fit, tiny_pipeline

spandrel = pytest.importorskip("spandrel")


@pytest.fixture
def file(tmp_path):
    """A published network as its authors save it: NAFNet's state dict under "params"."""
    from spandrel.architectures.NAFNet import NAFNet

    torch.manual_seed(0)
    network = NAFNet(width=4, middle_blk_num=1, enc_blk_nums=[1, 1], dec_blk_nums=[1, 1])
    for name, parameter in network.named_parameters():
        if name.endswith(("beta", "gamma")):  # zero at first: the blocks would do nothing
            nn.init.normal_(parameter, std=0.3)
    torch.save({"params": network.state_dict()}, tmp_path / "nafnet.pth")
    return tmp_path / "nafnet.pth"


def world(prediction):
    """The estimates in [0, 1], not clipped."""
    return (prediction.x_init + 1) / 2


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (37, 21)])
def test_a_spandrel_network_predicts_what_spandrel_gives(file, width, height):
    image = torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(1))
    alone = spandrel.ModelLoader().load_from_file(file)(image)
    assert (alone - image).abs().mean() > 0.01
    pipeline = tiny_pipeline(SpandrelPredictor(path=str(file)))
    assert (world(pipeline.predict(image, tile=2048)) - alone).abs().max() < 1e-5
    if width < 1000:
        both = torch.cat([image, image.flip(-1)])
        assert (world(pipeline.predict(both))[:1] - alone).abs().max() < 1e-5


def test_large_images_go_in_blended_tiles(file):
    predictor = SpandrelPredictor(path=str(file))
    assert (predictor.receptive_field, predictor.stride) == (None, 1)
    image = torch.rand(1, 3, 150, 200)
    tiles, whole = (world(tiny_pipeline(predictor).predict(image, tile=tile)) for tile in (64, 1024))
    assert 0 < (tiles - whole).abs().mean() < 0.02


def test_a_folder_reloads_without_the_published_file(file, tmp_path):
    saved = tiny_pipeline(SpandrelPredictor(path=str(file)))
    saved.save_pretrained(tmp_path / "checkpoint")
    file.unlink()
    config = json.loads((tmp_path / "checkpoint" / "predictor" / "config.json").read_text())
    assert {key: value for key, value in config.items() if key[0] != "_"} == {"architecture": "NAFNet"}
    suffixes = {f.suffix for f in (tmp_path / "checkpoint").rglob("*") if f.is_file()}
    assert suffixes == {".json", ".safetensors"}
    image, settings = torch.rand(1, 3, 21, 30), SamplingSettings(steps=2)
    ours = load_pipeline(str(tmp_path / "checkpoint"), precision="fp32")
    images = [pipeline(image, settings, output_type="pt").images for pipeline in (ours, saved)]
    assert torch.allclose(*images, atol=1e-4) and isinstance(ours.predictor, SpandrelPredictor)
    bf16 = load_pipeline(str(tmp_path / "checkpoint"), precision="bf16")
    assert next(bf16.predictor.parameters()).dtype == torch.bfloat16
    assert 0 < (bf16(image, settings, output_type="pt").images - images[0]).abs().mean() < 0.01


@pytest.mark.filterwarnings("ignore")
def test_refinement_trains_on_top_and_leaves_it_frozen(file, tmp_path):
    predictor = SpandrelPredictor(path=str(file))
    before = {key: value.clone() for key, value in predictor.state_dict().items()}
    torch.manual_seed(0)
    model = PredictAndRefine(
        predictor, Denoiser(4, (1, 2), 1, embedding_channels=8), optimizer=Optimizer(warmup_steps=2)
    )
    trainer = fit(model, tmp_path, 2)
    after = model.predictor.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    file.unlink()
    loaded = load_pipeline(str(tmp_path / "one.ckpt"), precision="fp32")
    assert describe(loaded)["predictor"] == {"class": "SpandrelPredictor", "config": {"architecture": "NAFNet"}}
    image = torch.rand(1, 3, 16, 16)
    assert torch.allclose(loaded.predict(image).x_init, model.pipeline().predict(image).x_init, atol=1e-6)
    again = PredictAndRefine(loaded.predictor, Denoiser(4, (1, 2), 1, embedding_channels=8))
    assert not again.predictor.train().training


def test_faults_are_one_sentence(file, tmp_path):
    def sentence(error=ValueError, **arguments):
        with pytest.raises(error) as caught:
            SpandrelPredictor(**arguments)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "needs path" in sentence()
    assert "missing.pth does not exist" in sentence(CheckpointError, path=str(tmp_path / "missing.pth"))
    torch.save({"weight": torch.zeros(2, 3)}, tmp_path / "other.pth")
    assert "no architecture that spandrel knows (its first key is weight (2, 3))" in sentence(
        path=str(tmp_path / "other.pth")
    )
    state = torch.load(file)["params"]
    torch.save(state | {"ending.weight": torch.zeros(3, 5, 3, 3)}, tmp_path / "odd.pth")
    assert "ending.weight" in sentence(path=str(tmp_path / "odd.pth"))
    assert "Nix, which the spandrel installed here lacks" in sentence(architecture="Nix", weights=state)
    (tmp_path / "words.pth").write_bytes(b"no weights")
    assert "was not loaded" in sentence(CheckpointError, path=str(tmp_path / "words.pth"))
