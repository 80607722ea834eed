"""What the page restores is what the pipeline restores, at every strength; and how a run ends early."""

from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sample
from deblur.hub import SHIPPED, WAYS
from deblur.pipeline import Area
from deblur.restoration import options
from deblur.restoration.options import Options
from deblur.tools.web.restoration import PhotoRestorer
from deblur.tools.web.served import Served
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


@pytest.mark.parametrize("count", [1, 12])  # of two digits
def test_a_result_at_another_scale_is_the_pipeline_s_to_the_bit(page, visit, count):
    result = run(page, count=count, scale="0.6")
    assert_same(result, page.actions.restorer.pipeline, visit.shown.image.pixels, Area(0.6))
    assert result.facts["scale"] == "0.6"
    assert "restored at scale 0.6" in "; ".join(result.notes)


def test_the_scale_that_was_found_to_tell_the_time_is_not_looked_for_again(page, visit, tmp_path, monkeypatch):
    """But where a part is painted, which is where it is looked for then."""
    pipeline, calls = page.actions.restorer.pipeline, []
    monkeypatch.setattr(pipeline, "working_size", WorkingSize(largest_kept=30, smallest=10, region=0.6))
    opened(page, tmp_path / "a photo.jpg")
    hook = pipeline.predictor.register_forward_pre_hook(lambda *given: calls.append(1))
    brushed(tmp_path / "layer.png", 52, 40)
    found = []
    for mask in (None, None, layer(tmp_path / "layer.png")):
        calls.clear()
        found.append((run(page, mask=mask).scale, len(calls) == 1))
    hook.remove()
    scale = pipeline.working_scale(visit.shown.image.values[None])
    assert scale < 1
    assert found[:2] == [(scale, True)] * 2
    assert not found[2][1]


@pytest.mark.parametrize("level", [1e4, 0.5])
def test_a_sharp_upload_is_kept_as_the_pipeline_keeps_it_and_a_remark_says_so(page, visit, monkeypatch, level):
    pipeline, image = page.actions.restorer.pipeline, visit.shown.image
    settings = replace(pipeline.preset("balanced"), keep_sharp=level)
    monkeypatch.setattr(pipeline, "preset", lambda name: settings)
    result = run(page)
    assert_same(result, pipeline, image.pixels, Area())
    is_kept = level == 1e4
    assert torch.equal(result.image("restored"), image.values) == is_kept
    assert (list(result.notes) == ["looks sharp to this checkpoint and is kept; --restore all restores it"]) == is_kept
    assert bool(result.faults) != is_kept, "what is wrong stands apart from what is notable"


def test_what_is_still_blurred_is_said_on_the_page_too(page, visit):
    result = run(page, strength=0)
    result.settings = replace(result.settings, keep_sharp=0.0)
    result.check()
    assert "still blurred" not in "; ".join(result.notes)
    file = result.folder / "x_init.npy"
    shape = np.load(file).shape
    np.save(file, np.broadcast_to(np.linspace(-1, 1, shape[-1], dtype=np.float32), shape))
    result.check()
    assert "still blurred" in "; ".join(result.notes)


@pytest.mark.parametrize("scale", ["auto", "0.6"])
def test_what_is_painted_is_restored_as_a_mask_of_sample_py_says(page, visit, tmp_path, monkeypatch, scale):
    """On the photograph as it is shown, upright; the file of the download is the same to the byte."""
    settings, image = replace(PRESET, keep_sharp=1e4), visit.shown.image
    monkeypatch.setattr(page.actions.restorer.pipeline, "preset", lambda name: settings)
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
    flags = [f"--checkpoint={page.actions.restorer.name}", "--device=cpu", "--precision=fp32", *numbers]
    flags += [f"--mask={tmp_path / 'mask.png'}", f"--scale={scale}", f"--output={tmp_path / 'out'}"]
    assert sample.main([str(tmp_path / "a photo.jpg"), *flags]) == 0
    assert (tmp_path / "out" / "a photo.jpg").read_bytes() == file.read_bytes()


def test_where_nothing_is_painted_all_is_as_without_a_mask(page, visit, tmp_path):
    before = run(page).image("restored")
    Image.new("RGBA", (40, 52)).save(tmp_path / "layer.png")
    for mask in (layer(tmp_path / "layer.png"), {"background": None, "layers": [], "composite": None}, None):
        result = run(page, mask=mask)
        assert result.mask is None
        assert "mask" not in result.facts
        assert torch.equal(result.image("restored"), before)


def test_what_is_painted_on_a_reduced_copy_is_enlarged_for_the_photograph(page, visit, tmp_path, monkeypatch):
    monkeypatch.setattr("deblur.tools.web.actions.LARGEST_SMALL", 600)
    values = opened(page, tmp_path / "a photo.jpg")
    [canvas] = [value for value in values if isinstance(value, dict) and "background" in value]
    with Image.open(canvas["background"]) as shown:
        width, height = shown.size
    assert (width, height) == (21, 27), "upright, and of less than 600 pixels"
    brushed(tmp_path / "layer.png", height, width)
    result = run(page, mask=layer(tmp_path / "layer.png"))
    assert result.mask.shape == (52, 40)
    assert not result.mask[:, :16].any()
    assert (result.mask[:, 24:] > 1 - 1e-5).all()
    assert torch.equal(result.image("restored")[..., :16], visit.shown.image.values[..., :16])


