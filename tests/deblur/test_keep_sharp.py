"""Sharp images stay as they are, by how much the predictor changes them; what is wrong with a sample."""

import math

import pytest
import torch
from torch.nn.functional import pad
from torchvision.transforms.functional import gaussian_blur

from deblur.draft import Blurry, Draft, Prediction, kept
from deblur.keep_sharp import restored_amount, restored_share
from deblur.settings import SamplingSettings, sharing_samples
from tests.tiny import tiny_pipeline


def noise(height, width, seed=0):
    return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(seed))


def blurred(image):
    return gaussian_blur(image, 13, 3.0)


def shaken(image):
    return gaussian_blur(image, [31, 1], [8.0, 0.01])


def predicted(image):
    """What a predictor that knows the sharp image returns."""
    return 2 * image - 1


def test_a_blurred_region_is_restored_and_a_sharp_one_stays_to_the_last_bit():
    sharp = noise(256, 512)
    blurry = torch.cat([shaken(sharp)[..., :256], sharp[..., 256:]], dim=3)
    share = restored_share(blurry, predicted(sharp), 2.5)
    assert share.shape == (1, 1, 256, 512)
    assert (share[..., :160] == 1).all()
    assert (share[..., 352:] == 0).all()
    assert share.diff(dim=3).abs().max() < 0.1, "no edge is seen"
    result = kept(sharp.clone(), blurry, share)
    assert torch.equal(result[..., 352:], blurry[..., 352:])
    assert torch.equal(result[..., :160], sharp[..., :160])


def test_a_change_below_the_detail_that_is_there_is_none_that_blur_needs():
    """A network that was never shown letters repaints them: by much less than they have."""
    sharp = noise(128, 128).round()
    assert not restored_share(sharp, predicted(sharp + 0.05 * (noise(128, 128, 1) - 0.5)), 2.5).any()


def test_keep_sharp_is_added_to_the_detail_and_0_restores_all():
    blurry = blurred(noise(128, 128))
    x_init = predicted(noise(128, 128))
    means = [restored_share(blurry, x_init, level).mean() for level in (1.0, 120.0, 160.0, 1000.0)]
    assert means[0] == 1 > means[1] > means[2] > means[3] == 0
    draft = Draft(Blurry(blurry), Prediction(x_init))
    assert torch.equal(draft.share(0.0), torch.ones(1, 1, 1, 1))


def test_under_a_mask_what_is_sharp_is_restored_too():
    sharp = noise(128, 128)
    prediction = Prediction(predicted(sharp))
    assert not Draft(Blurry(sharp), prediction).share(2.5).any()
    masked = Draft(Blurry(sharp, mask=torch.ones(128, 128)), prediction)
    assert torch.equal(masked.share(2.5), torch.ones(1, 1, 1, 1))


def test_even_parts_stay_though_the_predictor_tints_them():
    blurry = torch.ones(1, 3, 128, 256)
    blurry[..., 128:] = blurred(noise(128, 128))
    x_init = predicted(torch.cat([torch.full((1, 3, 128, 128), 0.97), noise(128, 128)], dim=3))
    share = restored_share(blurry, x_init, 2.5)
    assert torch.equal(kept(torch.full_like(blurry, 0.9), blurry, share)[..., :126], blurry[..., :126])


def test_a_clipped_highlight_is_not_darkened_and_no_square_of_it_stands_out():
    """As a JPEG holds it: blocks of pure white beside others that are a few levels darker."""
    blurry = blurred(noise(128, 256))
    blurry[..., 128:] = 1.0 - 3 / 255 * noise(128, 128, 1)
    blurry[..., 48:72, 176:200] = 1.0
    darker = torch.full((1, 3, 128, 128), 0.93)
    x_init = predicted(torch.cat([noise(128, 128), darker], dim=3))
    changed = restored_share(blurry, x_init, 2.5) * (x_init.add(1).div(2) - blurry)
    highlight = changed[..., 16:-16, 144:-16]
    assert highlight.abs().max() < 4 / 255
    assert highlight.diff(dim=3).abs().max() < 3 / 255
    assert changed[..., :112].abs().max() > 0.5


def test_dark_lines_on_white_are_restored_in_full_and_white_may_get_whiter():
    sharp = torch.ones(1, 3, 128, 128)
    sharp[..., 12::24] = 0.0
    sharp[..., 13::24] = 0.0
    blurry = gaussian_blur(sharp, [13, 1], [3.0, 0.01]) - 2 / 255 * noise(128, 128)
    share = restored_share(blurry, predicted(sharp), 2.5)
    assert (share[..., 16:112, 16:112] == 1).all()


