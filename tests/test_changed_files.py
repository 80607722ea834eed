"""A file that changed is another one, also with as many bytes as before."""

import os

import torch

from data import images
from data.layouts import Pair
from data.scored_pairs import read_baselines
from restoration.manifest import Manifest


def test_an_image_written_again_with_as_many_bytes_is_not_done(tmp_path):
    image, out = tmp_path / "a.png", tmp_path / "out"
    image.write_bytes(b"12")
    out.mkdir()
    (out / "a.png").write_bytes(b"restored")
    manifest = Manifest(out, {"seed": 0})
    manifest.add(image, [out / "a.png"], {})
    assert manifest.has(image)
    os.utime(image, ns=(0, image.stat().st_mtime_ns + 1))
    assert not manifest.has(image) and manifest.replaces(image, [])


def test_outputs_of_another_program_are_named_by_all_their_bytes(tmp_path):
    sharp, outputs = tmp_path / "sharp.png", tmp_path / "outputs"
    images.write(sharp, torch.zeros(3, 8, 8))
    names = ["a", "b"]
    hashes = []
    for changed in (None, *names):
        for name in names:
            images.write(outputs / f"{name}.png", torch.full((3, 8, 8), 0.5 if name == changed else 0.0))
        hashes.append(read_baselines(str(outputs), [Pair(name, sharp, sharp) for name in names])[1]["outputs outputs"])
    assert len(set(hashes)) == 3
