from inspect import signature
from typing import get_args

import numpy as np
import pytest
import scipy.ndimage
import torch
from kornia.color import linear_rgb_to_rgb, rgb_to_linear_rgb
from PIL import Image

from deblur.data.blur import (
    BLUE_GAIN,
    RED_GAIN,
    RESPONSES,
    ObjectMotion,
    Softening,
    SyntheticBlur,
    add_noise,
    add_raw_noise,
    compress,
)
from deblur.data.camera import CameraShake, Defocus, MeasuredKernels, SixDegrees, Together, inner
from deblur.data.pairs import generator_of


def generators(count, seed=0):
    return [generator_of(seed, i) for i in range(count)]


@pytest.fixture
def images():
    return torch.rand(4, 3, 64, 72, generator=generator_of("images"))


def changed(blurry, truth):
    """Which images of a batch differ."""
    return (blurry != truth).flatten(1).any(1)


@pytest.mark.parametrize("response", ["srgb", "gamma", "linear"])
@pytest.mark.parametrize("file_values", [0.0, 1.0])
def test_zero_strength_changes_no_bit(images, response, file_values):
    before, values = images.clone(), {"response": response, "file_values": file_values}
    still = CameraShake(length=(0, 0)), SixDegrees(length=(0, 0)), SixDegrees(length=(0, 0), frame=1280)
    for camera in ([], [*still, Defocus(radius=(0, 0)), Together([Defocus(radius=(0, 0)), still[0]])]):
        moving = ObjectMotion(probability=1, length=(0, 0)) if camera else None
        phone = {"halo": (1, 1), "resample": (0.5, 0.5)}
        blur = SyntheticBlur(camera, moving=moving, saturation=(0, 2), jpeg=(50, 50), clean=1.0, **phone, **values)
        blurry, truth = blur(images, generators(4))
        assert torch.equal(blurry, inner(images, blur.margin))
        assert torch.equal(truth, blurry)
    assert all(torch.equal(side, images) for side in SyntheticBlur()(images, generators(4)))
    full = SyntheticBlur([CameraShake((3, 9))], saturation=(1, 1), read_noise=(0.1, 0.1), jpeg=(50, 50), **values)
    blurry, truth = full(images, generators(4))
    assert changed(blurry, truth).all() and torch.equal(images, before)  # not even in place
    assert torch.equal(truth, inner(images, full.margin))


def everything():
    ranges = {"saturation": (0, 3), "shot_noise": (0, 0.01), "read_noise": (0, 0.01), "jpeg": (60, 90), "halo": (0, 1)}
    shares = {"moving": ObjectMotion(0.5), "soften": Softening(0.5), "file_values": 0.5, "clean": 0.5}
    parts = [CameraShake((0, 9)), SixDegrees((0, 6)), Defocus((1, 3))]
    return SyntheticBlur(parts, **ranges, **shares, resample=(0.5, 2))


def test_a_batch_equals_its_images_one_by_one(images):
    blur = everything()
    together = blur(images, generators(4))
    assert all(torch.equal(*sides) for sides in zip(together, blur(images, generators(4)), strict=True))
    for i in range(4):
        alone = blur(images[i : i + 1], generators(4)[i : i + 1])
        assert all(torch.equal(one[0], side[i]) for one, side in zip(alone, together, strict=True))
    for side in together:
        assert side.shape == (4, 3, 64 - 2 * blur.margin, 72 - 2 * blur.margin)
        assert side.min() >= 0
        assert side.max() <= 1
        assert side.dtype == torch.float32
    assert (blur(images, generators(4, seed=1))[0] - together[0]).abs().max() > 0.05


