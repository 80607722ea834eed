import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from kornia.color import linear_rgb_to_rgb, rgb_to_linear_rgb
from scipy.ndimage import convolve

from data import images
from data.datamodule import DeblurDataModule
from data.layouts import find_pairs
from data.make_test_set import main, read_blur
from data.pairs import read_pair

NOISE = "      shot_noise: [0.001, 0.001]\n      jpeg: [60, 95]\n"
BLUR = """
data:
  batch_size: 4
  blur:
    class_path: data.blur.SyntheticBlur
    init_args:
      camera:
        - {class_path: data.blur.SixDegrees, init_args: {length: [2, 4], instants: 16}}
        - {class_path: data.blur.UniformShake, init_args: {length: [3, 9]}}
        - {class_path: data.blur.Defocus, init_args: {radius: [1, 2]}}
      moving: {probability: 1}
"""


@pytest.fixture
def photos(tmp_path):
    for name in ("a", "b", "left_out"):
        coarse = torch.rand(1, 3, 10, 12, generator=torch.Generator().manual_seed(ord(name[0])))
        photo = torch.nn.functional.interpolate(coarse, (60, 72), mode="bicubic")[0].clamp(0, 1)
        images.write(tmp_path / "photos" / f"{name}.png", photo)
    (tmp_path / "photos" / "test.txt").write_text("a.png\nb.png\n")
    (tmp_path / "config.yaml").write_text(BLUR + NOISE)
    return tmp_path / "photos"


def make(photos, name, *flags, config="config.yaml"):
    folder = photos.parent / name
    main([str(photos), "--config", str(photos.parent / config), "--output", str(folder), *flags])
    return folder


def test_a_set_is_what_the_data_module_tests_on(photos):
    pairs = find_pairs(make(photos, "set"))
    assert [pair.name for pair in pairs] == ["a", "b"]
    module = DeblurDataModule(test=str(photos), blur=read_blur(photos.parent / "config.yaml"))
    module.setup("test")
    for pair, batch in zip(pairs, module.test_dataloader(), strict=True):
        batch = module.on_after_batch_transfer(batch, 0)
        for ours, theirs in zip(read_pair(pair), (batch["blurry"][0], batch["sharp"][0]), strict=True):
            assert ours.shape == theirs.shape and (ours - theirs).abs().max() < 0.51 / 255
        assert (batch["blurry"] - batch["sharp"]).abs().mean() > 0.01


def test_a_seed_makes_the_same_files(photos):
    files = [
        (make(photos, f"set{i}", "--seed", seed, "--crop", "20") / "blur" / "a.png").read_bytes()
        for i, seed in enumerate("001")
    ]
    assert files[0] == files[1] != files[2]
    assert images.read(photos.parent / "set0" / "sharp" / "a.png").shape == (3, 20, 20)
    facts = json.loads((photos.parent / "set2" / "test_set.json").read_text())
    assert (facts["seed"], facts["photos"], facts["crop"]) == (1, 2, 20)
    assert facts["blur"]["class_path"] == "data.blur.SyntheticBlur"


@pytest.mark.parametrize("blur", ["SyntheticBlur", "CameraShake"])
def test_the_kernels_are_those_of_the_blur(photos, blur):
    shake = "{class_path: data.blur.CameraShake, init_args: {length: [3, 9], noise: [0, 0.002]}}"
    (photos.parent / "config.yaml").write_text(BLUR if blur == "SyntheticBlur" else f"data: {{blur: {shake}}}")
    folder = make(photos, "set", "--uniform", "true")
    kernels = np.load(folder / "kernels.npz")
    assert sorted(kernels) == ["a", "b"] and not np.array_equal(kernels["a"], kernels["b"])
    for pair in find_pairs(folder):
        kernel, (blurry, sharp) = kernels[pair.name], read_pair(pair)
        assert kernel.sum() == pytest.approx(1, abs=1e-5)
        light = rgb_to_linear_rgb(sharp).numpy()
        ours = linear_rgb_to_rgb(torch.from_numpy(convolve(light, kernel[None])))
        mirrored = linear_rgb_to_rgb(torch.from_numpy(convolve(light, kernel[None, ::-1, ::-1])))
        inside = (slice(None), slice(len(kernel), -len(kernel)), slice(len(kernel), -len(kernel)))
        error, wrong = ((one - blurry)[inside].abs().mean() for one in (ours, mirrored))
        assert error < 1 / 255 and error <= wrong
        asymmetric = np.abs(kernel - kernel[::-1, ::-1]).max() > 0.02
        assert not asymmetric or error < 0.9 * wrong


def test_without_one_kernel_there_are_none(photos):
    assert not (make(photos, "set") / "kernels.npz").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda photos: (photos.parent / "config.yaml").unlink(), "config.yaml"),
        (lambda photos: (photos.parent / "config.yaml").write_text("data: {train: x}"), "has no data.blur"),
        (lambda photos: (photos.parent / "config.yaml").write_text("[1]"), "no config file of train.py"),
        (lambda photos: (photos.parent / "config.yaml").write_text(BLUR + "      cam: 3"), "'cam' is not accepted"),
        (lambda photos: (photos.parent / "config.yaml").write_text(BLUR + "      jpeg: [0, 7]"), "jpeg must be"),
        (lambda photos: (photos / "test.txt").write_text("a.png\nmissing.png\n"), "lists missing.png"),
        (lambda photos: (photos / "b.png").write_bytes(b"no picture"), "b.png"),
        (lambda photos: (photos.parent / "set").mkdir() or (photos.parent / "set/file").touch(), "not an empty folder"),
    ],
)
def test_faults_are_one_sentence_and_leave_nothing(photos, change, sentence):
    change(photos)
    before = sorted(photos.parent.rglob("*"))
    with pytest.raises((ValueError, OSError), match=sentence) as caught:
        make(photos, "set")
    assert "\n" not in str(caught.value)
    assert sorted(photos.parent.rglob("*")) == before


def test_the_command_says_one_sentence(photos):
    command = [sys.executable, "-m", "data.make_test_set", photos, "--config", "missing.yaml", "--output"]
    run = subprocess.run([*command, photos.parent / "set"], capture_output=True, text=True)
    assert run.returncode == 2 and run.stdout == "" and run.stderr.count("\n") == 1
    assert run.stderr.startswith("data.make_test_set: error: ") and "missing.yaml" in run.stderr
