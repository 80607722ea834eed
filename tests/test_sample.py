"""sample.py as people call it: real files in, real files out, one sentence for what cannot be done."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import sample
from data import images
from models.pipeline import DeblurPipeline
from tests.models.test_pipeline import tiny_pipeline

ROOT = Path(__file__).parents[1]
REALBLUR = ROOT.parent / "shared" / "realblur"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline") / "checkpoint"
    tiny_pipeline().save_pretrained(folder)
    return folder


@pytest.fixture
def photos(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for name, size in (("a.png", (20, 31)), ("sub/b.jpg", (17, 9)), ("c.webp", (1, 1))):
        images.write(tmp_path / "photos" / name, torch.rand(3, *size, generator=generator))
    return tmp_path / "photos"


def run(*arguments):
    return sample.main([*map(str, arguments), "--steps", "2"])


def test_a_folder_keeps_its_tree_and_sizes(checkpoint, photos, tmp_path):
    assert run(photos, "--checkpoint", checkpoint, "--output", tmp_path / "out") == 0
    found = {file.relative_to(tmp_path / "out").as_posix(): file for file in (tmp_path / "out").rglob("*.*")}
    assert set(found) == {"a.png", "sub/b.png", "c.png"}
    assert Image.open(found["a.png"]).size == (31, 20) and Image.open(found["c.png"]).size == (1, 1)


def test_what_is_written_is_what_the_pipeline_restores(checkpoint, photos, tmp_path):
    run(
        photos / "a.png", "--checkpoint", checkpoint, "--output", tmp_path / "out", "--seed", "3", "--precision", "fp32"
    )
    pipeline = DeblurPipeline.from_pretrained(checkpoint, low_cpu_mem_usage=False)
    blurry = images.read(photos / "a.png")
    settings = sample.SamplingSettings(steps=2)
    expected = pipeline(blurry, settings, seed=3, names=["a"], output_type="pt").images[0]
    assert (images.read(tmp_path / "out" / "a.png") - expected).abs().max() <= 0.51 / 255


def test_a_seed_reproduces_alone_or_in_a_folder(checkpoint, photos, tmp_path):
    for output, source, seed in (("1", photos, 5), ("2", photos / "a.png", 5), ("3", photos / "a.png", 6)):
        run(source, "--checkpoint", checkpoint, "--output", tmp_path / output, "--seed", seed)
    one, two, three = ((tmp_path / output / "a.png").read_bytes() for output in "123")
    assert one == two and one != three


def test_several_samples_and_their_mean(checkpoint, photos, tmp_path):
    command = [photos / "a.png", "--checkpoint", checkpoint, "--num_samples", "3"]
    run(*command, "--output", tmp_path / "each")
    run(*command, "--output", tmp_path / "mean", "--average", "true")
    each = [images.read(tmp_path / "each" / f"a_{k}.png") for k in range(3)]
    assert not torch.equal(each[0], each[1])
    assert (images.read(tmp_path / "mean" / "a.png") - torch.stack(each).mean(0)).abs().max() < 1.01 / 255


def test_one_bad_picture_is_named_and_the_rest_is_done(checkpoint, photos, tmp_path, capsys):
    whole = (photos / "a.png").read_bytes()
    (photos / "truncated.png").write_bytes(whole[: len(whole) // 2])
    (photos / "text.png").write_text("not a picture")
    assert run(photos, "--checkpoint", checkpoint, "--output", tmp_path / "out") == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(errors) == 2 and "text.png" in errors[0] and "truncated.png" in errors[1]
    assert {file.name for file in (tmp_path / "out").rglob("*.png")} == {"a.png", "b.png", "c.png"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["nowhere.png"], "nowhere.png"),
        (["empty"], "holds no picture"),
        (["photos", "--steps", "0"], "steps"),
        (["photos", "--checkpoint", "nowhere"], "checkpoint nowhere"),
        (["photos", "--device", "cuda:99"], "cuda:99"),
        (["photos", "--output", "photos/a.png/out"], "photos/a.png"),
        (["photos", "--output", "photos"], "would be overwritten"),
        (["twins"], "would both be written"),
    ],
)
def test_bad_input_is_one_sentence(checkpoint, photos, tmp_path, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("x.png", "x.jpg"):
        images.write(tmp_path / "twins" / name, torch.rand(3, 4, 4))
    with pytest.raises((ValueError, OSError)) as caught:
        sample.main([flags[0], "--checkpoint", str(checkpoint), "--output", "out", *flags[1:]])
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_process_says_it_without_a_traceback(checkpoint, tmp_path):
    def process(*arguments):
        command = [sys.executable, str(ROOT / "sample.py"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    wrong = process("nowhere.png", "--checkpoint", checkpoint, "--output", "out")
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr
    assert wrong.stderr.strip().splitlines()[-1].startswith("sample.py: error: nowhere.png")
    unknown = process("nowhere.png", "--checkpoint", checkpoint, "--output", "out", "--sampler", "euler")
    assert unknown.returncode == 2 and "sampler" in unknown.stderr and "Traceback" not in unknown.stderr


def test_help_and_wrong_arguments_come_before_torch():
    code = "import sys, sample\ntry:\n sample.main({})\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    for arguments in (["--help"], ["x", "--sampler", "euler", "--checkpoint", "c", "--output", "o"]):
        process = subprocess.run([sys.executable, "-c", code.format(arguments)], cwd=ROOT, capture_output=True)
        assert process.returncode == 0, process.stderr


@pytest.mark.skipif(not REALBLUR.is_dir(), reason="the real photographs are not here")
def test_real_captured_pictures_go_through(checkpoint, tmp_path):
    assert run(REALBLUR / "captured" / "blur", "--checkpoint", checkpoint, "--output", tmp_path) == 0
    assert len(list(tmp_path.glob("*.png"))) == 4
