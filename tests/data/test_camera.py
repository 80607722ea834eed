import numpy as np
import pytest
import scipy.ndimage
import torch
from kornia.filters import filter2d
from kornia.geometry.transform import warp_perspective

from deblur.data.camera import (
    FINE,
    CameraShake,
    Defocus,
    MeasuredKernels,
    SixDegrees,
    TiltedDefocus,
    Together,
    average_views,
    convolve,
    disc,
    homographies,
    inner,
    rasterise,
)
from deblur.data.pairs import generator_of
from tests.conftest import ASSETS
from tests.data.test_blur import generators


@pytest.fixture
def image():
    return torch.rand(3, 48, 56, generator=generator_of("image"))


def middle(height, width):
    return torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=torch.float64)


def blob(size=85):
    """A smooth light in the middle of darkness: it stays away from the border, whatever its blur."""
    axis = torch.arange(size) - size // 2
    return torch.exp(-(axis[:, None] ** 2 + axis[None] ** 2) / 50.0).expand(3, size, size).contiguous()


def six_degrees(strengths, **options):
    """SixDegrees of other relative strengths: tilt, pan, roll, shifts across and down, zoom."""
    camera = SixDegrees(**options)
    camera.strengths = torch.tensor(strengths)
    return camera


CAMERAS = {"shake": CameraShake(length=(5, 9)), "six": SixDegrees(length=(3, 6)), "defocus": Defocus(radius=(2, 5))}
CAMERAS["roll and shift"] = six_degrees([0, 0, 1, 0.3, 0.3, 0], length=(3, 6))
CAMERAS |= {"tilted": TiltedDefocus((2, 5)), "together": Together([Defocus((1, 2)), CameraShake((3, 6))])}


def test_kernels_are_centred_and_of_sum_one():
    shake = CameraShake(length=(0, 15))
    for generator in generators(200):
        kernel = shake.kernel(generator)
        radius = len(kernel) // 2
        assert kernel.shape == (2 * radius + 1, 2 * radius + 1)
        assert radius <= shake.margin == 10
        assert kernel.min() >= 0
        assert abs(kernel.sum() - 1) < 1e-5
        offsets = torch.arange(-radius, radius + 1.0)
        assert abs(kernel.sum(0) @ offsets) < 1e-4 and abs(kernel.sum(1) @ offsets) < 1e-4  # the centroid


def test_trajectories_have_the_length_and_the_curvature_asked_for():
    for curvature in (0, 2):
        shake = CameraShake(length=(12, 12), curvature=(curvature, curvature))
        paths = torch.stack([shake.trajectory(g) for g in generators(300)])
        steps = paths.diff(dim=1)
        torch.testing.assert_close(steps.norm(dim=2).sum(1), torch.full((300,), 12.0))
        assert paths.norm(dim=2).max() <= shake.margin
        first, last = (torch.view_as_complex(steps[:, at].contiguous()) for at in (0, -1))
        turn = (last / first).angle()
        if curvature:  # a Gaussian turn of standard deviation c has E cos = exp(-c^2 / 2)
            assert abs(turn.cos().mean() - torch.tensor(-(curvature**2) / 2).exp()) < 0.12
        else:
            assert turn.abs().max() < 1e-3


def test_uneven_motion_grows_by_a_power_of_time():
    shake = CameraShake(length=(12, 12), curvature=(0, 0), truth="middle", unevenness=(4, 4))
    paths = torch.stack([shake.trajectory(g) for g in generators(300)])
    travelled = paths.diff(dim=1).norm(dim=2)
    torch.testing.assert_close(travelled.sum(1), torch.full((300,), 12.0))
    assert paths.norm(dim=2).max() <= shake.margin
    first, second = travelled.chunk(2, dim=1)
    starts_slowly = first.sum(1) < second.sum(1)
    assert abs(starts_slowly.float().mean() - 0.5) < 0.1
    slow = torch.where(starts_slowly, first.sum(1), second.sum(1)) / 12
    even = 2.0**-4  # of the length, if the speed is steady; it varies four times at most
    assert even / 4 < slow.min() < slow.max() < 4 * even
    assert abs(slow.mean() - even) < 0.03
    assert travelled.max() < 1.05  # pixels between two points, where the speed is at most 16 times the mean
    around_the_mean = CameraShake(length=(12, 12), curvature=(0, 0), unevenness=(4, 4))
    assert max(around_the_mean.trajectory(g).norm(dim=1).max() for g in generators(100)) <= around_the_mean.margin


