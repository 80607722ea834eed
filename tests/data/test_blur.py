import io
from pathlib import Path

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F
from kornia.color import rgb_to_linear_rgb
from PIL import Image

from data.blur import (
    CameraShake,
    Defocus,
    MeasuredKernels,
    ObjectMotion,
    SixDegrees,
    SyntheticBlur,
    UniformShake,
    average_views,
    compress,
    convolve,
    disc,
    homographies,
    rasterise,
)
from data.pairs import generator_of

SHARED = Path(__file__).parents[3] / "shared"


def generators(count, seed=0):
    return [generator_of(seed, i) for i in range(count)]


@pytest.fixture
def pictures():
    return torch.rand(4, 3, 48, 56, generator=torch.Generator().manual_seed(0))


def inside(tensor, margin):
    return tensor[..., margin:-margin, margin:-margin]


def middle(height, width):
    return torch.tensor([(width - 1) / 2, (height - 1) / 2])


def test_kernels_are_centred_and_of_sum_one():
    shake = CameraShake(length=(0, 15))
    kernels = rasterise(torch.stack([shake._draw(g)[0] for g in generators(200)]), shake.margin)
    assert kernels.shape == (200, 21, 21) and kernels.min() >= 0
    torch.testing.assert_close(kernels.sum((1, 2)), torch.ones(200))
    offsets = torch.arange(-10.0, 11)
    assert (kernels.sum(1) @ offsets).abs().max() < 1e-4  # centroid in x
    assert (kernels.sum(2) @ offsets).abs().max() < 1e-4  # centroid in y


def test_trajectories_have_the_length_and_the_curvature_asked_for():
    for curvature in (0, 2):
        shake = CameraShake(length=(12, 12), curvature=(curvature, curvature))
        paths = torch.stack([shake._draw(g)[0] for g in generators(300)])
        steps = paths.diff(dim=1)
        torch.testing.assert_close(steps.norm(dim=2).sum(1), torch.full((300,), 12.0))
        assert paths.norm(dim=2).max() <= shake.margin
        first, last = (torch.view_as_complex(steps[:, at].contiguous()) for at in (0, -1))
        turn = (last / first).angle()
        if curvature:  # a Gaussian turn of standard deviation c has E cos = exp(-c^2 / 2)
            assert abs(turn.cos().mean() - torch.tensor(-(curvature**2) / 2).exp()) < 0.12
        else:
            assert turn.abs().max() < 1e-3


def test_a_straight_trajectory_is_the_shifted_average(pictures):
    path = torch.stack([torch.arange(-3.0, 4), torch.zeros(7)], dim=1)
    blurry = convolve(pictures, rasterise(path[None].repeat(4, 1, 1), 4))
    average = torch.stack([pictures.roll(-shift, -1) for shift in range(-3, 4)]).mean(0)
    torch.testing.assert_close(inside(blurry, 4), inside(average, 4))


def test_a_shift_between_pixels_is_bilinear(pictures):
    path = torch.tensor([[[0.25, 1.5]]]).repeat(4, 1, 1)
    blurry = convolve(pictures, rasterise(path, 2))
    below = (pictures.roll(-1, -2) + pictures.roll(-2, -2)) / 2
    expected = 0.75 * below + 0.25 * below.roll(-1, -1)
    torch.testing.assert_close(inside(blurry, 3), inside(expected, 3))


def test_every_picture_has_its_own_kernel(pictures):
    kernels = torch.rand(4, 5, 5)
    padded = F.pad(pictures, (2,) * 4, mode="replicate")
    alone = [F.conv2d(padded[i : i + 1].transpose(0, 1), kernels[i].view(1, 1, 5, 5))[:, 0] for i in range(4)]
    torch.testing.assert_close(convolve(pictures, kernels), torch.stack(alone))


