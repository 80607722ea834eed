import pytest
import torch
import torch.nn.functional as F
from kornia.color import rgb_to_linear_rgb

from data.blur import CameraShake, convolve, rasterise
from data.pairs import generator_of


def generators(count, seed=0):
    return [generator_of(seed, i) for i in range(count)]


@pytest.fixture
def pictures():
    return torch.rand(4, 3, 48, 56, generator=torch.Generator().manual_seed(0))


def inside(tensor, margin):
    return tensor[..., margin:-margin, margin:-margin]


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