def test_lengths_are_drawn_from_their_range_and_instants_follow_them():
    paths = [CameraShake(length=(0, 20)).trajectory(g) for g in generators(300)]
    lengths = torch.stack([path.diff(dim=0).norm(dim=1).sum() for path in paths])
    assert lengths.min() < 1
    assert lengths.max() > 19
    assert abs(lengths.mean() - 10) < 1
    assert all(len(path) == max(16, torch.ceil(4 * length)) for path, length in zip(paths, lengths, strict=True))


def test_a_shift_between_pixels_is_bilinear(image):
    below = (image.roll(-1, -2) + image.roll(-2, -2)) / 2
    expected = 0.75 * below + 0.25 * below.roll(-1, -1)
    blurry = convolve(image, rasterise(torch.tensor([[0.25, 1.5]])), 3)
    torch.testing.assert_close(blurry, inner(expected, 3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("side", [3, 9, 21])
def test_a_convolution_is_that_of_kornia(image, side):
    kernel = torch.rand(side, side, generator=generator_of(side))
    kernel /= kernel.sum()
    expected = filter2d(image[None], kernel[None], padding="same")[0]
    torch.testing.assert_close(convolve(image, kernel, 10), inner(expected, 10), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", CAMERAS)
def test_light_is_kept(kind):
    camera, light = CAMERAS[kind], 0.9 * blob()
    blurry, before = camera(light, generator_of(0)), inner(light, camera.margin)
    assert blurry.shape == before.shape
    assert (blurry - before).abs().max() > 0.01
    if kind not in ("six", "tilted"):  # a blur that varies moves light to where it counts otherwise
        torch.testing.assert_close(blurry.sum((1, 2)), before.sum((1, 2)), rtol=1e-4, atol=0)
    even = torch.full((3, 40, 40), 0.3)
    torch.testing.assert_close(camera(even, generator_of(1)), inner(even, camera.margin), rtol=1e-4, atol=0)


def test_tilted_defocus_has_the_disc_of_each_place():
    """White noise averaged over a disc has a variance of one over its area, so the variance tells the radius."""
    noise, camera = torch.randn(3, 420, 420, generator=generator_of(0)), TiltedDefocus(radius=(1, 6))
    for seed in range(4):
        draw = generator_of(seed)
        first, last = (1 + 5 * torch.rand((), generator=draw).item() for _ in range(2))
        angle = 2 * np.pi * torch.rand((), generator=draw).item()
        blurry = camera(noise, generator_of(seed))
        y, x = np.mgrid[-1 : 1 : blurry.shape[1] * 1j, -1 : 1 : blurry.shape[2] * 1j]
        place = (np.cos(angle) * x + np.sin(angle) * y) / (abs(np.cos(angle)) + abs(np.sin(angle)))
        for low, radius in ((-1.01, first), (0.75, last)):  # the two ends
            inside = torch.from_numpy((place > low) & (place < low + 0.26))
            ends = [disc(radius + (first + last - 2 * radius) * part).square().sum() for part in (0, 0.13)]
            assert min(ends) * 0.75 < blurry[:, inside].var() < max(ends) * 1.25


def test_together_is_one_after_the_other(image):
    parts, draw = [Defocus(radius=(1, 2)), CameraShake(length=(3, 6))], generator_of(5)
    expected, together = parts[1](parts[0](image, draw), draw), Together(parts)
    assert torch.equal(together(image, generator_of(5)), expected)
    assert together.margin == 3 + 4


@pytest.mark.parametrize("chunk", [1, 10**4, 2**16])
def test_views_are_averaged_as_kornia_warps_them(image, chunk, monkeypatch):
    monkeypatch.setattr("deblur.data.camera.CHUNK", chunk)
    views = SixDegrees(length=(3, 6)).views(generator_of(5), 48, 56)
    warped = [warp_perspective(image[None].double(), view[None], (48, 56), padding_mode="border")[0] for view in views]
    expected = torch.stack(warped).mean(0).float()
    torch.testing.assert_close(average_views(image, views, 2), inner(expected, 2), rtol=0, atol=2e-4)


def test_homographies_are_those_of_a_turned_and_moved_camera():
    # Where the place 10 right of the centre goes under a turn or shift of 0.1 each, by hand.
    cos, sin, focal = np.cos(0.1), np.sin(0.1), 80.0
    expected = [(10 / cos, -focal * np.tan(0.1)), (focal * (10 * cos + focal * sin) / (focal * cos - 10 * sin), 0)]
    expected += [(10 * cos, 10 * sin), (10 - focal * 0.1, 0), (10, -focal * 0.1), (10 / 0.9, 0)]
    centre = torch.tensor([30.0, 20])
    moved = homographies(0.1 * torch.eye(6), focal, centre) @ torch.tensor([40.0, 20, 1])
    torch.testing.assert_close(moved[:, :2] / moved[:, 2:] - centre, torch.tensor(expected, dtype=torch.float32))


def test_a_camera_moves_about_its_mean_pose():
    path = SixDegrees(length=(6, 6))._path(generator_of(0), 64, 64, middle(64, 64))
    assert path.mean(0).abs().max() < 1e-6 < 1e-3 < path.abs().max()


def moves(views, points):
    """How far (T, 3, 3) views move (x, y) points: (T, 2, points)."""
    places = torch.cat([torch.tensor(points), torch.ones(len(points), 1)], 1).T.double()
    moved = views @ places
    return moved[:, :2] / moved[:, 2:] - places[:2]


@pytest.mark.parametrize("frame", [None, 900])
def test_the_largest_shift_of_a_corner_is_the_length_asked_for(frame):
    camera = SixDegrees(length=(7, 7), frame=frame)
    for generator in generators(20):
        shift = moves(camera.views(generator, 64, 96), [[0.0, 0], [95, 0], [0, 63], [95, 63]]).norm(dim=1).max()
        # The first and last views stand half a pixel from the ends of the way.
        assert 5.9 < shift < 7.5
        assert shift < camera.margin


@pytest.mark.parametrize("length", [0.5, 4, 12])
def test_there_are_as_many_views_as_the_way_travelled_has_pixels(length):
    camera = SixDegrees(length=(length, length))
    for generator in generators(10):
        path = moves(camera.views(generator, 64, 96), [[0.0, 0], [95, 0], [0, 63], [95, 63]])
        steps = path.diff(dim=0).norm(dim=1)
        assert len(path) <= FINE
        assert steps.mean(0).max() < 1.25 * camera.spacing if len(path) > 2 else length < 1


def test_a_crop_of_a_photograph_is_blurred_as_at_its_place_there(image):
    camera = SixDegrees(length=(4, 6), frame=1280)
    wide = torch.rand(3, 120, 140, generator=generator_of(0), dtype=torch.float64)
    crop = wide[:, 30:94, 20:100]
    for seed in range(3):
        generator = generator_of(seed)
        centre = camera._centre(generator, 64, 80)
        poses = camera._path(generator, 64, 80, centre)
        whole = average_views(wide, homographies(poses, 1.2 * 1280, centre + torch.tensor([20, 30])), 0)
        blurry = camera(crop, generator_of(seed))
        assert (blurry - inner(crop, camera.margin)).abs().max() > 0.3
        torch.testing.assert_close(blurry, inner(whole[:, 30:94, 20:100], camera.margin), rtol=0, atol=2e-3)


def test_crops_lie_anywhere_in_the_photograph_and_turn_about_its_centre():
    camera = six_degrees([0, 0, 1.0, 0, 0, 0], length=(8, 8), frame=800)
    centres = torch.stack([camera._centre(g, 100, 120) for g in generators(500)]) - middle(100, 120)
    far = centres.abs()
    assert ((far <= torch.tensor([340.0, 250])).all(1) | (far <= torch.tensor([240.0, 350])).all(1)).all()
    assert (far.amax(0) / torch.tensor([340.0, 350]) - 1).abs().max() < 0.05  # lying and standing
    assert centres.mean(0).abs().max() < 30
    assert torch.equal(camera._centre(generator_of(0), 900, 1000), middle(900, 1000))  # larger than the photograph
    # A roll moves a crop's centre with its corners, but not where the crop is taken for the photograph.
    for frame, low, high in ((None, 0, 1e-3), (800, 0.5, 1)):
        camera, shares = six_degrees([0, 0, 1.0, 0, 0, 0], length=(8, 8), frame=frame), []
        for generator in generators(30):
            shift = moves(camera.views(generator, 100, 100), [[0.0, 0], [99, 0], [0, 99], [99, 99], [49.5, 49.5]])
            shift = shift.norm(dim=1)
            shares.append(shift[:, 4].max() / shift[:, :4].max())
        assert low <= torch.tensor(shares).median() <= high


def test_a_kernel_from_a_file_is_a_direct_convolution(tmp_path, image):
    kernel = np.random.default_rng(0).random((5, 5)).astype("float32")
    np.savez(tmp_path / "kernels.npz", one=kernel, large=np.ones((99, 99)))
    part = MeasuredKernels(str(tmp_path / "kernels.npz"))
    assert part.margin == 2
    assert len(MeasuredKernels(str(tmp_path / "kernels.npz"), largest=99).bank) == 2
    with pytest.raises(ValueError, match="no kernel of at most 3 x 3 pixels: raise largest"):
        MeasuredKernels(str(tmp_path / "kernels.npz"), largest=3)
    direct = scipy.ndimage.convolve(image[2].numpy(), kernel / kernel.sum(), mode="nearest")
    assert abs(part(image, generator_of(0))[2].numpy() - direct[2:-2, 2:-2]).max() < 1e-5
    np.savez(tmp_path / "even.npz", even=np.ones((4, 4)))
    with pytest.raises(ValueError, match="even"):
        MeasuredKernels(str(tmp_path / "even.npz"))


def test_measured_kernels():
    file = str(ASSETS / "kernels.npz")
    part, files = MeasuredKernels(file, largest=101), np.load(file)
    assert len(part.bank) == len(files.files) == 47
    assert len(MeasuredKernels(file).bank) == 42
    for kernel, name in zip(part.bank, files.files, strict=True):
        assert abs(kernel.sum() - 1) < 1e-5
        assert len(kernel) <= 2 * part.margin + 1 <= 101
        offsets = torch.arange(len(kernel)) - len(kernel) // 2.0
        assert max(abs(kernel.sum(axis) @ offsets) for axis in (0, 1)) <= 0.51  # none shifts the image by more
        # Moved and turned, not changed.
        assert np.allclose(np.sort(kernel[kernel > 0]), np.sort(files[name][files[name] > 0] / files[name].sum()))
    chosen = {len(part.kernel(generator)) for generator in generators(300)}
    assert chosen == {len(kernel) for kernel in part.bank}  # each in its own size


def test_a_disc_is_flat_and_round():
    kernel = disc(4.0)
    torch.testing.assert_close(kernel.sum(), torch.tensor(1.0))
    assert kernel[5, 5] == kernel[5, 8] == kernel[2, 5]
    assert kernel[5, 10] == 0
    assert torch.equal(kernel, kernel.T)
    assert torch.equal(disc(0.0), torch.ones(1, 1))


def test_the_ground_truth_can_be_the_middle_of_the_exposure():
    shake = CameraShake(length=(9, 15), curvature=(2, 3), truth="middle")
    for generator in generators(100):
        path = shake.trajectory(generator)
        assert path[len(path) // 2].abs().max() == 0
        assert path.norm(dim=1).max() <= shake.margin
    camera = SixDegrees(length=(6, 6), truth="middle")
    for generator in generators(20):
        views = camera.views(generator, 90, 120)
        torch.testing.assert_close(views[len(views) // 2], torch.eye(3).double().to(views))
        corners = torch.tensor([[0.0, 0, 1], [119, 0, 1], [0, 89, 1], [119, 89, 1]]).T.to(views)
        moved = views @ corners
        assert ((moved[:, :2] / moved[:, 2:]) - corners[:2]).norm(dim=1).max() < camera.margin


def test_a_steady_camera_keeps_its_direction():
    corner = torch.tensor([119.0, 89, 1])

    def turns(steady):
        """The mean cosine between the first and the last step of the corner's path."""
        camera = SixDegrees(length=(12, 12), steady=steady)
        cosines = []
        for generator in generators(60):
            seen = camera.views(generator, 90, 120) @ corner.double()
            path = seen[:, :2] / seen[:, 2:]
            cosines.append(torch.cosine_similarity(path[1] - path[0], path[-1] - path[-2], dim=0))
        return torch.stack(cosines).mean()

    assert turns(True) > 0.9
    assert turns(False) < 0.6
