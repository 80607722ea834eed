import torch

from data import images, search
from data.layouts import find_pairs
from data.pairs import read_pair
from tools import demo


def detail(image):
    """Mean absolute change over two pixels, which weak noise hardly adds to."""
    return sum((image.narrow(d, 2, 254) - image.narrow(d, 0, 254)).abs().mean() for d in (1, 2))


def test_demo_photographs(tmp_path, capsys):
    demo.main(str(tmp_path / "photos"))
    assert "8 sharp photographs in train, 2 pairs in val, 6 in test" in capsys.readouterr().out
    assert len(search.find(tmp_path / "photos" / "train")) == 8
    assert images.read(tmp_path / "photos" / "clock_motion.png").shape == (3, 300, 400)
    val, test = (find_pairs(tmp_path / "photos", split) for split in ("val", "test"))
    scenes = [{name.split(".")[0].split("_")[0] for name in demo.TRAIN}]
    scenes += [{pair.name.split("_")[0] for pair in pairs} for pairs in (val, test)]
    assert sum(map(len, scenes)) == len(set.union(*scenes)) == 7 + 1 + 3  # the motorcycles are one scene
    found = []
    for pair in val + test:
        blurry, sharp = read_pair(pair)
        assert sharp.shape == (3, 256, 256)
        # Blur of 3 to 11 pixels leaves 41 to 87 % of the detail.
        assert 21 < -10 * torch.log10(((blurry - sharp) ** 2).mean()) < 38
        assert 0.4 < detail(blurry) / detail(sharp) < 0.9
        # Where averages over 21 x 21 pixels lie closest to each other.
        blurry, sharp = torch.nn.functional.avg_pool2d(torch.stack([blurry, sharp]), 21, stride=1)
        shifts = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]
        errors = [((blurry - sharp.roll(at, (1, 2)))[:, 1:-1, 1:-1] ** 2).mean() for at in shifts]
        found.append(shifts[torch.stack(errors).argmin()])
    assert torch.tensor(found).float().mean(0).abs().max() <= 0.5  # no shift that all have in common

    demo.main(str(tmp_path / "again"))
    first, again = (images.read(tmp_path / folder / "test/blur/coffee_1.png") for folder in ("photos", "again"))
    assert torch.equal(first, again)
