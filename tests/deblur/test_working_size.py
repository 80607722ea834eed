"""The scale at which a photograph is restored, and what a change at that scale leaves of it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import sample
from deblur.checkpoints import CheckpointError, update_index
from deblur.models.networks.unet import UNetPredictor
from deblur.pipeline import Area, load_pipeline
from deblur.settings import SamplingSettings
from deblur.working_size import (
    WorkingSize,
    chosen_scale,
    detailed_regions,
    reduced,
    resized,
    with_change,
)
from tests.tiny import tiny_pipeline

RULE = WorkingSize(scales=(1.0, 0.5, 0.25, 0.125), smallest=20, region=0.25, context=0)


def noise(height, width):
    return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(0))


def changing(sizes):
    """A predictor that changes the regions of an image of 200 x 400 pixels by these sizes, by their height."""
    seen = []

    def change(region):
        seen.append(tuple(region.shape[-2:]))
        return torch.full_like(region, sizes[region.shape[-2]])

    return change, seen


@pytest.mark.parametrize(
    ("sizes", "scale"),
    [
        ({50: 0.4, 25: 0.3, 12: 0.2, 6: 0.0}, 1.0),
        ({50: 0.37, 25: 0.4, 12: 0.1, 6: 0.0}, 1.0),
        ({50: 0.35, 25: 0.4, 12: 0.4, 6: 0.1}, 0.5),
        ({50: 0.1, 25: 0.2, 12: 0.3, 6: 0.4}, 0.125),
        ({50: 0.0, 25: 0.0, 12: 0.0, 6: 0.0}, 1.0),
    ],
)
def test_an_image_is_restored_at_the_finest_scale_whose_change_is_nearly_the_largest(sizes, scale):
    change, seen = changing(sizes)
    assert chosen_scale(noise(200, 400), change, RULE) == scale
    assert [height for height, _ in seen] == [side for side in (50, 25, 12, 6) for _ in range(2)]


@pytest.mark.parametrize(
    ("context", "seen", "scale"), [(0, [(50, 100), (25, 50)], 0.5), (200, [(200, 200), (100, 200)], 1.0)]
)
def test_the_predictor_sees_a_region_with_what_is_around_it_which_does_not_count(context, seen, scale):
    image = torch.full((1, 3, 200, 400), 0.5)
    image[..., 75:125, 150:250] = noise(50, 100)
    sizes = []

    def change(region):
        """A frame that is stronger in smaller copies."""
        height, width = region.shape[-2:]
        sizes.append((height, width))
        changed = torch.full_like(region, 1 / height)
        changed[..., height // 5 : -height // 5, width // 5 : -width // 5] = 0
        return changed

    rule = replace(RULE, scales=(1.0, 0.5), regions=1, context=context)
    assert chosen_scale(image, change, rule) == scale
    assert sizes == seen


@pytest.mark.parametrize("is_blurred", [lambda region: region.mean() > 0.5, lambda region: region.mean() < 0.5])
def test_the_changes_of_all_regions_count_whichever_is_blurred(is_blurred):
    image, sizes = 0.5 * noise(200, 400), {50: 0.1, 25: 0.2, 12: 0.3, 6: 0.4}
    image[..., 200:] += 0.5

    def change(region):
        return torch.full_like(region, sizes[region.shape[-2]] if is_blurred(region) else 0.0)

    assert chosen_scale(image, change, RULE) == 0.125


def test_a_small_image_is_not_measured():
    change, seen = changing({})
    assert chosen_scale(noise(20, 30), change, RULE) == 1
    assert not seen


@pytest.mark.parametrize("shape", [(1, 400), (400, 1), (2, 4000), (4000, 2)])
def test_a_line_of_pixels_has_no_regions_to_measure(shape):
    change, seen = changing({})
    assert chosen_scale(noise(*shape), change, RULE) == 1
    assert not seen


def test_the_longer_side_says_which_scales_are_possible():
    rule = WorkingSize(**vars(RULE) | {"smallest": 100})
    for longer, scales in ((100, [1.0]), (400, [1.0, 0.5, 0.25])):
        assert rule.possible_scales(longer, 60) == rule.possible_scales(60, longer) == scales


def test_the_regions_are_those_of_most_detail_where_the_image_counts():
    image = torch.full((1, 3, 400, 400), 0.5)
    image[..., :120, :120] = noise(120, 120)
    image[..., 300:, 300:] = 0.5 + 0.5 * (noise(100, 100) - 0.5)
    rows, columns = detailed_regions(image, RULE)[0]
    assert rows.start < 120
    assert columns.start < 120
    weight = torch.zeros(1, 1, 400, 400)
    weight[..., 250:, 250:] = 1
    for rows, columns in detailed_regions(image, RULE, weight):
        assert rows.stop > 250
        assert columns.stop > 250
    assert detailed_regions(torch.ones(1, 3, 200, 400), RULE) == []


def test_what_is_not_changed_stays_to_the_last_bit():
    image = noise(90, 130)
    small = reduced(image, 0.4)
    assert torch.equal(with_change(image, small, small.clone()), image)
    restored = small.clone()
    restored[..., :18] = 0
    result = with_change(image, small, restored)
    assert torch.equal(result[..., 60:], image[..., 60:])
    assert not torch.equal(result[..., :30], image[..., :30])


def test_a_pipeline_adds_the_enlarged_change_of_the_reduced_image():
    pipeline, image = tiny_pipeline(), noise(64, 96)
    settings = SamplingSettings(steps=2, num_samples=2)
    small = reduced(image, 0.5)
    half = pipeline(image, settings, output_type="pt", area=Area(0.5))
    own = pipeline(small, settings, output_type="pt")
    assert half.scale == 0.5
    assert torch.equal(half.images, with_change(image, small, own.images))
    assert half.predictions.shape == half.std.shape == image.shape
    assert pipeline(image, settings, output_type="pt").scale == 1, "a checkpoint without the rule"


@pytest.mark.parametrize("blend", [0.0, 1.0])
def test_every_map_of_a_reduced_image_has_the_size_of_the_image(blend):
    pipeline, image = tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True)), noise(64, 96)
    settings = SamplingSettings(steps=1, num_samples=2, blend=blend)
    half = pipeline(image, settings, output_type="pt", area=Area(0.5))
    small = pipeline(reduced(image, 0.5), settings, output_type="pt")
    for name in ("expected_error", "std", "share"):
        there, wanted = getattr(half, name), getattr(small, name)
        if wanted.numel() > 1:  # a share of one number is that of all pixels
            wanted = resized(wanted, 64, 96).clamp_min(0)
        torch.testing.assert_close(there, wanted, atol=1e-6, rtol=0)


def test_images_in_a_batch_get_their_own_changes():
    pipeline, settings = tiny_pipeline(), SamplingSettings(steps=2, num_samples=3)
    both = torch.stack([noise(64, 96)[0], noise(64, 96)[0].flip(1)])
    out = pipeline(both, settings, names=["a", "b"], output_type="pt", area=Area(0.5))
    for at, name in enumerate(("a", "b")):
        alone = pipeline(both[at : at + 1], settings, names=[name], output_type="pt", area=Area(0.5))
        torch.testing.assert_close(out.images[3 * at : 3 * at + 3], alone.images, atol=1e-4, rtol=0)
        torch.testing.assert_close(out.predictions[at], alone.predictions[0], atol=1e-4, rtol=0)


def test_a_checkpoint_stores_its_rule_and_a_wrong_one_is_refused(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path)
    rule = {"scales": [1.0, 0.5], "nearly_largest": 1.0, "smallest": 30, "regions": 1}
    update_index(tmp_path, working_size=rule)
    pipeline = load_pipeline(str(tmp_path))
    assert vars(pipeline.working_size) == vars(WorkingSize()) | rule
    assert pipeline(noise(64, 96), output_type="pt").scale == 0.5
    assert pipeline(noise(40, 50), output_type="pt").scale == 1
    for wrong in ({"scales": [0.5, 1]}, {"unknown": 1}, {"nearly_largest": 2}):
        update_index(tmp_path, working_size=wrong)
        with pytest.raises(CheckpointError, match="working_size that is none"):
            load_pipeline(str(tmp_path))


def test_a_checkpoint_with_the_earlier_rule_gets_the_present_one(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path)
    update_index(tmp_path, working_size={"above": 3.0, "vanished": 0.7, "stages": 1})
    assert load_pipeline(str(tmp_path)).working_size == WorkingSize(stages=1)


@pytest.mark.parametrize("scale", [0, 1.5, -1])
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(ValueError, match="scale must be auto, or above 0 and at most 1"):
        tiny_pipeline()(noise(8, 8), area=Area(scale))


def test_a_mask_says_what_is_restored_at_any_scale():
    pipeline, image = tiny_pipeline(), noise(64, 96)
    mask = torch.zeros(64, 96)
    mask[:, 48:] = 1
    settings = SamplingSettings(steps=2, keep_sharp=1e4)
    for scale in (1, 0.5):
        out = pipeline(image, settings, output_type="pt", area=Area(scale, mask))
        assert torch.equal(out.images[..., :48], image[..., :48])
        assert not torch.equal(out.images[..., 48:], image[..., 48:])
        assert out.share.mean() == 0.5
    with pytest.raises(ValueError, match="the mask is"):
        pipeline(image, area=Area(mask=mask[:5]))


def half_of_detail():
    """An image whose left has detail, and a mask of its right, which has none."""
    image = torch.full((1, 3, 64, 96), 0.5)
    image[..., :40] = noise(64, 40)
    mask = torch.zeros(64, 96)
    mask[:, 60:] = 1
    return image, mask


def measuring():
    """A pipeline that measures the scale of all but the smallest images."""
    pipeline = tiny_pipeline()
    pipeline.working_size = WorkingSize(scales=(1.0, 0.5), nearly_largest=1.0, smallest=10)
    return pipeline


def test_the_scale_is_measured_where_the_image_counts():
    pipeline, (image, mask) = measuring(), half_of_detail()
    assert pipeline.prepare(image).scale == 0.5
    assert pipeline.prepare(image, Area(mask=mask)).scale == 1
    assert pipeline.prepare(image, Area(mask=1 - mask)).scale == 0.5
    assert pipeline.prepare(image, Area(visible=mask[None, None] > 0)).scale == 1
    assert pipeline(image, output_type="pt").scale == 0.5
    assert pipeline(image, output_type="pt", area=Area(mask=mask)).scale == 1
    assert pipeline(image, output_type="pt", area=Area(visible=mask[None, None] > 0)).scale == 1


def test_of_several_images_the_finest_scale_counts():
    pipeline, (image, _) = measuring(), half_of_detail()
    both = torch.cat([image, torch.full_like(image, 0.5)])
    assert pipeline.prepare(both).scale == 1
    assert pipeline.prepare(both[:1]).scale == 0.5


@pytest.mark.parametrize("how", ["alpha", "mask"])
def test_sample_py_measures_the_scale_where_the_image_counts(tmp_path, capsys, how):
    image, mask = half_of_detail()
    measuring().save_pretrained(tmp_path / "checkpoint")
    rule = {"scales": [1.0, 0.5], "nearly_largest": 1.0, "smallest": 10}
    update_index(tmp_path / "checkpoint", working_size=rule)
    flags = ["--checkpoint", str(tmp_path / "checkpoint"), "--device", "cpu", "--steps", "1", "--scale", "auto"]
    pixels = (255 * image[0]).byte().permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(tmp_path / "a.png")
    if how == "alpha":
        Image.fromarray(np.dstack([pixels, 255 * mask.byte().numpy()])).save(tmp_path / "b.png")
    else:
        Image.fromarray(pixels).save(tmp_path / "b.png")
        Image.fromarray(255 * mask.byte().numpy()).save(tmp_path / "mask.png")
    scales = []
    for name, more in (("a", []), ("b", ["--mask", str(tmp_path / "mask.png")] if how == "mask" else [])):
        assert sample.main([str(tmp_path / f"{name}.png"), "--output", str(tmp_path / name), *flags, *more]) == 0
        [entry] = json.loads((tmp_path / name / "manifest.json").read_text()).values()
        scales.append(entry["working_scale"])
        assert ("restored at scale 0.5" in "".join(capsys.readouterr())) == (name == "a")
    assert scales == [0.5, 1.0]
