import itertools
from collections import Counter

import pytest
import torch

from deblur.data.files import images, search
from deblur.data.layouts import DatasetError, find_pairs
from deblur.data.pairs import (
    FramePairs,
    FrameSharp,
    Mix,
    TrainPairs,
    TrainSharp,
    Window,
    cut,
    draw_windows,
    flatten,
    generator_of,
    shuffled,
)
from deblur.seeds import seed_of


def coordinates(height, width, blue):
    """An image that says in every pixel where it is: (row, column, blue) / 255."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([rows, columns, torch.full((height, width), blue)]) / 255


@pytest.fixture
def pairs(tmp_path):
    for i in range(5):
        images.write(tmp_path / "blur" / f"{i}.png", coordinates(40 + i, 60, i))
        images.write(tmp_path / "sharp" / f"{i}.png", coordinates(40 + i, 60, 100 + i))
    return find_pairs(tmp_path)


def sharp_frames(folder, **options):
    return FrameSharp(search.find(folder), folder, **options)


def same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) if torch.is_tensor(a[key]) else a[key] == b[key] for key in a)


def test_pairs_stay_aligned_through_every_augmentation(pairs):
    dataset, turns = TrainPairs(pairs, patch_size=16, crops_per_image=2), set()
    for number in range(60):
        for crop in dataset[number]:
            blurry, sharp = (crop["blurry"] * 255).round(), (crop["sharp"] * 255).round()
            assert blurry.shape == (3, 16, 16)
            assert blurry.is_contiguous()
            assert torch.equal(blurry[:2], sharp[:2])  # the same place in every pixel
            assert (blurry[2] == int(crop["name"])).all()
            assert (sharp[2] == 100 + int(crop["name"])).all()
            place = blurry[:2]  # a square window of the image, moved by a symmetry of the square
            assert place[0].unique().numel() == place[1].unique().numel() == 16
            right, down = place[:, 0, 1] - place[:, 0, 0], place[:, 1, 0] - place[:, 0, 0]
            turns.add((*right.tolist(), *down.tolist()))
    assert len(turns) == 8


def random_crops(image, size, count, generator):
    return [cut(image, size, window) for window in draw_windows(*image.shape[-2:], size, count, generator)]


def test_crops_reach_every_place():
    corners = Counter()
    for crop in random_crops(coordinates(18, 17, 0), 16, 600, generator_of("corners")):
        corners[tuple((crop[:2] * 255).round().amin((1, 2)).int().tolist())] += 1
    assert len(corners) == 3 * 2
    assert min(corners.values()) > 60


def test_the_stream_is_a_function_of_seed_and_number(pairs):
    dataset = TrainPairs(pairs, patch_size=16, seed=3, crops_per_image=2)
    forward = [dataset[number] for number in range(12)]
    again = TrainPairs(pairs, patch_size=16, seed=3, crops_per_image=2)
    for number in reversed(range(12)):
        same(again[number], forward[number])
    other = TrainPairs(pairs, patch_size=16, seed=4, crops_per_image=2)
    assert any(not torch.equal(other[n][0]["sharp"], forward[n][0]["sharp"]) for n in range(3))


def test_every_epoch_sees_every_file_once_in_a_new_order():
    epochs = [[shuffled(epoch * 20 + i, 20, seed=0) for i in range(20)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != list(range(20))


def test_sharp_crops_carry_their_margin_and_a_seed_each(pairs):
    dataset = TrainSharp([pair.sharp for pair in pairs], patch_size=16, margin=3, crops_per_image=3)
    crops = [crop for number in range(4) for crop in dataset[number]]
    assert all(crop["sharp"].shape == (3, 22, 22) for crop in crops)
    assert len({crop["seed"] for crop in crops}) == 12
    same(dataset[2], dataset[2])


def test_small_images_are_reflected_up_to_the_patch():
    line = torch.tensor([1.0, 2, 3]).expand(1, 1, 3)
    (crop,) = random_crops(line, 3, 1, generator_of(0))  # one row becomes three equal ones
    assert sorted(crop.flatten().tolist()) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    (crop,) = random_crops(line, 8, 1, generator_of(0))
    rows = crop[0] if crop[0, 0].unique().numel() > 1 else crop[0].T
    assert rows[0].tolist() in ([1, 2, 3, 2, 1, 2, 3, 2], [2, 3, 2, 1, 2, 3, 2, 1])


def test_frames_come_whole_or_from_the_centre(pairs):
    whole, centre = FramePairs(pairs), FramePairs(pairs, crop=20)
    assert len(whole) == 5
    assert [frame["name"] for frame in whole] == ["0", "1", "2", "3", "4"]
    assert torch.equal(whole[1]["blurry"], images.read(pairs[1].blurry))
    for key in ("blurry", "sharp"):
        assert torch.equal(centre[0][key], whole[0][key][:, 10:30, 20:40])
    assert FramePairs(pairs, crop=50)[0]["sharp"].shape == (3, 40, 50)


def test_sharp_frames_have_a_seed_from_their_name(pairs, tmp_path):
    frames = sharp_frames(tmp_path / "sharp", margin=4, seed=7, crop=20)
    assert [frame["name"] for frame in frames] == ["0", "1", "2", "3", "4"]
    assert [frame["seed"] for frame in frames] == [seed_of(7, str(i)) for i in range(5)]
    assert frames[0]["sharp"].shape == (3, 28, 28)
    (tmp_path / "sharp" / "0.png").unlink()
    assert sharp_frames(tmp_path / "sharp", margin=4, seed=7)[0]["seed"] == frames[1]["seed"]
    with pytest.raises(DatasetError, match=r"1\.png has 60x41 pixels"):
        sharp_frames(tmp_path / "sharp", margin=21)[0]


def test_a_mix_gives_every_dataset_its_share(pairs):
    parts = [TrainPairs(pairs[:2], 16, seed=1), TrainPairs(pairs[2:], 16, seed=2), TrainPairs(pairs[:1], 16, seed=3)]
    for weights, shares in (([3, 1, 2], [3, 1, 2]), ([None, None, None], [2, 3, 1])):
        mix = Mix(parts, weights)
        places = [mix.place(number) for number in range(600)]
        for which, share in enumerate(shares):
            own = [at for part, at in places if part == which]
            assert own == list(range(100 * share))  # each goes through its own stream, leaving nothing out
        gaps = [sum(part == 0 for part, _ in places[at : at + 6]) for at in range(0, 600, 6)]
        assert max(gaps) - min(gaps) <= 1  # evenly spread
    same(mix[7], parts[mix.place(7)[0]][mix.place(7)[1]])


def test_a_window_mixes_crops_over_batches(pairs):
    dataset = TrainPairs(pairs, 16, crops_per_image=4)
    batches = [flatten([dataset[number]]) for number in range(12)]

    def stream(first):
        return [flatten([dataset[number]]) for number in range(first // 4 * 4, 12)]

    mixed = list(itertools.islice(Window(stream(0), 4, 0, lambda: 0), 12))
    for at in (0, 4, 8):
        crops = [[crop for batch in side[at : at + 4] for crop in batch["sharp"]] for side in (mixed, batches)]
        ours, theirs = (sorted(crop.sum().item() for crop in side) for side in crops)
        assert ours == theirs  # nothing lost, nothing twice
    assert all(len(set(batch["name"])) > 1 for batch in mixed[:8])
    resumed = list(itertools.islice(Window(stream(6), 4, 0, lambda: 6), 6))
    for ours, theirs in zip(resumed, mixed[6:], strict=True):
        assert ours["name"] == theirs["name"]
        assert torch.equal(ours["blurry"], theirs["blurry"])