def test_a_small_part_is_cut_out_of_the_margin_of_a_large_one(tmp_path, images):
    np.savez(tmp_path / "kernels.npz", wide=np.eye(41))
    small, large = CameraShake((3, 9)), MeasuredKernels(str(tmp_path / "kernels.npz"))
    alone, beside = (SyntheticBlur([small, other], weights=[1.0, 0.0]) for other in (small, large))
    assert (alone.margin, beside.margin) == (6, 20)
    ours, theirs = alone(inner(images, 14), generators(4)), beside(images, generators(4))
    assert all(torch.equal(*sides) for sides in zip(ours, theirs, strict=True))


def test_blur_averages_light_by_the_response():
    # A step from black to white, blurred: where a share s of the light arrives, the file says s through the response.
    step = (torch.arange(80) >= 40).float().expand(1, 3, 80, 80)
    responses = [{"response": "srgb"}, {"response": "gamma"}]
    for shares in (*responses, {"response": "linear"}, {"file_values": 1.0}):
        blur = SyntheticBlur([Defocus((6, 6))], **shares)
        blurry, truth = blur(step, generators(1))
        share = Defocus((6, 6)).kernel(generator_of(0)).sum(0).cumsum(0)  # of a disc across its edge
        expected = {"srgb": linear_rgb_to_rgb(share.expand(3, 1, -1))[0, 0], "gamma": share ** (1 / 2.2)}
        middle = 40 - blur.margin
        found = blurry[0, 0, 30, middle - len(share) // 2 : middle + len(share) // 2 + 1]
        torch.testing.assert_close(found, expected.get(shares.get("response"), share), rtol=0, atol=1e-3)
        assert set(truth.unique().tolist()) == {0, 1}


def spread(share, **options):
    """How many of 400 images something happens to, in four standard deviations of what a share should give."""
    blur = SyntheticBlur(**options)
    wide = 13 + 2 * blur.margin
    grey = torch.full((1, 3, wide, wide), 0.5)
    grey[..., wide // 2, wide // 2] = 1
    found = [blur(grey, [generator_of("share", i)]) for i in range(400)]
    return found, 4 * (400 * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_shares_are_those_of_many_images(share):
    found, spare = spread(share, camera=[Defocus((2, 2))], file_values=share)
    light = [blurry.mean().item() for blurry, _ in found]
    as_file = sum(value == min(light) for value in light)  # the mean of light is brighter than that of file values
    assert abs(as_file - 400 * (share or 1)) <= spare
    assert len(set(light)) == (1 if share in (0, 1) else 2)

    found, spare = spread(share, read_noise=(0.1, 0.1), jpeg=(30, 30), clean=share)
    assert abs(sum(torch.equal(*pair) for pair in found) - 400 * share) <= spare

    found, spare = spread(share, soften=Softening(share, (1.0, 1.0)))
    assert abs(sum((truth.max() < 1).item() for _, truth in found) - 400 * share) <= spare
    assert all(torch.equal(*pair) for pair in found)  # both sides alike

    found, spare = spread(share, read_noise=(0.01, 0.01), raw=share, response="linear")
    red = [(blurry - truth)[0, 0, 1::2] for blurry, truth in found]  # between two red pixels stands their mean
    as_raw = [(row[:, 2:-1:2] - (row[:, 1:-2:2] + row[:, 3::2]) / 2).abs().max() < 1e-6 for row in red]
    assert abs(sum(as_raw) - 400 * share) <= spare

    found, spare = spread(share, moving=ObjectMotion(share, (9, 9), size=(2.0, 2.0)))
    assert abs(sum(not torch.equal(*pair) for pair in found) - 400 * share) <= spare


def test_shares_of_each_camera_part(images):
    parts = [Defocus((0, 0)), Defocus((0, 0))]
    for at in (0, 1):
        weights, one = [1.0 - at, float(at)], {"moving": ObjectMotion([1.0, 0.0], (9, 9), size=(2.0, 2.0))}
        assert changed(*SyntheticBlur(parts, weights, **one)(images, generators(4))).all() == (at == 0)
        soft = SyntheticBlur(parts, weights, soften=Softening([1.0, 0.0]))
        assert changed(soft(images, generators(4))[1], inner(images, soft.margin)).all() == (at == 0)


def test_softness_is_a_gaussian_of_the_scene_before_blur_noise_and_jpeg():
    point = torch.zeros(1, 3, 61, 61)
    point[..., 30, 30] = 1
    soften = Softening(1.0, (1.5, 1.5))
    _, truth = SyntheticBlur(soften=soften)(point, generators(1))
    square = (torch.arange(truth.shape[-1]) - truth.shape[-1] // 2.0) ** 2
    sigma = (truth[0, 0].sum(0) * square).sum().sqrt()  # standard deviation of what the point became
    assert abs(sigma - 1.5) < 0.02
    assert abs(truth[0, 0].sum() - 1) < 1e-4
    # The ground truth has no noise, and the noise of the blurry side is as strong as without softening.
    grey = torch.full((1, 3, 128, 128), 0.5)
    blurry, truth = SyntheticBlur(soften=soften, read_noise=(0.02, 0.02), response="linear")(grey, generators(1))
    assert (truth - 0.5).abs().max() < 1e-6
    assert abs((blurry - truth).std() - 0.02) < 1e-3
    neighbours = (blurry - truth)[..., 1:] * (blurry - truth)[..., :-1]
    assert abs(neighbours.mean()) < 0.05 * 0.02**2  # white: softened noise would go from pixel to pixel alike
    # What is blurred is the soft scene.
    wide = torch.rand(1, 3, 70, 70, generator=generator_of(3))
    blurry, truth = SyntheticBlur([Defocus((3, 3))], soften=soften, response="linear")(wide, generators(1))
    soft = soften(wide[0], generator_of(0))
    torch.testing.assert_close(blurry[0], Defocus((3, 3))(soft, generator_of(0)), rtol=0, atol=1e-5)
    torch.testing.assert_close(truth[0], inner(soft, 4), rtol=0, atol=1e-6)


def test_a_moving_object_moves_alone():
    scene = torch.rand(3, 80, 80, generator=generator_of(0))
    part = ObjectMotion(probability=1, length=(9, 9), size=(0.2, 0.2))
    still = inner(scene, part.margin)
    moved = (part.over(still, scene, generator_of(1)) - still).abs().amax(0) > 0.02
    assert 0.02 < moved.float().mean() < 0.6  # a region, not the image
    light = torch.full((3, 80, 80), 0.7)
    even = part.over(inner(light, part.margin), light, generator_of(1))
    torch.testing.assert_close(even, inner(light, part.margin))  # no dark rim, no ghost
    assert torch.equal(ObjectMotion(probability=1, length=(0, 0)).over(scene, scene, generator_of(0)), scene)


def test_saturated_light_spreads():
    lamp = torch.zeros(1, 3, 61, 61)
    lamp[..., 29:32, 29:32] = 1
    made = (SyntheticBlur([Defocus((5, 5))], saturation=(gain, gain))(lamp, generators(1)) for gain in (0.0, 4.0))
    light = [rgb_to_linear_rgb(blurry).sum() for blurry, _ in made]
    torch.testing.assert_close(light[1], 5 * light[0], rtol=1e-3, atol=0)  # five times the light, none of it clipped


def test_only_light_near_the_clip_is_brighter_than_it_says():
    grey = torch.full((1, 3, 40, 40), 0.9)
    blurry, _ = SyntheticBlur([Defocus((2, 2))], saturation=(4, 4), response="linear")(grey, generators(1))
    assert (blurry - 0.9).abs().max() < 1e-5


def test_kinds_of_blur_are_drawn_by_weight(images):
    parts = [Defocus((3, 3)), Defocus((0, 0))]
    assert not changed(*SyntheticBlur(parts, weights=[0.0, 1.0])(images, generators(4))).any()
    assert changed(*SyntheticBlur(parts, weights=[1.0, 0.0])(images, generators(4))).all()
    many = torch.rand(1, 3, 16, 16).expand(400, -1, -1, -1)
    assert 70 < changed(*SyntheticBlur(parts, weights=[1.0, 3.0])(many, generators(400))).sum() < 130


def test_a_halo_is_an_unsharp_mask(images):
    plain, halo = SyntheticBlur(), SyntheticBlur(halo=(0.7, 0.7))
    (before, _), (after, truth) = (blur(images, generators(4)) for blur in (plain, halo))
    soft = torch.from_numpy(scipy.ndimage.gaussian_filter(before.numpy(), (0, 0, 1, 1), mode="nearest", radius=3))
    torch.testing.assert_close(after, (before + 0.7 * (before - soft)).clamp(0, 1), rtol=0, atol=1e-4)
    assert torch.equal(truth, before)


def test_resampling_loses_what_fewer_pixels_cannot_hold():
    """Stripes of four pixels survive a resize to half of the sides, stripes of two do not."""
    wide, narrow = (torch.arange(64).div(width, rounding_mode="floor") % 2 for width in (4, 1))
    stripes = torch.stack([wide, narrow]).float()[:, None, None].expand(2, 3, 64, 64)
    half, off = SyntheticBlur(resample=(0.5, 0.5)), SyntheticBlur(resample=(1.0, 2.0))
    blurry, truth = half(stripes, generators(2))
    assert blurry[0].std() > 0.4
    assert blurry[1, ..., 8:-8].std() < 0.05
    assert torch.equal(truth, stripes)
    assert torch.equal(off(stripes, generators(2))[0], stripes)
    shares = SyntheticBlur(resample=(0.5, 1.5))
    many = torch.stack([shares(stripes[1:], generators(1, seed))[0][0] for seed in range(60)])
    assert 0.3 < changed(many, stripes[1:]).float().mean() < 0.7  # from 1 up it is off


def test_noise_has_the_variance_of_light():
    for level in (0.0, 0.2, 0.6):
        grey = torch.full((1, 3, 256, 256), level)
        noisy = add_noise(grey, 0.002, 0.02, generator_of(level))
        torch.testing.assert_close(noisy.var(), torch.tensor(0.002 * level + 0.02**2), rtol=0.02, atol=0)
        assert abs(noisy.mean() - level) < 5e-4
    blur = SyntheticBlur(shot_noise=(0.002, 0.002), read_noise=(0.02, 0.02), response="linear")
    noisy, truth = blur(grey, generators(1))
    torch.testing.assert_close(noisy.var(), torch.tensor(0.002 * 0.6 + 0.02**2), rtol=0.02, atol=0)
    assert torch.equal(truth, grey)


def test_raw_noise_is_amplified_by_white_balance_and_spread_by_the_demosaic():
    light, shot, read = 0.4, 0.002, 0.02
    drawn = [add_raw_noise(torch.full((3, 256, 256), light), shot, read, generator_of("raw", at)) for at in range(8)]
    noise = torch.stack(drawn) - light
    # A red pixel of the mosaic records light / gain and multiplies it by the gain.
    sites = [noise[:, 0, 1::2, 1::2], noise[:, 1, ::2, 1::2], noise[:, 2, ::2, ::2]]
    for site, (least, most) in zip(sites, [RED_GAIN, (1.0, 1.0), BLUE_GAIN], strict=True):
        expected = [gain * shot * light + (gain * read) ** 2 for gain in (least, most)]
        assert 0.95 * expected[0] < site.var((1, 2)).min()
        assert site.var((1, 2)).max() < 1.05 * expected[1]
    # Between two red pixels stands their mean.
    red = noise[:, 0, 1::2]
    torch.testing.assert_close(red[..., 2:-1:2], (red[..., 1:-2:2] + red[..., 3::2]) / 2)


@pytest.mark.parametrize("size", [(17, 20), (16, 21), (5, 7)])
def test_raw_noise_of_zero_strength_moves_no_edge(size):
    ramp = torch.linspace(0.1, 0.9, size[1]).expand(3, *size)
    same = add_raw_noise(ramp, 0.0, 0.0, generator_of("raw"))
    torch.testing.assert_close(same[..., 2:-2, 2:-2], ramp[..., 2:-2, 2:-2], rtol=0, atol=1e-6)
    assert same.shape == ramp.shape


def test_jpeg_is_that_of_a_file(tmp_path):
    y, x = torch.meshgrid(torch.arange(50), torch.arange(70), indexing="ij")
    image = (0.5 + 0.3 * torch.sin(x / 5) * torch.cos(y / 7 + torch.arange(3)[:, None, None])).clamp(0, 1)
    for quality in (30, 90):
        values = image.mul(255).round().byte().movedim(0, -1).numpy()
        Image.fromarray(values).save(tmp_path / "file.jpg", quality=quality)
        file = torch.from_numpy(np.array(Image.open(tmp_path / "file.jpg"))).movedim(-1, 0) / 255
        ours = compress(image, quality)
        assert (ours - file).abs().max() <= 1.01 / 255 < (ours - image).abs().max()
        assert ours.shape == image.shape
    blurry, _ = SyntheticBlur(jpeg=(30, 30))(image[None], generators(1))
    assert torch.equal(blurry[0], compress(image, 30))


def test_jpeg_qualities_cover_their_range():
    image = torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(0))
    by_quality = {quality: compress(image, quality) for quality in range(20, 91)}
    blurry, _ = SyntheticBlur(jpeg=(20, 90))(image.expand(12, -1, -1, -1), generators(12))
    found = [[quality for quality, like in by_quality.items() if torch.equal(one, like)] for one in blurry]
    assert all(found)
    assert min(found)[0] < 40
    assert max(found)[0] > 70


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SyntheticBlur([Defocus()], weights=[1.0, 2.0]), "weights must be 1 numbers"),
        (lambda: CameraShake(length=(5, 3)), "length"),
        (lambda: CameraShake(curvature=(0.0, float("nan"))), "curvature"),
        (lambda: CameraShake(unevenness=(0.5, 2.0)), "unevenness must be a range from 1 up"),
        (lambda: Defocus(radius=(-1, 2)), "radius"),
        (lambda: SixDegrees(frame=0), "at least 1 pixel"),
        (lambda: MeasuredKernels("gone.npz"), "gone.npz is no file"),
        (lambda: SyntheticBlur(jpeg=(0, 50)), "jpeg"),
        (lambda: SyntheticBlur(jpeg=(90, 50)), "jpeg"),
        (lambda: SyntheticBlur(halo=(-1.0, 0.0)), "halo"),
        (lambda: SyntheticBlur(resample=(0.0, 1.0)), "resample must be above 0"),
        (lambda: SyntheticBlur(read_noise=(-1.0, 0.0)), "read_noise"),
        (lambda: SyntheticBlur(clean=1.5), "clean must be from 0 to 1"),
        (lambda: SyntheticBlur(file_values=-0.5), "file_values must be from 0 to 1"),
        (lambda: ObjectMotion(probability=2.0), "probability must be from 0 to 1"),
        (lambda: Softening(share=[0.1, 2.0]), "share must be from 0 to 1"),
        (lambda: Softening(sigma=(0.0, 1.0)), "sigma must be above 0"),
        (lambda: SyntheticBlur([Defocus()], soften=Softening([0.1, 0.2])), "share must be 1 numbers"),
        (lambda: SyntheticBlur([Defocus()], moving=ObjectMotion([0.1, 0.2])), "probability must be 1 numbers"),
    ],
)
def test_impossible_parts(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("response", get_args(signature(SyntheticBlur).parameters["response"].annotation))
def test_light_goes_back_to_the_files_values(response):
    values = torch.linspace(0, 1, 30).view(3, 2, 5)
    to_light, from_light = RESPONSES[response]
    light = to_light(values)
    assert torch.allclose(from_light(light), values, atol=1e-5)
    if response == "gamma":
        assert torch.allclose(light, values**2.2)