def test_hidden_pixels_do_not_count_whatever_their_colour():
    sharp = noise(128, 256)
    visible = torch.zeros(1, 1, 128, 256, dtype=torch.bool)
    visible[..., 64:192] = True
    shares = []
    for hidden in (1.0, 0.0, sharp):
        blurry = torch.where(visible, blurred(sharp), torch.as_tensor(hidden))
        x_init = predicted(torch.where(visible, sharp, blurry))
        shares.append(restored_share(blurry, x_init, 2.5, visible))
    inside = visible & (gaussian_blur(visible.float(), 13, 3.0) > 0.999)  # away from the edge, which is detail
    for share in shares:
        assert (share[inside] > 0.9).all()
        assert not share[~visible].any()


@pytest.mark.parametrize("moved", [False, True])
def test_a_background_out_of_focus_is_kept_and_what_moved_before_a_sharp_one_restored(moved):
    sharp = noise(256, 512)
    soft = gaussian_blur(sharp, [31, 1] if moved else [13, 13], [8.0, 0.01] if moved else [3.0, 3.0])
    blurry = torch.cat([soft[..., :384], sharp[..., 384:]], dim=3)
    visible = torch.zeros(1, 1, 256, 2560, dtype=torch.bool)
    visible[..., :512] = True
    cut_out = (pad(image, (0, 2048, 0, 0), mode="replicate") for image in (blurry, predicted(sharp)))
    for share in (restored_share(blurry, predicted(sharp), 2.5), restored_share(*cut_out, 2.5, visible)):
        assert (share[..., :300] == 1).all() if moved else not share.any()


def test_what_the_predictor_changes_in_one_direction_has_moved_though_its_edges_lie_in_none():
    sharp, change = noise(256, 512), torch.zeros(1, 3, 256, 512)
    change[..., :384] = 0.5 * (gaussian_blur(noise(256, 384, 1), [1, 13], [0.01, 1.4]) - 0.5)
    soft = torch.cat([blurred(sharp)[..., :384], sharp[..., 384:]], dim=3)
    assert (restored_share(soft, predicted(soft + change), 2.5)[..., :300] == 1).all()


def test_a_sharp_image_stays_though_it_is_changed_in_one_direction():
    """By much less than its detail, though nothing is changed in the other direction."""
    sharp, columns = noise(256, 256), noise(1, 256, 1)
    assert not restored_share(sharp, predicted(sharp + 0.1 * (columns - 0.5)), 2.5).any()


def test_specks_that_look_blurred_are_none():
    sharp = noise(512, 512)
    for side, found in ((24, False), (200, True)):
        spot = (slice(None), slice(None), slice(150, 150 + side), slice(150, 150 + side))
        blurry = sharp.clone()
        blurry[spot] = shaken(sharp)[spot]
        assert restored_share(blurry, predicted(sharp), 2.5).any() == found


@pytest.mark.parametrize(("width", "height"), [(60, 200), (200, 60)])
def test_who_walks_by_a_sharp_wall_is_restored_alone(width, height):
    """A narrow and long region, blurred by a movement of its own, of which the predictor finds a part."""
    wall = 0.4 + 0.2 * noise(512, 512)
    spot = (..., slice(150, 150 + height), slice(200, 200 + width))
    clear = wall.clone()
    clear[spot] = noise(512, 512, 1)[spot]

    def shares(soft):
        blurry = wall.clone()
        blurry[spot] = soft[spot]
        prediction = blurry + 0.3 * (clear - blurry)
        beside = torch.cat([shaken(wall), blurry]), predicted(torch.cat([wall, prediction]))
        alone = restored_share(blurry, predicted(prediction), 2.5)
        in_a_batch = restored_share(*beside, 2.5)[1:]
        assert torch.allclose(in_a_batch, alone, atol=1e-4), "with a wholly blurred one"
        return alone

    along = ([31, 1], [4.0, 0.01])
    moved = shares(gaussian_blur(clear, *(along if height > width else [side[::-1] for side in along])))
    assert moved[spot].mean() > 0.8
    assert not moved[..., :100, :].any() and not moved[..., 400:, :].any()
    assert not shares(blurred(clear)).any(), "out of focus"


def test_lights_that_are_streaks_do_not_make_a_shaken_night_sharp():
    """A plate that moved, blurred, beside lamps whose traces are thin and bright; lit as by day, a subject is sharp."""
    night = torch.full((1, 3, 384, 512), 0.02)
    night[..., 40:160, 40:480:24] = 1.0
    clear = night.clone()
    clear[..., 220:350, 130:380] = 0.3 * noise(130, 250).round()
    blurry = night.clone()
    blurry[..., 220:350, 130:380] = gaussian_blur(clear, 15, 3.0)[..., 220:350, 130:380]
    plate = (..., slice(240, 330), slice(150, 360))
    assert restored_share(blurry, predicted(clear), 2.5)[plate].mean() > 0.9
    day = blurry.clone()
    day[..., :180, :] = noise(180, 512)
    assert not restored_share(day, predicted(torch.cat([day[..., :180, :], clear[..., 180:, :]], 2)), 2.5).any()


