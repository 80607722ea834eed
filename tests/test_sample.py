"""sample.py as people call it: real files in, real files out, one sentence for what cannot be done."""

import json
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import sample
from data import images
from models.checkpoints import load_pipeline
from models.heads import IdentityPredictor
from models.pipeline import DeblurPipeline
from models.settings import SamplingSettings
from models.slim_unet import SlimPredictor
from restoration.options import Options
from tests import processes
from tests.conftest import ROOT
from tests.processes import Command, torchrun, until
from tests.tiny import tiny_pipeline


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


def with_presets(folder, **presets):
    """A checkpoint with these presets."""
    pipeline = tiny_pipeline()
    pipeline.register_to_config(presets=presets)
    pipeline.save_pretrained(folder / "checkpoint")
    return str(folder / "checkpoint")


def run(*arguments):
    return sample.main([*map(str, arguments), "--steps", "2"])


def test_a_folder_keeps_its_tree_and_sizes(checkpoint, photos, tmp_path):
    assert run(photos, "--checkpoint", checkpoint, "--output", tmp_path / "out") == 0
    found = {file.relative_to(tmp_path / "out").as_posix(): file for file in (tmp_path / "out").rglob("*.*")}
    assert set(found) == {"a.png", "sub/b.jpg", "c.webp", "manifest.json", ".manifest.json.lock"}
    assert Image.open(found["a.png"]).size == (31, 20) and Image.open(found["c.webp"]).size == (1, 1)


