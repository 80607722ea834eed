"""What the page restores is what the pipeline restores, at every strength; and how a run ends early."""

from concurrent.futures import CancelledError
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sample
from deblur.hub import WAYS, name_of
from deblur.pipeline import Area
from deblur.restoration import options
from deblur.restoration.restorer import Restorer
from deblur.tools.web.restoration import restore
from deblur.working_size import WorkingSize
from tests.web.conftest import PRESET, REQUEST, brushed, layer, opened, run, serving

pytestmark = pytest.mark.xdist_group("page")


def assert_same(result, pipeline, image, area, **numbers):
    """Every image of a result is the pipeline's, to the bit."""
    settings = replace(result.settings, average=False, **numbers)
    call = {"seed": 3, "names": ["a photo"], "output_type": "pt", "area": area}
    out = pipeline(image, settings, **call)
    assert torch.equal(result.image("prediction"), out.predictions[0])
    for kind, image_of_kind in zip(result.kinds[1:], out.images, strict=False):
        assert torch.equal(result.image(kind), image_of_kind), kind
    if len(result.kinds) > 2:
        mean = pipeline(image, replace(settings, average=True), **call).images[0]
        assert torch.equal(result.image(result.kinds[-1]), mean)
        assert torch.equal(result.std(), out.std[0])
    return out


def keep_sharp(page, monkeypatch, levels):
    presets = page.actions.restorer.pipeline.config.presets
    monkeypatch.setitem(presets, "balanced", presets["balanced"] | {"keep_sharp": levels})


@pytest.mark.parametrize("preset", [None, "perceptual"])
@pytest.mark.parametrize("numbers", [{}, {"strength": 0}, {"steps": 3}, {"sampler": "unipc"}, {"count": 3}])
def test_every_image_is_the_pipeline_s_to_the_bit_at_every_strength(page, visit, preset, numbers):
    """What is left out follows the preset, which is balanced."""
    result, names = run(page, preset, **numbers), {"strength": "blend", "count": "num_samples"}
    followed = {"blend": 0.8 if preset else 0.35, "eta": 0.0 if "sampler" in numbers else 1.0}
    settings = replace(PRESET, **followed | {names.get(name, name): value for name, value in numbers.items()})
    assert result.settings == settings
    for blend in (settings.blend, 0.0, 0.7):
        result.settings = replace(settings, blend=blend)
        assert_same(result, page.actions.restorer.pipeline, visit.shown.image.pixels, Area())


def test_a_result_at_another_scale_is_the_pipeline_s_to_the_bit(page, visit):
    result = run(page, count=12, scale="0.6")  # of two digits
    assert_same(result, page.actions.restorer.pipeline, visit.shown.image.pixels, Area(0.6))
    assert result.facts["scale"] == "0.6"
    assert "restored at scale 0.6" in "; ".join(result.notes)


def test_the_scale_that_was_found_to_tell_the_time_is_not_looked_for_again(page, visit, tmp_path, monkeypatch):
    """But where a part is painted, which is where it is looked for then."""
    pipeline, calls = page.actions.restorer.pipeline, []
    monkeypatch.setattr(pipeline, "working_size", WorkingSize(smallest=10, region=0.6))
    opened(page, tmp_path / "a photo.jpg")
    hook = pipeline.predictor.register_forward_pre_hook(lambda *given: calls.append(1))
    brushed(tmp_path / "layer.png", 52, 40)
    found = []
    for mask in (None, None, layer(tmp_path / "layer.png")):
        calls.clear()
        found.append((run(page, mask=mask).scale, len(calls) == 1))
    hook.remove()
    scale = pipeline.prepare(visit.shown.image.values[None]).scale
    assert scale < 1
    assert found[:2] == [(scale, True)] * 2
    assert not found[2][1]