@pytest.mark.parametrize("scale", [1.0, 0.6])
def test_a_cutout_is_restored_as_the_pipeline_does(page, visit, tmp_path, monkeypatch, scale):
    """What is hidden stays, and its colours change nothing else."""
    settings = replace(PRESET, keep_sharp=0.5)
    monkeypatch.setattr(page.actions.restorer.pipeline, "preset", lambda name: settings)
    array = np.random.default_rng(1).integers(0, 256, (40, 52, 4), np.uint8)
    array[..., 3] = 255 * (np.arange(52) > 20)
    Image.fromarray(array).save(tmp_path / "a photo.png")
    opened(page, tmp_path / "a photo.png")
    result = run(page, count=2, scale=f"{scale:g}")
    call = {"seed": 3, "names": ["a photo"], "area": Area(scale)}
    out = page.actions.restorer.pipeline(array, replace(result.settings, average=False), output_type="np", **call)
    for kind, image in zip(result.kinds, [*out.predictions, *out.images], strict=False):
        found = Path(page.actions.save(kind, REQUEST))
        assert np.array_equal(np.asarray(Image.open(found)), image), kind
        assert np.array_equal(image[:, :21], array[:, :21])
    assert torch.equal(result.std(), out.std[0])


def test_the_stages_of_a_preset_are_those_that_run(visit):
    """The preset fast of maxim has one of three, which the page has no field for."""
    restorer = PhotoRestorer(Options("", checkpoint="maxim", device="cpu", precision="fp32"), Served())
    pipeline, fast = restorer.pipeline, restorer.pipeline.preset("fast")
    assert fast.stages == 1
    visit.stop.clear()
    found = restorer.restore(visit, visit.shown, fast, 3).image("prediction")
    assert torch.equal(found, pipeline(visit.shown.image.pixels, "fast", output_type="pt").predictions[0])
    assert not torch.equal(found, pipeline.predict(visit.shown.image.values[None]).images[0])


@pytest.mark.commands
def test_the_best_way_is_the_one_that_sample_py_chooses_by_its_time(visit, tmp_path, monkeypatch):
    """The first that is quick enough; quick is the checkpoint after it, and none where it is the last."""
    longest = {way.checkpoint: way.longest for way in WAYS}
    (tmp_path / "visitors").mkdir()
    with serving(tmp_path / "visitors") as page:
        assert list(page.actions.restorers) == ["maxim", "swift", "lite", "text"]
        for best, quick in (("maxim", "swift"), ("swift", "lite"), ("lite", None)):
            longest |= dict.fromkeys(list(longest)[: list(longest).index(best)], 1e-9)
            monkeypatch.setattr(options, "WAYS", [way._replace(longest=longest[way.checkpoint]) for way in WAYS])
            opened(page, visit.shown.file)
            ways = page.actions.visits.of("somebody").ways
            assert (ways["Best"].restorer.name, ways["Best"].preset) == (best, "balanced")
            assert (ways["Quick"].restorer.name if "Quick" in ways else None) == quick
            assert ways["A page of text"].restorer.name == "text"
            assert all(way.seconds > 0 for way in ways.values())
            page.actions.leave(REQUEST)


def test_a_result_says_how_it_was_made(page, visit, monkeypatch):
    facts = run(page, "balanced").facts
    assert facts["seed"] == "3" and facts["device"] == "cpu, fp32"
    assert facts["tiles"] == "whole image" and len(facts["sha256"]) == 64
    assert facts["checkpoint"].endswith("licence not stated")
    assert "cc-by-sa-4.0" in PhotoRestorer(Options("", checkpoint=str(SHIPPED / "lite")), Served()).licence
    monkeypatch.setattr(page.actions.restorer.pipeline, "denoiser", None)
    assert run(page).kinds == ["prediction"]


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
            page.actions.restorer.restore(visit, visit.shown, PRESET, 0)
    finally:
        for hook in hooks:
            hook.remove()
    assert len(layers) == 3
    assert not page.calls
    assert not [path for path in visit.folder.iterdir() if path.is_dir()]


def test_beyond_time_or_memory_the_end_is_a_sentence_and_leaves_nothing(page, visit, tmp_path, monkeypatch):
    restorer = page.actions.restorer
    Image.new("RGB", (300, 300)).save(tmp_path / "large.png")
    opened(page, tmp_path / "large.png")
    visit.stop.clear()
    monkeypatch.setattr(restorer.options, "memory", 0.01)
    with pytest.raises(ValueError, match=r"large.png does not fit into --memory: give \d"):
        restorer.restore(visit, visit.shown, PRESET, 0)
    monkeypatch.setattr(restorer.options, "memory", None)
    monkeypatch.setattr(restorer, "served", Served(max_seconds=1e-9))
    with pytest.raises(ValueError, match=r"large\.png takes longer than the 1e-09 seconds that this page takes"):
        restorer.restore(visit, visit.shown, PRESET, 0)
    assert [path.name for path in visit.folder.iterdir()] == [visit.shown.file.name]