def test_what_is_written_is_what_the_pipeline_restores(checkpoint, photos, tmp_path):
    run(
        photos / "a.png", "--checkpoint", checkpoint, "--output", tmp_path / "out", "--seed", "3", "--precision", "fp32"
    )
    pipeline = load_pipeline(str(checkpoint), precision="fp32")
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
    run(*command, "--output", tmp_path / "mean", "--average", "true", "--uncertainty", "true")
    each = [images.read(tmp_path / "each" / f"a_{k}.png") for k in range(3)]
    assert not torch.equal(each[0], each[1])
    assert (images.read(tmp_path / "mean" / "a.png") - torch.stack(each).mean(0)).abs().max() < 1.01 / 255
    std = tifffile.imread(tmp_path / "mean" / "a_std.tif")
    assert std.shape == (20, 31, 3) and std.dtype == "float32" and 0 < std.mean() < 0.5


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["nowhere.png"], "nowhere.png"),
        (["empty"], "holds no image"),
        (["photos", "--steps", "0"], "steps"),
        (["photos", "--checkpoint", "nowhere"], "checkpoint nowhere"),
        (["photos", "--device", "cuda:99"], "cuda:99"),
        (["photos", "--output", "photos/a.png/out"], "photos/a.png"),
        (["photos", "--output", "photos"], "would be overwritten"),
        (["photos", "--output", "a.png"], "--output a.png is a file's name, and there are 3 images: give a folder"),
        (["photos/a.png", "--output", "a.ppm"], "--output a.ppm cannot be written: its suffix must be one of"),
        (["photos/a.png", "--output", "b.png", "--format", "tif"], "--output b.png and --format tif differ"),
        (["photos", "--preset", "percptual"], "perceptual, not percptual: did you mean perceptual?"),
        (
            ["photos", "--format", "jpegg"],
            "--format is one of png, jpg, jpeg, webp, tif, tiff, bmp, avif, not jpegg: did you",
        ),
        (
            ["photos", "--sampler", "dimm"],
            "one of ddpm, ddim, dpmsolver++, unipc, not dimm: did you mean",
        ),
        (["photos", "--depth", "12"], "--depth is one of 8, 16, not 12"),
        (["photos", "--step", "2"], "--step is unknown: did you mean --steps?"),
        (["photos", "--steps", "two"], "--steps is a whole number, not two"),
        (["photos", "--steps"], "--steps needs a value"),
        (["photos", "--memory", "0.1"], "--memory 0.1 is less than the program itself takes, "),
        (["photos", "--preset", "perceptual"], "no preset 'perceptual'"),
        (["photos", "--uncertainty", "true"], "--num_samples"),
        (["photos", "--tile", "8"], "64 pixels"),
        (["photos/*.ppm"], "photos/*.ppm holds no image"),
        (["photos", "--batch_size", "0"], "--batch_size"),
        (["photos", "--depth", "16"], "c.webp cannot hold 16 bits"),
        (["photos", "--format", "png", "--output", "photos"], "photos/a.png is an input"),
    ],
)
def test_bad_input_is_one_sentence(checkpoint, photos, tmp_path, monkeypatch, capsys, flags, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert sample.main([flags[0], "--checkpoint", str(checkpoint), "--output", "out", *flags[1:]]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("sample.py: error: ") and words in sentence
    assert not any(word in sentence for word in ("typing", "Literal", "Union", "NoneType", "usage:"))


@pytest.mark.parametrize(("given", "words"), [([], "no image is named"), (["photo.jpg"], "--output is missing")])
def test_what_is_missing_on_the_command_line(capsys, given, words):
    assert sample.main(given) == 2 and words in capsys.readouterr().err


def test_help_and_wrong_arguments_come_before_torch():
    code = "import sys, sample; print([sample.main(a) for a in {}], {{'torch', 'numpy', 'PIL'}} & {{*sys.modules}})"
    given = [["nowhere.png"], ["docs", "--sampler", "euler"], ["docs", "--checkpoint", "c"], ["docs", "--steps", "0"]]
    commands = [["--help"], *([*one, "--output", "o"] for one in given)]
    process = subprocess.run(
        [sys.executable, "-c", code.format(commands)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert process.stdout.splitlines()[-1] == "[0, 2, 2, 2, 2] set()", process.stderr


def default(text, flag):
    """The default of a flag in --help."""
    about = text.partition(f"  --{flag} ")[2].partition("  --")[0]
    return " ".join(about.split()).rpartition("default: ")[2].rstrip(")")


def test_the_help_shows_the_numbers_of_the_checkpoint(photos, tmp_path, capsys):
    named = with_presets(tmp_path, balanced={"steps": 3, "blend": 0.25}, fidelity={"steps": 5})
    assert sample.main(["--help", "--checkpoint", named]) == 0
    said = capsys.readouterr().out
    flags = {field.name for kind in (Options, SamplingSettings) for field in fields(kind)}
    assert {line.split()[0] for line in said.splitlines() if line.startswith("  --")} == {f"--{name}" for name in flags}
    assert default(said, "steps") == "3" and default(said, "blend") == "0.25"
    assert sample.main(["--checkpoint", named, "--preset", "fidelity", "--help"]) == 0
    assert default(capsys.readouterr().out, "steps") == "5"
    assert sample.main(["--help"]) == 0
    assert default(capsys.readouterr().out, "blend") == "0.5"  # of pretrained/lite


@pytest.mark.parametrize(
    ("preset", "flags", "words"),
    [
        ({"eta": 1.0}, ["--sampler", "ddpm"], "ddpm, 2 steps"),
        ({"eta": 1.0}, ["--sampler", "dpmsolver++"], "dpmsolver++, 2 steps"),
        ({"eta": 1.0}, ["--sampler", "unipc"], "unipc, 2 steps"),
        ({"eta": 1.0}, ["--sampler", "ddim"], "ddim, eta 1, 2 steps"),
        ({"sampler": "ddpm"}, ["--eta", "0.5"], "ddim, eta 0.5, 2 steps"),
        ({"sampler": "ddpm"}, ["--eta", "0"], "ddpm, 2 steps"),
    ],
)
def test_a_flag_replaces_what_belongs_to_the_presets_other_choice(photos, tmp_path, capsys, preset, flags, words):
    named = with_presets(tmp_path, balanced={"steps": 2} | preset)
    command = [str(photos / "a.png"), "--checkpoint", named, "--output", str(tmp_path / "out")]
    assert sample.main([*command, *flags]) == 0
    assert f"balanced: {words}, blend 1; " in capsys.readouterr().out
    assert sample.main([*command, "--sampler", "ddpm", "--eta", "1"]) == 2  # an explicit contradiction
    assert "eta belongs to the sampler ddim" in capsys.readouterr().err


def test_what_is_done_stands_in_a_line_and_in_the_manifest(photos, tmp_path, capsys):
    named = with_presets(tmp_path, balanced={"steps": 3, "blend": 0.25})
    images.write(tmp_path / "large.png", torch.rand(3, 150, 170))
    command = ["--checkpoint", named, "--output", str(tmp_path / "out"), "--precision", "fp32"]
    assert sample.main([str(photos / "a.png"), *command]) == 0
    title = f"{named}, balanced: ddim, 3 steps, blend 0.25; cpu, fp32; "
    assert f"{title}whole image" in capsys.readouterr().out.splitlines()
    assert sample.main([str(tmp_path / "large.png"), *command, "--tile", "64", "--device", "cpu"]) == 0
    assert f"{title}denoiser in tiles of 64" in capsys.readouterr().out.splitlines()
    small, large = json.loads((tmp_path / "out" / "manifest.json").read_text()).values()
    assert small["tiles"] == {"predictor": None, "denoiser": None} and large["tiles"]["denoiser"] == 64
    said = [small[name] for name in ("checkpoint", "preset", "device", "precision")]
    assert said == [named, "balanced", "cpu", "fp32"]


def test_a_bare_flag_means_true_and_one_without_effect_says_so(checkpoint, photos, tmp_path, capsys):
    out = tmp_path / "out"
    command = [photos / "a.png", "--compare", "--checkpoint", checkpoint, "--output", out]
    assert sample.main([*map(str, command), "--average", "--steps", "1"]) == 0
    assert set(restored(out)) == {"a.png", "a_compare.png"}
    assert "sample.py: --average has no effect: there is one sample" in capsys.readouterr().err
    assert sample.main([*map(str, command), "--steps", "1", "--num_samples", "2", "--average"]) == 0
    assert "no effect" not in capsys.readouterr().err
    assert sample.main([*map(str, command), "--steps", "1", "--num_samples", "2", "--blend", "0"]) == 0
    errors = capsys.readouterr().err
    assert "--steps has no effect: with blend 0" in errors and set(restored(out)) == {"a.png", "a_compare.png"}


def test_a_comparison_shows_the_blurry_the_predicted_and_the_restored_image(checkpoint, photos, tmp_path):
    for name, flags in (("blend", []), ("none", ["--blend", "0"])):
        assert run(photos / "a.png", "--compare", "--checkpoint", checkpoint, "--output", tmp_path / name, *flags) == 0
    panel, plain = (images.read(tmp_path / name / "a_compare.png") for name in ("blend", "none"))
    columns = (panel != plain).any(0).any(0).nonzero()  # the prediction restored by itself is in the last of three
    assert len(columns) > 0 and columns.min() > 0.6 * panel.shape[2]


def test_another_depth_is_other_settings(checkpoint, photos, tmp_path, capsys):
    command = [photos / "a.png", "--checkpoint", checkpoint, "--output", tmp_path]
    assert run(*command) == 0 and run(*command, "--depth", "16") == 0
    assert "wrote 1 of 1" in capsys.readouterr().out.splitlines()[-1]
    assert images.read_file(tmp_path / "a.png").pixels.dtype == torch.uint16


def test_one_image_and_a_suffix_are_a_file(checkpoint, photos, tmp_path):
    assert run(photos / "a.png", "--checkpoint", checkpoint, "--output", tmp_path / "new" / "sharp.tif") == 0
    assert set(restored(tmp_path / "new")) == {"sharp.tif"}
    (tmp_path / "photos.png").mkdir()
    assert run(photos / "a.png", "--checkpoint", checkpoint, "--output", tmp_path / "photos.png") == 0
    assert set(restored(tmp_path / "photos.png")) == {"a.png"}, "a folder that is there stays one"


def test_a_missing_input_is_named_and_the_others_are_restored(checkpoint, photos, tmp_path, capsys):
    command = [tmp_path / "no.jpg", photos / "a.png", "--checkpoint", checkpoint, "--output", tmp_path / "out"]
    assert run(*command) == 1
    assert f"sample.py: error: {tmp_path / 'no.jpg'} is neither an image nor a folder" in capsys.readouterr().err
    assert set(restored(tmp_path / "out")) == {"a.png"}
    (photos / "raw.cr2").write_bytes(b"")
    (photos / "notes.txt").write_text("no image")
    assert run(photos, "--checkpoint", checkpoint, "--output", tmp_path / "out") == 0
    errors = capsys.readouterr().err
    assert "skipped 1 .cr2, a format that is not read" in errors and ".txt" not in errors


def test_a_format_that_is_not_written_becomes_png_in_a_folder_by_name_and_by_pattern(checkpoint, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    Image.new("RGB", (20, 16), (200, 0, 0)).save(tmp_path / "in" / "a.ppm")
    for given in (tmp_path / "in", tmp_path / "in" / "a.ppm", f"{tmp_path}/in/*.ppm"):
        assert run(given, "--checkpoint", checkpoint, "--output", tmp_path / "out", "--overwrite", "--blend", "0") == 0
        assert set(restored(tmp_path / "out")) == {"a.png"}
        assert "a.ppm: is written as a.png" in capsys.readouterr().err


def test_a_result_inside_the_inputs_is_not_restored_again(checkpoint, photos, tmp_path, capsys):
    for words in ("wrote 3 of 3", "all 3 done before, in"):
        assert run(photos, "--checkpoint", checkpoint, "--output", photos / "out") == 0
        assert words in capsys.readouterr().out and len(restored(photos / "out")) == 3
    assert run(photos / "out", "--checkpoint", checkpoint, "--output", tmp_path / "again") == 2
    assert "out holds restored images (it has a manifest.json)" in capsys.readouterr().err


def test_names_with_a_dash_at_their_head(checkpoint, photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (photos / "a.png").rename("-a.png")
    assert sample.main(["-a.png", "--output", "out"]) == 2
    assert capsys.readouterr().err == "sample.py: error: -a.png is taken for a flag: write ./-a.png\n"
    assert sample.main(["--checkpoint", str(checkpoint), "--steps", "1", "--output", "out", "--", "-a.png"]) == 0
    assert set(restored(tmp_path / "out")) == {"-a.png"}


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("file", "cannot write into the folder file: File exists; give another --output"),
        ("file/out", "cannot write into the folder file/out: Not a directory; give another --output"),
        ("taken", "taken/b.jpg cannot be written: Is a directory; 1 of 3 images are done: free the disk, or choose"),
        ("sub", "sub/sub/b.jpg cannot be written: File exists; 2 of 3 images are done: free the disk, or choose"),
    ],
)
def test_what_the_system_refuses_is_said_with_its_path(
    checkpoint, photos, tmp_path, monkeypatch, capsys, output, words
):
    monkeypatch.chdir(tmp_path)
    if output == "taken":
        (photos / "sub" / "b.jpg").rename(photos / "b.jpg")
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "b.jpg").mkdir(parents=True)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "sub").touch()
    assert run("photos", "--checkpoint", checkpoint, "--output", output) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("sample.py: error: ") and words in said and "Errno" not in said


def test_a_full_disk_is_said_with_what_is_done(checkpoint, tmp_path, capsys):
    for name, side in (("a", 8), ("b", 300)):
        images.write(tmp_path / "in" / f"{name}.bmp", torch.rand(3, side, side))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        assert run(tmp_path / "in", "--checkpoint", checkpoint, "--output", tmp_path / "out") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err.splitlines()[-1]
    assert "out/b.bmp cannot be written: File too large; 1 of 2 images are done: free the disk" in said
    assert set(restored(tmp_path / "out")) == {"a.bmp"}
    assert run(tmp_path / "in", "--checkpoint", checkpoint, "--output", tmp_path / "out") == 0


def test_what_other_settings_left_is_replaced_and_said_so(checkpoint, photos, tmp_path, capsys):
    out, flags = tmp_path / "out", ["--num_samples", "2", "--uncertainty", "--compare"]
    command = [photos / "a.png", "--checkpoint", checkpoint, "--output", out]
    run(*command, *flags)
    left = {"a_0.png", "a_1.png", "a_std.png", "a_std.tif", "a_compare.png"}
    assert set(restored(out)) == left and "replaced" not in capsys.readouterr().out
    assert set(json.loads((out / "manifest.json").read_text())[str(photos / "a.png")]["written"]) == left
    run(*command)
    assert set(restored(out)) == {"a.png"} and f"to {out}, replaced 1 (other settings)" in capsys.readouterr().out
    run(*command, "--overwrite")
    assert "replaced 1 (done before)" in capsys.readouterr().out
    images.write(photos / "a.png", torch.rand(3, 9, 9))
    run(*command)
    assert "replaced 1 (changed images)" in capsys.readouterr().out
    images.write(tmp_path / "other" / "a.png", torch.rand(3, 8, 8))
    run(tmp_path / "other" / "a.png", *command[1:])
    assert "replaced 1 (other images)" in capsys.readouterr().out
    assert list(json.loads((out / "manifest.json").read_text())) == [str(tmp_path / "other" / "a.png")]


def test_memory_that_is_too_little_for_an_image_is_one_sentence(checkpoint, tmp_path, capsys, monkeypatch):
    images.write(tmp_path / "large.png", torch.rand(3, 300, 300))
    images.write(tmp_path / "small.png", torch.rand(3, 20, 20))
    monkeypatch.setattr("models.tiling.used_memory", lambda device: 7_999_999_000)
    files = [tmp_path / "large.png", tmp_path / "small.png", "--checkpoint", checkpoint, "--output", tmp_path / "out"]
    assert run(*files, "--memory", "8") == 1
    assert "large.png does not fit into --memory: give 8.1 or more" in capsys.readouterr().err
    assert set(restored(tmp_path / "out")) == {"small.png"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_between_whole_files_and_started_again(checkpoint, tmp_path, number):
    for i in range(15):
        images.write(tmp_path / "in" / f"{i:02}.png", torch.rand(3, 40, 40))
    out = tmp_path / "out"
    command = [str(tmp_path / "in"), "--checkpoint", str(checkpoint), "--output", str(out), "--steps", "20"]
    process = Command("sample.py", command)
    until(lambda: len(list(out.glob("[!.]*.png"))) >= 3, process)
    process.send_signal(number)
    ended = process.wait()
    files = list(out.glob("[!.]*.png"))
    assert 3 <= len(files) < 15
    for file in files:
        images.read(file)  # whole, or ImageError
    if number == signal.SIGKILL:
        assert ended.returncode == -signal.SIGKILL
    else:
        assert ended.returncode == 130 and "Traceback" not in ended.stderr
        done = int(re.search(r"sample.py: stopped, (\d+) done; run again to resume", ended.stderr)[1])
        assert len(json.loads((out / "manifest.json").read_text())) in (done, done + 1)
        assert done >= 2 and not list(out.glob(".*part*"))
    first = files[0].stat().st_mtime_ns
    assert sample.main(command) == 0
    assert len(list(out.glob("[!.]*.png"))) == 15 and files[0].stat().st_mtime_ns == first


def damaged(file, generator):
    """Cut it short, flip bytes, overwrite its head, or put something else in its place."""
    data = bytearray(file.read_bytes())
    kind = generator.integers(4)
    if kind == 0:
        data = data[: generator.integers(len(data))]
    elif kind == 1:
        for place in generator.integers(len(data), size=generator.integers(1, 30)):
            data[place] ^= 1 << generator.integers(8)
    elif kind == 2:
        data[8 : 8 + generator.integers(64)] = generator.bytes(16)
    else:
        data = generator.bytes(generator.integers(200))
    file.write_bytes(data)


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_files_are_named_and_the_good_ones_between_them_restored(checkpoint, tmp_path, capfd, count):
    generator = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for i in range(count):
        file = tmp_path / "in" / f"{i:04}{('.png', '.jpg', '.webp', '.tif', '.bmp')[i % 5]}"
        pixels = torch.from_numpy(generator.random((3, 8, 8), dtype=np.float32))
        like = images.ImageFile(torch.zeros(3, 1, 1, dtype=torch.uint16 if i % 2 else torch.uint8))
        images.write(file, pixels, like)
        if i % 10:
            damaged(file, generator)
    names = {file.name for file in (tmp_path / "in").iterdir()}
    good = {name for name in names if int(name[:4]) % 10 == 0}
    arguments = [tmp_path / "in", "--checkpoint", checkpoint, "--output", tmp_path / "out"]
    assert sample.main([*map(str, arguments), "--steps", "1"]) == 1
    errors = capfd.readouterr().err
    named = {name for name in names if f"{name} " in "".join(e for e in errors.splitlines(True) if ": error: " in e)}
    written = {file.name for file in (tmp_path / "out").iterdir()} - {"manifest.json", ".manifest.json.lock"}
    assert "Traceback" not in errors
    assert good <= written and written | named == names and not written & named
    assert len(named) > count / 4  # flipped bytes of pixels leave a file readable


def restored(folder):
    """The files that are restored images, by name."""
    return {
        f.relative_to(folder).as_posix(): f.read_bytes()
        for f in folder.rglob("*.*")
        if f.suffix not in (".json", ".lock")
    }


def test_what_is_done_is_skipped_until_something_changes(checkpoint, photos, tmp_path, capsys):
    command = [photos, "--checkpoint", checkpoint, "--output", tmp_path / "out"]
    run(*command)
    before = restored(tmp_path / "out")
    (tmp_path / "out" / "a.png").write_bytes(b"kept")
    capsys.readouterr()
    run(*command)
    assert "all 3 done before, in" in capsys.readouterr().out and (tmp_path / "out" / "a.png").read_bytes() == b"kept"
    (tmp_path / "out" / "c.webp").unlink()
    run(*command)
    assert (tmp_path / "out" / "c.webp").is_file() and (tmp_path / "out" / "a.png").read_bytes() == b"kept"
    run(*command, "--overwrite", "true")
    assert restored(tmp_path / "out") == before
    capsys.readouterr()
    run(*command, "--seed", "7")
    assert "wrote 3 of 3" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "suffix", "depth"), [("jpeg", "jpg", 8), ("tiff", "tif", 16), ("tif", "tif", 16)])
def test_another_format_and_depth(checkpoint, photos, tmp_path, name, suffix, depth):
    (photos / "d.jpeg").write_bytes((photos / "sub" / "b.jpg").read_bytes())
    flags = ["--format", name, "--depth", depth]
    assert run(photos, "--checkpoint", checkpoint, "--output", tmp_path / "out", *flags) == 0
    kept = "jpeg" if suffix == "jpg" else suffix  # of the format already
    names = [*(f"{stem}.{suffix}" for stem in ("a", "sub/b", "c")), f"d.{kept}"]
    found = {file: images.read_file(tmp_path / "out" / file).pixels.dtype for file in restored(tmp_path / "out")}
    assert found == dict.fromkeys(names, torch.uint16 if depth == 16 else torch.uint8)


@pytest.mark.parametrize("sampler", ["ddpm", "dpmsolver++"])
def test_a_batch_gives_what_single_images_give(checkpoint, tmp_path, sampler, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    for i in range(5):  # two sizes in turns, and a file that breaks off behind its header
        size = (150, 90) if i % 2 else (60, 70)
        images.write(tmp_path / "in" / f"{i}.png", torch.rand(3, *size, generator=generator))
    (tmp_path / "in" / "2.png").write_bytes((tmp_path / "in" / "0.png").read_bytes()[:5000])
    sizes = []
    call = DeblurPipeline.__call__

    def counted(self, inputs, *arguments, **options):
        sizes.append(len(inputs))
        return call(self, inputs, *arguments, **options)

    monkeypatch.setattr(DeblurPipeline, "__call__", counted)
    for count in (1, 2, 4):
        start = time.perf_counter()
        flags = ["--batch_size", count, "--sampler", sampler, "--num_samples", "2"]
        assert run(tmp_path / "in", "--checkpoint", checkpoint, "--output", tmp_path / str(count), *flags) == 1
    assert sizes == [1, 1, 1, 1, 1, 1, 2, 2, 2]
    manifest = json.loads((tmp_path / "4" / "manifest.json").read_text())
    seconds = [entry["seconds"] for entry in manifest.values()]
    assert len(seconds) == 4 and min(seconds) > 0 and sum(seconds) < time.perf_counter() - start
    for name in restored(tmp_path / "1"):
        one, two, four = (images.read(tmp_path / count / name) for count in "124")
        assert max((one - two).abs().max(), (one - four).abs().max()) <= 1 / 255


def test_out_of_memory_halves_a_batch_and_names_a_photo(checkpoint, tmp_path, monkeypatch, capsys):
    for i in range(4):
        images.write(tmp_path / "in" / f"{i}.png", torch.rand(3, 20, 20))
    images.write(tmp_path / "in" / "large.png", torch.rand(3, 99, 99))
    call = DeblurPipeline.__call__

    def small(self, inputs, *arguments, **options):
        if inputs.numel() > 3 * 20 * 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return call(self, inputs, *arguments, **options)

    monkeypatch.setattr(DeblurPipeline, "__call__", small)
    assert run(tmp_path / "in", "--checkpoint", checkpoint, "--output", tmp_path / "out", "--batch_size", "4") == 1
    assert set(restored(tmp_path / "out")) == {f"{i}.png" for i in range(4)}
    assert "large.png does not fit into memory (99 x 99 pixels)" in capsys.readouterr().err


PEAK = """
import sys
from pathlib import Path
import torch
import models.sampling, sample
from data import images
torch.set_num_threads(1)
models.sampling.BAND = 1 << 18  # so that a test's photo has several
peaks = []
for side in (256, 1700):
    images.write(f"{side}.bmp", torch.rand(3, 1, side).expand(3, side, side))
    flags = ["--steps", "1", "--tile", "256", "--predictor_tile", "256", "--sampler", sys.argv[2]]
    assert sample.main([f"{side}.bmp", "--checkpoint", sys.argv[1], "--output", "out", *flags]) == 0
    status = Path("/proc/self/status").read_text().splitlines()
    peaks.append(next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM")))
print((peaks[1] - peaks[0]) / (1700**2 - 256**2))
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux tells a process's peak")
@pytest.mark.slow
def test_a_large_photo_takes_few_tensors_of_its_size(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = processes.run("-c", [PEAK, checkpoint, "ddim"])
    fields = float(done.stdout.splitlines()[-1]) / 12  # of three floats a pixel
    assert 3 < fields < 7.5


def test_two_processes_share_the_list_and_give_the_same_bytes(checkpoint, photos, tmp_path):
    run(photos, "--checkpoint", checkpoint, "--output", tmp_path / "one")
    command = [photos, "--checkpoint", checkpoint, "--output", tmp_path / "two", "--steps", "2"]
    done = torchrun("sample.py", command)
    assert [(process.returncode, "Traceback" in process.stderr) for process in done] == [(0, False)] * 2
    shares = [int(re.search(r"wrote (\d+) of", process.stdout + process.stderr)[1]) for process in done]
    assert sorted(shares) == [1, 2]
    assert restored(tmp_path / "two") == restored(tmp_path / "one")
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("one", "two")]
    assert manifests[0].keys() == manifests[1].keys() and len(manifests[0]) == 3


def test_strength_zero_with_the_identity_returns_the_image(photos, tmp_path):
    tiny_pipeline(IdentityPredictor()).save_pretrained(tmp_path / "identity")
    assert run(photos, "--checkpoint", tmp_path / "identity", "--output", tmp_path / "out", "--blend", "0") == 0
    for name in ("a.png", "c.webp"):
        assert torch.equal(images.read(tmp_path / "out" / name), images.read(photos / name))


def test_a_predictor_that_expects_its_error_shows_it_without_samples(photos, tmp_path):
    tiny_pipeline(SlimPredictor((8, 12), (1, 1), size_head=True)).save_pretrained(tmp_path / "checkpoint")
    command = [photos / "a.png", "--checkpoint", tmp_path / "checkpoint", "--output", tmp_path / "out"]
    run(*command, "--uncertainty", "true", "--blend", "0")
    assert set(restored(tmp_path / "out")) == {"a.png", "a_error.png", "a_error.tif"}
    error = tifffile.imread(tmp_path / "out" / "a_error.tif")
    assert error.shape == (20, 31, 3) and (error > 0).all() and (error[..., 0] == error[..., 2]).all()


def test_a_preset_is_its_settings(photos, tmp_path, capsys):
    preset = {"sampler": "ddpm", "steps": 3}
    command = [str(photos / "a.png"), "--checkpoint", with_presets(tmp_path, perceptual=preset), "--output"]
    assert sample.main([*command, str(tmp_path / "preset"), "--preset", "perceptual"]) == 0
    assert sample.main([*command, str(tmp_path / "flags"), "--sampler", "ddpm", "--steps", "3"]) == 0
    assert restored(tmp_path / "preset") == restored(tmp_path / "flags")
    assert sample.main([*command, str(tmp_path / "x"), "--preset", "fidelity"]) == 2
    assert "it has perceptual" in capsys.readouterr().err
    # A number given by flag goes before the preset's, even where it is the default's.
    sample.main([*command, str(tmp_path / "both"), "--preset", "perceptual", "--steps", "20", "--blend", "0.5"])
    (entry,) = json.loads((tmp_path / "both" / "manifest.json").read_text()).values()
    assert entry["settings"] == asdict(sample.SamplingSettings("ddpm", steps=20, blend=0.5))
    with_presets(tmp_path, balanced=preset)
    assert sample.main([*command, str(tmp_path / "default")]) == 0  # balanced, where it is there
    assert restored(tmp_path / "default") == restored(tmp_path / "preset")


def test_a_fault_is_said_with_the_image_or_the_prediction_is_written(tmp_path, capsys):
    blurry = torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(0))
    images.write(tmp_path / "noise.png", blurry)
    pipeline = tiny_pipeline(IdentityPredictor(), residual_scale=1.0)
    for parameter in pipeline.denoiser.unet.head.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(pipeline.denoiser.unet.head.bias, 0.5)
    pipeline.save_pretrained(tmp_path / "checkpoint")
    command = [tmp_path / "noise.png", "--checkpoint", tmp_path / "checkpoint", "--output"]
    run(*command, tmp_path / "warned")
    assert "noise.png: the sample's mean colour" in capsys.readouterr().err
    assert not torch.equal(images.read(tmp_path / "warned" / "noise.png"), images.read(tmp_path / "noise.png"))
    run(*command, tmp_path / "back", "--on_fault", "fallback")
    assert "the prediction is written" in capsys.readouterr().err
    assert torch.equal(images.read(tmp_path / "back" / "noise.png"), images.read(tmp_path / "noise.png"))