def test_energy_is_kept_in_linear_light():
    # Light that stays away from the border: no picture loses any, whatever its blur.
    sharp = torch.zeros(8, 3, 64, 64)
    sharp[..., 24:40, 24:40] = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    shake = CameraShake(length=(3, 21), noise=(0, 0))
    blurry = shake(sharp, generators(8))
    assert (blurry - sharp).abs().max() > 0.1
    before, after = (rgb_to_linear_rgb(light).sum((2, 3)) for light in (sharp, blurry))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=0)
    assert ((blurry.sum((2, 3)) - sharp.sum((2, 3))) > 1).all()  # not so in the file's values
    plain = CameraShake(length=(3, 21), noise=(0, 0), linear_light=False)(sharp, generators(8))
    torch.testing.assert_close(plain.sum((2, 3)), sharp.sum((2, 3)), rtol=1e-4, atol=0)


def test_zero_strength_changes_nothing(pictures):
    before = pictures.clone()
    assert torch.equal(CameraShake(length=(0, 0), noise=(0, 0))(pictures, generators(4)), before)
    CameraShake()(pictures, generators(4))
    assert torch.equal(pictures, before)  # not even in place


def test_noise_has_the_strength_asked_for():
    grey = torch.full((2, 3, 128, 128), 0.5)
    noisy = CameraShake(noise=(0.02, 0.02))(grey, generators(2))
    torch.testing.assert_close((noisy - grey).std((1, 2, 3)), torch.full((2,), 0.02), rtol=0.02, atol=0)
    assert not torch.equal(noisy[0], noisy[1])


def test_a_picture_blurs_alike_in_every_batch(pictures):
    shake = CameraShake()
    together = shake(pictures, generators(4))
    assert torch.equal(together, shake(pictures, generators(4)))
    for i in (0, 3):
        alone = shake(pictures[i : i + 1], generators(4)[i : i + 1])
        torch.testing.assert_close(alone, together[i : i + 1], rtol=0, atol=1e-6)
    assert (shake(pictures, generators(4, seed=1)) - together).abs().max() > 0.05


