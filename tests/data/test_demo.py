import subprocess
import sys

import torch

from data import demo, images
from data.layouts import find_pairs
from data.pairs import read_pair


def test_demo_photographs(tmp_path, capsys):
    demo.main(str(tmp_path / "photos"))
    assert "11 sharp photographs in train, 6 pairs in test, clock_motion.png" in capsys.readouterr().out
    assert len(images.find(tmp_path / "photos" / "train")) == 11
    assert images.read(tmp_path / "photos" / "clock_motion.png").shape == (3, 300, 400)
    trained_on = {name.split(".")[0].split("_")[0] for name in demo.TRAIN}
    for pair in find_pairs(tmp_path / "photos", "test"):
        assert pair.name.split("_")[0] not in trained_on
        blurry, sharp = read_pair(pair)
        assert sharp.shape == (3, 256, 256)
        psnr = -10 * torch.log10(((blurry - sharp) ** 2).mean())
        assert 20 < psnr < 30  # clearly blurred, and neither shifted nor another place

    demo.main(str(tmp_path / "again"))
    demo.main(str(tmp_path / "other"), seed=1)
    first, again, other = (
        images.read(tmp_path / folder / "test/blur/coffee_1.png") for folder in ("photos", "again", "other")
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_unwritable_output_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "data.demo", "--output", str(tmp_path / "file" / "photos")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr.startswith("The photographs cannot be written") and run.stderr.count("\n") == 1