def drawn(trace, softness=2.0):
    """A dark image with lights, each of which draws the trace, offsets in rows and columns."""
    night = torch.zeros(1, 3, 384, 512)
    for row, column in torch.rand(60, 2, generator=torch.Generator().manual_seed(0)).tolist():
        for down, across in trace:
            night[..., 20 + int(300 * row) + down, 20 + int(440 * column) + across] = 1
    return gaussian_blur(night, 13, softness)


LINE = [(k // 3, k) for k in range(28)]
CURVE = [(round(18 * (1 - math.cos(k / 18))), round(18 * math.sin(k / 18))) for k in range(28)]


@pytest.mark.parametrize("trace", [LINE, CURVE])
def test_a_night_whose_lights_all_draw_one_trace_is_restored_though_the_predictor_leaves_them(trace):
    nights = torch.cat([drawn(trace, softness=0.5), drawn(trace)])
    tubes, streaks = restored_share(nights, predicted(nights), 2.5)
    assert not tubes.any(), "sharp lights of one shape"
    assert (streaks[0][nights[1, 0] > 0.01] == 1).all()
    assert not streaks[:, -10:].any(), "what is even stays"


def test_lights_that_each_have_a_trace_of_their_own_are_no_streaks():
    own = drawn(LINE)
    own[..., 192:, :] = drawn([(-row, column) for row, column in LINE])[..., 192:, :]
    own[..., 256:] = drawn([(column, row) for row, column in LINE])[..., 256:]
    assert not restored_share(own, predicted(own), 2.5).any()


def test_an_image_of_a_few_pixels_has_a_share():
    for size in ((1, 1), (3, 200), (17, 9)):
        assert restored_share(noise(*size), predicted(noise(*size, 1)), 2.5).shape == (1, 1, *size)


def test_the_restored_amount_is_that_of_the_visible_pixels():
    share, visible = torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8, dtype=torch.bool)
    share[..., :2, :] = 1
    visible[..., :4, :] = True
    assert restored_amount(share) == 0.25
    assert restored_amount(share, visible) == 0.5
    assert restored_amount(torch.ones(1, 1, 1, 1), visible) == 1
    assert restored_amount(share, torch.zeros_like(visible)) == 0


def test_a_kept_image_is_the_input_to_the_last_bit():
    blurry, x = torch.rand(3, 3, 5, 7), torch.rand(3, 3, 5, 7)
    result = kept(x.clone(), blurry, torch.tensor([0, 0.25, 1]).view(3, 1, 1, 1))
    assert torch.equal(result[0], blurry[0]) and torch.equal(result[2], x[2])
    assert torch.allclose(result[1], 0.75 * blurry[1] + 0.25 * x[1])
    assert torch.equal(kept(x.clone(), blurry, torch.ones(3, 1, 1, 1)), x)


@pytest.mark.parametrize("blend", [0.0, 0.5])
def test_each_image_of_a_batch_has_its_own_share(blend):
    pipeline = tiny_pipeline()
    blurry = torch.cat([noise(64, 72), blurred(noise(64, 72, 1))])
    draft = pipeline.draft(Blurry(blurry))
    draft.prediction.x_init.copy_(predicted(torch.cat([noise(64, 72), noise(64, 72, 1)])))
    settings = [SamplingSettings(steps=2, blend=blend, keep_sharp=level) for level in (0.0, 120.0, 1e4)]
    assert [len(group) for group in sharing_samples(settings)] == [3]
    full, part, none = draft.restored(pipeline.sample(draft, settings[0]), settings)
    assert torch.equal(none.images, blurry)
    assert torch.equal(part.images[0], blurry[0]), "sharp"
    assert not part.share[0].any()
    assert 0.1 < part.share[1].mean() < 0.95
    assert torch.allclose(part.images, blurry + part.share * (full.images - blurry), atol=1e-5)
    assert torch.equal(full.share, torch.ones(2, 1, 1, 1))


def test_no_step_is_taken_for_images_that_are_all_kept():
    def progress(steps):
        raise AssertionError("a step was taken")

    pipeline, blurry = tiny_pipeline(), torch.full((1, 3, 16, 24), 0.5)
    draft = pipeline.draft(Blurry(blurry))
    draft.prediction.x_init.zero_()
    settings = SamplingSettings(steps=2, num_samples=2, keep_sharp=1.0)
    [output] = draft.restored(pipeline.sample(draft, settings, progress=progress), [settings])
    assert torch.equal(output.images, blurry.expand(2, -1, -1, -1)) and not output.std.any()


def test_a_level_below_zero_is_refused_and_the_words_name_it():
    with pytest.raises(ValueError, match="keep_sharp must be 0 or more, got -1"):
        SamplingSettings(keep_sharp=-1)
    assert "what is sharp kept (2)" in str(SamplingSettings(keep_sharp=2.0))
    alone = SamplingSettings(blend=0.0, keep_sharp=2.0)
    assert str(alone) == "the prediction alone, what is sharp kept (2)" and not alone.without_effect(["keep_sharp"])
