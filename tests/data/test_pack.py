import subprocess
import sys
from pathlib import Path

import pytest
import torch

from data import images, pack
from data.datamodule import DeblurDataModule
from data.layouts import DatasetError, find_pairs
from data.pairs import TrainPairs, generator_of, shuffled

pytest.importorskip("litdata", reason="needs requirements-extra.txt")


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Twelve pairs and their shards of two or three pairs each."""
    root = tmp_path_factory.mktemp("packed")
    for i in range(12):
        sharp = torch.rand(3, 40, 50, generator=generator_of("packed", i))
        images.write(root / "pairs" / "sharp" / f"{i:02}.png", sharp)
        images.write(root / "pairs" / "blur" / f"{i:02}.png", 1 - sharp)
    pack.main(str(root / "pairs"), str(root / "shards"), num_workers=1, shard_bytes=30_000)
    return root


def test_shards_hold_the_very_pixels_of_the_files(packed):
    pairs, shards = find_pairs(packed / "pairs"), pack.Packed(str(packed / "shards"))
    assert len(shards) == 12 and sum(shards.shards) == 12 and 3 < len(shards.shards) < 12
    by_name = {shards[i].name: shards[i] for i in range(12)}
    assert sorted(by_name) == [pair.name for pair in pairs]
    for pair in pairs:
        for ours, theirs in zip(by_name[pair.name].read(), pair.read(), strict=True):
            assert ours.dtype == torch.uint8 and torch.equal(ours, theirs)


def test_crops_from_shards_are_those_of_the_files(packed):
    shards = pack.Packed(str(packed / "shards"))
    dataset = TrainPairs(shards, 16, crops_per_image=2)
    pairs = {pair.name: pair for pair in find_pairs(packed / "pairs")}
    for number in range(12):
        crops = dataset[number]
        alone = TrainPairs([pairs[crops[0]["name"]]], 16, crops_per_image=2)[number]
        assert all(torch.equal(a["blurry"], b["blurry"]) for a, b in zip(crops, alone, strict=True))


def test_the_order_of_shards_passes_over_everything_once():
    sizes = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    total = sum(sizes)
    epochs = [[shuffled(e * total + i, total, 0, sizes) for i in range(total)] for e in range(3)]
    assert all(sorted(epoch) == list(range(total)) for epoch in epochs) and epochs[0] != epochs[1] != epochs[2]
    twice = [shuffled(i, 2 * total, 0, sizes) for i in range(2 * total)]
    assert sorted(twice) == sorted([*range(total), *range(total)])
    shard = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    first = {next(k for k, end in enumerate(shard) if item < end) for item in epochs[0][:8]}
    assert len(first) > 2  # mixed, not one shard after the other


READ = """
import sys
from torch.utils.data import DataLoader
from data.pack import Packed
from data.pairs import TrainPairs, flatten
root, first, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
stream = range(first, first + 1000)
for batch in DataLoader(TrainPairs(Packed(root), 16), 2, sampler=stream, num_workers=workers, collate_fn=flatten):
    print(" ".join(batch["name"]), flush=True)
"""


def names_seen(root, processed, workers, count):
    """Start to read after `processed` batches of two, take `count` and kill the process."""
    command = [sys.executable, "-c", READ, str(root), str(2 * processed), str(workers)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True)
    try:
        return [name for _ in range(count) for name in run.stdout.readline().split()]
    finally:
        run.kill()
        run.wait()


def test_a_killed_and_resumed_epoch_sees_every_sample_once(packed):
    seen = names_seen(packed / "shards", 0, 0, 2) + names_seen(packed / "shards", 2, 2, 4)
    assert sorted(seen) == [f"{i:02}" for i in range(12)]
    assert seen != sorted(seen)


def test_shards_through_the_data_module(packed):
    data = DeblurDataModule(train=str(packed / "shards"), patch_size=16, batch_size=4, crops_per_image=2)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch["blurry"].shape == (4, 3, 16, 16)
    torch.testing.assert_close(batch["blurry"], 1 - batch["sharp"], atol=1 / 255, rtol=0)


def test_what_cannot_be_packed(packed, tmp_path):
    with pytest.raises(DatasetError, match="is not empty"):
        pack.main(str(packed / "pairs"), str(packed / "shards"))
    with pytest.raises(DatasetError, match="not a folder"):
        pack.main(str(tmp_path / "gone"), str(tmp_path / "out"))