@pytest.mark.parametrize("scale", ["auto", "0.6"])
def test_what_is_painted_is_restored_as_a_mask_of_sample_py_says(page, visit, tmp_path, monkeypatch, scale):
    """On the photograph as it is shown, upright; the file of the download is the same to the byte."""
    image = visit.shown.image
    keep_sharp(page, monkeypatch, 1e4)
    alpha = brushed(tmp_path / "layer.png", 52, 40)
    result = run(page, count=2, scale=scale, mask=layer(tmp_path / "layer.png"))
    mask = torch.from_numpy(alpha).float() / 255
    assert 0.4 < mask.mean() < 0.6
    area = Area(scale if scale == "auto" else float(scale), mask)
    out = assert_same(result, page.actions.restorer.pipeline, image.pixels, area)
    assert torch.equal(out.images[0][..., :20], image.values[..., :20])
    assert not torch.equal(out.images[0][..., 21:], image.values[..., 21:])
    assert result.facts["mask"] == f"{mask.mean():.0%} of the photograph painted"
    assert "looks" not in "; ".join(result.notes)
    Image.fromarray(alpha).save(tmp_path / "mask.png")
    result = run(page, scale=scale, mask=layer(tmp_path / "layer.png"))
    file = Path(page.actions.save("restored", REQUEST))
    numbers = ["--sampler=ddim", "--steps=2", "--eta=1", "--blend=0.35", "--keep_sharp=1e4", "--seed=3"]
    flags = [f"--checkpoint={page.checkpoint}", "--device=cpu", "--precision=fp32", *numbers]
    flags += [f"--mask={tmp_path / 'mask.png'}", f"--scale={scale}", f"--output={tmp_path / 'out'}"]
    assert sample.main([str(tmp_path / "a photo.jpg"), *flags]) == 0
    assert (tmp_path / "out" / "a photo.jpg").read_bytes() == file.read_bytes()


def test_where_nothing_is_painted_all_is_as_without_a_mask(page, visit, tmp_path):
    before = run(page).image("restored")
    Image.new("RGBA", (40, 52)).save(tmp_path / "layer.png")
    for mask in (layer(tmp_path / "layer.png"), {"background": None, "layers": [], "composite": None}, None):
        result = run(page, mask=mask)
        assert result.restorer.mask is None
        assert "mask" not in result.facts
        assert torch.equal(result.image("restored"), before)


def test_what_is_painted_on_a_reduced_copy_is_enlarged_for_the_photograph(page, visit, tmp_path, monkeypatch):
    monkeypatch.setattr("deblur.tools.web.actions.LARGEST_SMALL", 600)
    values = opened(page, tmp_path / "a photo.jpg")
    with Image.open(values[page.ui.mask]["background"]) as shown:
        width, height = shown.size
    assert (width, height) == (21, 28), "upright, and of about 600 pixels"
    brushed(tmp_path / "layer.png", height, width)
    result = run(page, mask=layer(tmp_path / "layer.png"))
    assert result.restorer.mask.shape == (52, 40)
    assert not result.restorer.mask[:, :16].any()
    assert (result.restorer.mask[:, 24:] > 1 - 1e-5).all()
    assert torch.equal(result.image("restored")[..., :16], visit.shown.image.values[..., :16])


def test_a_cutout_is_restored_as_the_pipeline_does(page, visit, tmp_path, monkeypatch):
    """What is hidden stays, and its colours change nothing else."""
    keep_sharp(page, monkeypatch, 0.5)
    array = np.random.default_rng(1).integers(0, 256, (40, 52, 4), np.uint8)
    array[..., 3] = 255 * (np.arange(52) > 20)
    Image.fromarray(array).save(tmp_path / "a photo.png")
    opened(page, tmp_path / "a photo.png")
    result = run(page, count=2, scale="0.6")
    call = {"seed": 3, "names": ["a photo"], "area": Area(0.6)}
    out = page.actions.restorer.pipeline(array, replace(result.settings, average=False), output_type="np", **call)
    for kind, image in zip(result.kinds, [*out.predictions, *out.images], strict=False):
        found = Path(page.actions.save(kind, REQUEST))
        assert np.array_equal(np.asarray(Image.open(found)), image), kind
        assert np.array_equal(image[:, :21], array[:, :21])
    assert torch.equal(result.std(), out.std[0])


