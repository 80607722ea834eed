import pytest
import torch

from data.augment import Augment
from data.pairs import generator_of

PARTS = {"exposure": 1.0, "saturation": 0.5, "white_balance": 0.2, "cutblur": 1.0}


@pytest.fixture
def board():
    """A checkerboard in colour, and a batch of eight of it: equal sides, so that any misplacement shows."""
    checks = ((torch.arange(32)[:, None] // 4 + torch.arange(32)[None] // 4) % 2).float()
    colours = torch.rand(8, 3, 1, 1, generator=generator_of(0)) * 0.4 + 0.3
    return (0.2 + 0.6 * checks) * colours


@pytest.mark.parametrize("part", PARTS)
def test_pairs_stay_aligned(board, part):
    blurry, sharp = Augment(**{part: PARTS[part]})(board, board, generator_of(1))
    assert torch.equal(blurry, sharp)  # registration error 0
    assert (blurry - board).abs().max() > 0.01 or part == "cutblur"
    edges = [(side.mean(1).diff(dim=2).abs() > 1e-3).any(1) for side in (sharp, board)]
    assert torch.equal(*edges)  # the checks lie where they lay


def test_both_sides_change_alike():
    blurry = torch.rand(4, 3, 16, 16, generator=generator_of(2)) * 0.2 + 0.3
    sharp = blurry.flip(-1)
    augment = Augment(exposure=0.3, saturation=0.3, white_balance=0.1)
    ours, theirs = augment(blurry, sharp, generator_of(3))
    torch.testing.assert_close(ours.flip(-1), theirs)
    assert (ours - blurry).abs().max() > 0.02 and ours.min() >= 0 and ours.max() <= 1


def test_colours_keep_their_distance_from_the_pixel_s_own_grey():
    sharp = torch.rand(3, 3, 8, 8, generator=generator_of(6)) * 0.4 + 0.3
    found, _ = Augment(saturation=0.3)(sharp, sharp, generator_of(7))
    torch.testing.assert_close(found.mean(1), sharp.mean(1))  # its grey stays
    factor = (found - found.mean(1, keepdim=True)) / (sharp - sharp.mean(1, keepdim=True))
    torch.testing.assert_close(factor, factor[:, :1, :1, :1].expand_as(factor), rtol=1e-2, atol=0)
    assert factor[:, 0, 0, 0].std() > 0.01 and (factor - 1).abs().max() < 0.301


def test_white_balance_is_drawn_for_each_channel():
    sharp = torch.full((50, 3, 2, 2), 0.5)
    gain = Augment(white_balance=0.2)(sharp, sharp, generator_of(8))[0][:, :, 0, 0] / 0.5
    assert gain.min() >= 0.8 and gain.max() <= 1.2
    assert gain.diff(dim=1).std(0).min() > 0.05


def test_cutblur_takes_a_rectangle_from_the_sharp_side():
    blurry, sharp = torch.zeros(200, 3, 32, 32), torch.ones(200, 3, 32, 32)
    mixed, unchanged = Augment(cutblur=1)(blurry, sharp, generator_of(4))
    assert torch.equal(unchanged, sharp) and set(mixed.unique().tolist()) == {0, 1}
    inside = mixed[:, 0]
    inside = torch.where((inside.mean((1, 2)) > 0.5)[:, None, None], 1 - inside, inside)
    for one in inside[inside.sum((1, 2)) > 0][:50]:
        rows, columns = one.any(1), one.any(0)
        whole = torch.outer(rows, columns).float()
        assert torch.equal(one, whole) or torch.equal(1 - one, torch.outer(~one.all(1), ~one.all(0)).float())
    half = Augment(cutblur=0.5)(blurry, sharp, generator_of(5))[0].mean((1, 2, 3))
    assert 70 < (half > 0).sum() < 130


def test_off_changes_nothing_and_bad_values_are_named():
    sharp = torch.rand(2, 3, 8, 8)
    blurry, same = Augment()(sharp, sharp, generator_of(0))
    assert torch.equal(blurry, sharp) and torch.equal(same, sharp)
    for name in PARTS:
        with pytest.raises(ValueError, match=name):
            Augment(**{name: -1})