@pytest.mark.parametrize("bad", [{"length": (5, 3)}, {"noise": (-1, 0)}, {"curvature": (0.0, float("nan"))}])
def test_impossible_ranges(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        CameraShake(**bad)


def blob(count=2, size=65):
    """A smooth light in the middle of darkness: it stays away from the border, whatever its blur."""
    axis = torch.arange(size) - size // 2
    light = torch.exp(-(axis[:, None] ** 2 + axis[None] ** 2) / 50.0)
    return light.expand(count, 3, size, size).contiguous()


CAMERAS = {
    "uniform": UniformShake(length=(5, 9)),
    "six": SixDegrees(length=(3, 6)),
    "roll and shift": SixDegrees(length=(3, 6), rotation=0, zoom=0),
    "defocus": Defocus(radius=(2, 5)),
}


@pytest.mark.parametrize("kind", CAMERAS)
def test_light_is_kept(kind):
    light = 0.9 * blob()
    blurry = CAMERAS[kind](light, generators(2))
    assert (blurry - light).abs().max() > 0.02
    if kind != "six":  # the next test has the sum that zoom and tilt leave
        torch.testing.assert_close(blurry.sum((2, 3)), light.sum((2, 3)), rtol=1e-4, atol=0)
    even = torch.full((2, 3, 40, 40), 0.3)
    torch.testing.assert_close(CAMERAS[kind](even, generators(2)), even, rtol=1e-4, atol=0)


@pytest.mark.parametrize("instants", [32, 64])
def test_zoom_and_tilt_change_the_sum_of_light_by_the_area(instants):
    # A picture is radiance: a plane's brightness stays when it comes nearer, its area and so its sum of light do not.
    # A homography H takes the area at q to det(H) / w^3 of it, w = H[2] . (q, 1), and the picture averages instants.
    size, six = 97, SixDegrees(length=(3, 6), instants=instants)
    poses = torch.stack([six._path(generator, size, size, middle(size, size)) for generator in generators(4)])
    views = homographies(poses, six.focal * size, middle(size, size))
    light = blob(4, size).roll((-6, 8), (2, 3))  # where a tilt has an effect
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    places = torch.stack([x, y, torch.ones_like(x)], -1).double()
    depth = torch.einsum("ntj,hwj->nthw", views.double()[:, :, 2], places)
    area = (torch.linalg.det(views.double())[..., None, None] / depth**3).mean(1)
    expected = (area * light[:, 0]).sum((1, 2))
    assert (expected / light[:, 0].double().sum((1, 2)) - 1).abs().max() > 2e-4  # more than the tolerance
    found = average_views(light, views)[:, 0].double().sum((1, 2))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_a_turning_camera_keeps_light():
    # Turns about the line of sight change no area: what they take from a place they give to another.
    light = blob()
    poses = torch.zeros(2, 32, 6)
    poses[..., 2] = torch.linspace(-0.3, 0.3, 32)
    spot = light.roll((9, 5), (2, 3))
    blurry = average_views(spot, homographies(poses, 80.0, middle(65, 65)))
    torch.testing.assert_close(blurry.sum((2, 3)), spot.sum((2, 3)), rtol=1e-4, atol=0)


def test_a_pure_translation_is_the_shifted_average(pictures):
    focal, shifts = 60.0, torch.arange(-3.0, 4)
    poses = torch.zeros(4, 7, 6)
    poses[..., 3] = shifts / focal
    blurry = average_views(pictures, homographies(poses, focal, middle(48, 56)))
    average = torch.stack([pictures.roll(int(shift), -1) for shift in shifts]).mean(0)
    torch.testing.assert_close(inside(blurry, 4), inside(average, 4), rtol=0, atol=1e-3)


def test_roll_blur_is_zero_at_its_centre_and_grows_with_the_radius():
    angle, size = 0.2, 129
    poses = torch.zeros(1, 33, 6)
    poses[..., 2] = torch.linspace(-angle, angle, 33)
    views = homographies(poses, 100.0, middle(size, size))
    centre = torch.tensor([64.0, 64, 1])
    torch.testing.assert_close(views[0] @ centre, centre.expand(33, 3), rtol=0, atol=1e-4)
    # Points of light become arcs: of angle 2 * 0.2 and a length in proportion to the radius.
    for radius in (10, 20, 40):
        moved = views[0] @ torch.tensor([64.0 + radius, 64, 1])
        path = (moved[1:, :2] / moved[1:, 2:] - moved[:-1, :2] / moved[:-1, 2:]).norm(dim=1).sum()
        torch.testing.assert_close(path, torch.tensor(2 * angle * radius), rtol=1e-3, atol=0)
    checks = ((torch.arange(size)[:, None] // 4 + torch.arange(size)[None] // 4) % 2).float().expand(1, 3, size, size)
    change = (average_views(checks, views) - checks).abs().mean((0, 1))
    rings = torch.hypot(*torch.meshgrid(torch.arange(size) - 64.0, torch.arange(size) - 64.0, indexing="ij"))
    means = [change[(rings >= r) & (rings < r + 3)].mean().item() for r in (0, 5, 12)]
    assert change[64, 64] < 0.01 and means[0] < means[1] < means[2]


def test_homographies_are_those_of_a_turned_and_moved_camera():
    # Where the place 10 right of the centre goes under a turn or shift of 0.1 each, by hand.
    cos, sin, focal = np.cos(0.1), np.sin(0.1), 80.0
    expected = [
        (10 / cos, -focal * np.tan(0.1)),
        (focal * (10 * cos + focal * sin) / (focal * cos - 10 * sin), 0),
        (10 * cos, 10 * sin),
        (10 - focal * 0.1, 0),
        (10, -focal * 0.1),
        (10 / 0.9, 0),
    ]
    centre = torch.tensor([30.0, 20])
    moved = homographies(0.1 * torch.eye(6), focal, centre) @ torch.tensor([40.0, 20, 1])
    torch.testing.assert_close(moved[:, :2] / moved[:, 2:] - centre, torch.tensor(expected, dtype=torch.float32))


def test_a_camera_moves_about_its_mean_pose():
    path = SixDegrees(length=(6, 6))._path(generator_of(0), 64, 64, middle(64, 64))
    assert path.mean(0).abs().max() < 1e-6 < 1e-3 < path.abs().max()


def shifts(views, points):
    """How far (T, 3, 3) views move (x, y) points, (T, points)."""
    places = torch.cat([torch.tensor(points), torch.ones(len(points), 1)], 1).T
    moved = views @ places
    return (moved[:, :2] / moved[:, 2:] - places[:2]).norm(dim=1)


@pytest.mark.parametrize("frame", [None, 900])
def test_the_largest_shift_of_a_corner_is_the_length_asked_for(frame):
    camera = SixDegrees(length=(7, 7), frame=frame)
    for generator in generators(20):
        centre = camera._centre(generator, 64, 96)
        views = homographies(camera._path(generator, 64, 96, centre), camera.focal * (frame or 96), centre)
        shift = shifts(views, [[0.0, 0], [95, 0], [0, 63], [95, 63]]).max()
        assert 6.3 < shift < 7.7 and shift < camera.margin


def test_a_crop_of_a_photograph_is_blurred_as_at_its_place_there():
    camera = SixDegrees(length=(4, 6), frame=1280)
    wide = torch.rand(3, 3, 120, 140, generator=generator_of(0), dtype=torch.float64)
    crop = wide[..., 30:94, 20:100]
    draws = [(centre := camera._centre(g, 64, 80), camera._path(g, 64, 80, centre)) for g in generators(3)]
    centres, poses = (torch.stack(part).double() for part in zip(*draws, strict=True))
    whole = average_views(wide, homographies(poses, 1.2 * 1280, (centres + torch.tensor([20, 30]))[:, None]))
    blurry = camera(crop, generators(3))
    assert (blurry - crop).abs().max() > 0.3
    torch.testing.assert_close(inside(blurry, 8), inside(whole[..., 30:94, 20:100], 8), rtol=0, atol=2e-3)


def test_crops_lie_anywhere_in_the_photograph_and_turn_about_its_centre():
    camera = SixDegrees(length=(8, 8), rotation=0, translation=0, zoom=0, frame=800)
    centres = torch.stack([camera._centre(g, 100, 120) for g in generators(500)]) - middle(100, 120)
    far = centres.abs()
    assert ((far <= torch.tensor([340.0, 250])).all(1) | (far <= torch.tensor([240.0, 350])).all(1)).all()
    torch.testing.assert_close(far.amax(0), torch.tensor([340.0, 350]), rtol=0.05, atol=0)  # lying and standing
    assert centres.mean(0).abs().max() < 30
    assert torch.equal(camera._centre(generators(1)[0], 900, 1000), middle(900, 1000))  # larger than the photograph
    # A roll moves a crop's centre with its corners, but not where the crop is taken for the photograph.
    for frame, low, high in ((None, 0, 1e-3), (800, 0.5, 1)):
        camera = SixDegrees(length=(8, 8), rotation=0, translation=0, zoom=0, frame=frame)
        shares = []
        for generator in generators(30):
            centre = camera._centre(generator, 100, 100)
            path = camera._path(generator, 100, 100, centre)
            views = homographies(path, camera.focal * (frame or 100), centre)
            corners = shifts(views, [[0.0, 0], [99, 0], [0, 99], [99, 99]])
            shares.append(shifts(views, [[49.5, 49.5]]).max() / corners.max())
        assert low <= torch.tensor(shares).median() <= high


@pytest.mark.parametrize("frame", [None, 1280])
def test_no_motion_is_the_identity_in_every_size(frame):
    still = SixDegrees(length=(0, 0), frame=frame)
    for height, width in ((16, 29), (47, 53), (99, 128), (131, 64)):
        sharp = torch.rand(2, 3, height, width, generator=generator_of(height))
        assert torch.equal(still(sharp, generators(2)), sharp)


def test_a_kernel_from_a_file_is_a_direct_convolution(tmp_path, pictures):
    kernel = np.random.default_rng(0).random((5, 5)).astype("float32")
    np.savez(tmp_path / "kernels.npz", one=kernel, large=np.ones((99, 99)))
    part = MeasuredKernels(str(tmp_path / "kernels.npz"))
    assert part.margin == 2 and len(MeasuredKernels(str(tmp_path / "kernels.npz"), largest=5).bank) == 1
    with pytest.raises(ValueError, match="no kernel of at most 3 x 3 pixels: raise largest"):
        MeasuredKernels(str(tmp_path / "kernels.npz"), largest=3)
    blurry = part(pictures, generators(4))
    direct = scipy.ndimage.convolve(pictures[1, 2].numpy(), kernel / kernel.sum(), mode="nearest")
    assert abs(blurry[1, 2].numpy() - direct).max() < 1e-5
    np.savez(tmp_path / "even.npz", even=np.ones((4, 4)))
    with pytest.raises(ValueError, match="even"):
        MeasuredKernels(str(tmp_path / "even.npz"))


@pytest.mark.skipif(not (SHARED / "kernels").is_dir(), reason="needs ../shared")
def test_measured_kernels(pictures):
    part = MeasuredKernels(str(SHARED / "kernels" / "kernels.npz"))
    assert len(part.bank) == 42  # of 47, five are larger than 41 pixels
    torch.testing.assert_close(part.bank.sum((1, 2)), torch.ones(42))
    offsets = torch.arange(-part.margin, part.margin + 1.0)
    for axis in (1, 2):  # none shifts the picture by more than half a pixel
        assert (part.bank.sum(axis) @ offsets).abs().max() <= 0.51
    files = np.load(SHARED / "kernels" / "kernels.npz")
    largest = [files[name].max() / files[name].sum() for name in files.files if len(files[name]) <= 41]
    torch.testing.assert_close(part.bank.amax((1, 2)), torch.tensor(largest), rtol=1e-4, atol=0)  # moved, not changed
    assert (part(pictures, generators(4)) - pictures).abs().max() > 0.05


def test_a_disc_is_flat_and_round():
    (kernel,) = disc(torch.tensor([4.0]), 6)
    torch.testing.assert_close(kernel.sum(), torch.tensor(1.0))
    assert kernel[6, 6] == kernel[6, 9] == kernel[3, 6] and kernel[6, 11] == 0 and torch.equal(kernel, kernel.T)


def test_a_moving_object_moves_alone():
    scene = torch.rand(1, 3, 80, 80, generator=generator_of(0))
    part = ObjectMotion(probability=1, length=(9, 9), size=(0.2, 0.2))
    blurry = part.over(scene, scene, generators(1))
    changed = (blurry - scene).abs().amax((0, 1)) > 0.02
    assert 0.02 < changed.float().mean() < 0.6  # a region, not the picture
    light = torch.full((1, 3, 80, 80), 0.7)
    torch.testing.assert_close(part.over(light, light, generators(1)), light)  # no dark rim, no ghost
    assert torch.equal(ObjectMotion(probability=0).over(scene, scene, generators(1)), scene)
    assert torch.equal(ObjectMotion(probability=1, length=(0, 0)).over(scene, scene, generators(1)), scene)


@pytest.mark.parametrize("response", ["srgb", "gamma", "linear"])
def test_nothing_asked_for_changes_no_bit(pictures, response):
    before = pictures.clone()
    still = [UniformShake(length=(0, 0)), SixDegrees(length=(0, 0)), Defocus(radius=(0, 0))]
    for camera in ([], still):
        moving = ObjectMotion(probability=1, length=(0, 0)) if camera else None
        assert torch.equal(SyntheticBlur(camera, moving=moving, response=response)(pictures, generators(4)), before)
    full = SyntheticBlur([UniformShake()], saturation=(1, 1), read_noise=(0.1, 0.1), jpeg=(50, 50), response=response)
    assert not torch.equal(full(pictures, generators(4)), before) and torch.equal(pictures, before)


def test_the_whole_blur_is_alike_in_every_batch(pictures):
    blur = SyntheticBlur(
        [UniformShake((3, 9)), SixDegrees((3, 6)), Defocus((1, 3))],
        moving=ObjectMotion(0.5),
        saturation=(0, 3),
        shot_noise=(0, 0.01),
        read_noise=(0, 0.01),
        jpeg=(60, 90),
    )
    together = blur(pictures, generators(4))
    assert together.min() >= 0 and together.max() <= 1 and torch.equal(together, blur(pictures, generators(4)))
    for i in (0, 3):
        alone = blur(pictures[i : i + 1], generators(4)[i : i + 1])
        torch.testing.assert_close(alone, together[i : i + 1], rtol=0, atol=2e-5)


def test_blur_averages_light_by_the_response():
    # Half black, half white, moved over each other: the mean of light, seen through the response.
    stripes = (torch.arange(60) % 2).float().expand(1, 3, 60, 60)
    for response, grey in (("srgb", 0.735357), ("gamma", 0.5 ** (1 / 2.2)), ("linear", 0.5)):
        blurry = SyntheticBlur([Defocus((6, 6))], response=response)(stripes, generators(1))
        assert abs(inside(blurry, 10).mean() - grey) < 0.01


def test_saturated_light_spreads():
    lamp = torch.zeros(1, 3, 41, 41)
    lamp[..., 19:22, 19:22] = 1
    plain, bright = (
        SyntheticBlur([Defocus((5, 5))], saturation=(gain, gain))(lamp, generators(1)) for gain in (0.0, 4.0)
    )
    light = [rgb_to_linear_rgb(picture).sum() for picture in (plain, bright)]
    torch.testing.assert_close(light[1], 5 * light[0], rtol=1e-3, atol=0)  # five times the light, none of it clipped


def test_only_light_near_the_clip_is_brighter_than_it_says():
    grey = torch.full((1, 3, 20, 20), 0.9)
    assert torch.equal(SyntheticBlur(saturation=(4, 4), response="linear")(grey, generators(1)), grey)


def test_kinds_of_blur_are_drawn_by_weight(pictures):
    parts = [Defocus((3, 3)), Defocus((0, 0))]
    assert torch.equal(SyntheticBlur(parts, weights=[0.0, 1.0])(pictures, generators(4)), pictures)
    assert not (SyntheticBlur(parts, weights=[1.0, 0.0])(pictures, generators(4)) == pictures).flatten(1).all(1).any()


def test_read_noise_alone_is_added():
    grey = torch.full((1, 3, 128, 128), 0.5)
    noisy = SyntheticBlur(read_noise=(0.02, 0.02), response="linear")(grey, generators(1))
    torch.testing.assert_close(noisy.std(), torch.tensor(0.02), rtol=0.05, atol=0)


def test_noise_has_the_variance_of_light():
    for level in (0.2, 0.6):
        grey = torch.full((1, 3, 256, 256), level)
        noisy = SyntheticBlur(shot_noise=(0.002, 0.002), read_noise=(0.02, 0.02), response="linear")(
            grey, generators(1)
        )
        torch.testing.assert_close(noisy.var(), torch.tensor(0.002 * level + 0.02**2), rtol=0.03, atol=0)
        torch.testing.assert_close(noisy.mean(), torch.tensor(level), rtol=2e-3, atol=0)


def test_jpeg_is_like_a_real_one():
    y, x = torch.meshgrid(torch.arange(50), torch.arange(70), indexing="ij")
    picture = (0.5 + 0.3 * torch.sin(x / 5) * torch.cos(y / 7)).expand(1, 3, 50, 70).contiguous()
    for quality in (30, 90):
        ours = compress(picture, torch.tensor([float(quality)]))
        file = io.BytesIO()
        Image.fromarray(picture[0].mul(255).round().byte().movedim(0, -1).numpy()).save(file, "JPEG", quality=quality)
        theirs = torch.from_numpy(np.array(Image.open(file))).movedim(-1, 0)[None] / 255
        assert (ours - theirs).abs().mean() < 0.006 and ours.shape == picture.shape
        assert (ours - theirs)[..., -2:, -2:].abs().mean() < 0.02  # nothing from beyond the border


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SyntheticBlur([Defocus()], weights=[1.0, 2.0]), "weights must be 1 numbers"),
        (lambda: SyntheticBlur(jpeg=(0, 50)), "jpeg"),
        (lambda: SyntheticBlur(jpeg=(90, 50)), "jpeg"),
        (lambda: SyntheticBlur(gamma=0.0), "gamma must be above 0"),
        (lambda: ObjectMotion(probability=2.0), "probability must be from 0 to 1"),
        (lambda: SixDegrees(rotation=0, roll=0, translation=0, zoom=0), "and one above"),
        (lambda: SixDegrees(instants=8), "16 to 64"),
        (lambda: SixDegrees(frame=0), "at least 1 pixel"),
        (lambda: MeasuredKernels("gone.npz"), "gone.npz is no file"),
    ],
)
def test_impossible_parts(make, words):
    with pytest.raises(ValueError, match=words):
        make()