@pytest.mark.commands
def test_the_best_way_is_the_one_that_sample_py_chooses_by_its_time(visit, tmp_path, monkeypatch):
    """The first that is quick enough; quick is the checkpoint after it, or the same where it is the last."""
    monkeypatch.setattr("deblur.tools.web.actions.WORTH_A_PREVIEW", 0.0)
    longest = {way.checkpoint: way.longest for way in WAYS}
    (tmp_path / "visitors").mkdir()
    with serving(tmp_path / "visitors") as page:
        assert list(map(name_of, page.actions.restorers)) == [
            f"pretrained/{n}" for n in ("maxim", "swift", "lite", "text")
        ]
        for best, quick in (("maxim", "swift"), ("swift", "lite"), ("lite", "lite")):
            longest |= dict.fromkeys(list(longest)[: list(longest).index(best)], 1e-9)
            monkeypatch.setattr(options, "WAYS", [way._replace(longest=longest[way.checkpoint]) for way in WAYS])
            opened(page, visit.shown.file)
            ways = page.actions.visits.of("somebody").ways
            found = {word: Path(way.restorer.options.checkpoint).name for word, way in ways.items()}
            assert found == {"Best": best, "Quick": quick, "A page of text": "text"}
            assert ways["Best"].restorer.options.preset == "balanced"
            assert all(way.seconds > 0 for way in ways.values())
            if best != "maxim":  # which takes long
                run = page.actions.restore("Best", None, None, None, None, None, 0, "auto", None, REQUEST)
                assert sum(page.actions.ui.facts in changes for changes in run) == len({best, quick})
            page.actions.leave(REQUEST)


def test_a_result_says_how_it_was_made_what_is_notable_and_what_is_wrong(page, visit, monkeypatch):
    result = run(page, "balanced")
    assert (result.facts["seed"], result.facts["device"], result.facts["tiles"]) == ("3", "cpu, fp32", "whole image")
    assert len(result.facts["sha256"]) == 64
    assert not result.notes
    assert result.faults
    keep_sharp(page, monkeypatch, 1e4)
    result = run(page)
    assert list(result.notes) == ["looks sharp to this checkpoint and is kept; --restore all restores it"]
    assert not result.faults
    monkeypatch.setattr(page.actions.restorer.pipeline, "denoiser", None)
    assert run(page).kinds == ["prediction"]


def own_restorer(page):
    """A restorer that a test may change."""
    restorer = page.actions.restorer
    return Restorer(replace(restorer.options), {}, restorer)


def test_cancelling_leaves_nothing_and_no_further_layer_runs(page, visit):
    """Also within the predictor, which takes most of the time of a large one."""
    pipeline, layers = page.actions.restorer.pipeline, []

    def enter(*given):
        layers.append(1)
        if len(layers) == 3:
            visit.stop.set()

    leaves = [layer for layer in pipeline.predictor.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(enter) for layer in leaves]
    page.calls.clear()
    visit.stop.clear()
    try:
        with pytest.raises(CancelledError):
            restore(own_restorer(page), visit, visit.shown, inf)
    finally:
        for hook in hooks:
            hook.remove()
    assert len(layers) == 3
    assert not page.calls
    assert [*visit.folder.rglob("*.*")] == [visit.shown.file]


def test_beyond_time_or_memory_the_end_is_a_sentence_and_leaves_nothing(page, visit, tmp_path):
    Image.new("RGB", (300, 300)).save(tmp_path / "large.png")
    opened(page, tmp_path / "large.png")
    visit.stop.clear()
    with pytest.raises(ValueError, match=r"^large\.png takes longer than the 1e-09 seconds that this page takes"):
        restore(own_restorer(page), visit, visit.shown, 1e-9)
    limited = own_restorer(page)
    limited.options.memory = 0.01
    with pytest.raises(ValueError, match=r"^large\.png does not fit into --memory: give \d"):
        restore(limited, visit, visit.shown, inf)
    assert [*visit.folder.rglob("*.*")] == [visit.shown.file]
