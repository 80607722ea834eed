"""sample.py: its command line, what it writes and what it says."""

import json
import re
import resource
from dataclasses import fields

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import sample
from deblur.data.files import images
from deblur.hub import PURPOSES
from deblur.restoration.options import Options
from deblur.settings import SamplingSettings
from tests.conftest import fresh
from tests.sample.conftest import restored, run, with_presets


def test_several_samples_and_their_mean(checkpoint, photos, tmp_path):
    command = [photos / "a.png", "--checkpoint", checkpoint, "--num_samples", "3"]
    run(*command, "--output", tmp_path / "each")
    run(*command, "--output", tmp_path / "mean", "--average", "true", "--uncertainty", "true")
    each = [images.read(tmp_path / "each" / f"a_{k}.png") for k in range(3)]
    assert not torch.equal(each[0], each[1])
    assert (images.read(tmp_path / "mean" / "a.png") - torch.stack(each).mean(0)).abs().max() < 1.01 / 255
    std = tifffile.imread(tmp_path / "mean" / "a_std.tif")
    assert std.shape == (20, 31, 3)
    assert std.dtype == "float32"
    assert 0 < std.mean() < 0.5
    [entry] = json.loads((tmp_path / "mean" / "manifest.json").read_text()).values()
    assert entry["std_white"] == pytest.approx(float(np.quantile(std.mean(-1), 0.995)), rel=1e-3)


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
        (["photos/a.png", "--output", "out/e.xyz"], "--output out/e.xyz cannot be written: its suffix must be one of"),
        (["photos/a.png", "--output", "b.png", "--format", "tif"], "--output b.png and --format tif differ"),
        (["photos", "--preset", "percptual"], "perceptual, not percptual: did you mean perceptual?"),
        (["photos", "--depth", "12"], "--depth is one of 8, 16, not 12"),
        (["photos", "--quality", "0"], "--quality must be from 1 to 100, got 0"),
        (["photos", "--memory", "0.1"], "--memory 0.1 is less than the program itself takes, "),
        (["photos", "--preset", "perceptual"], "no preset 'perceptual'"),
        (["photos", "--uncertainty", "true"], "--num_samples"),
        (["photos", "--tile", "8"], "64 pixels"),
        (["photos/*.ppm"], "photos/*.ppm holds no image"),
        (["photos", "--batch_size", "0"], "--batch_size must be above 0, got 0"),
        (["photos", "--predictor_tile", "-1"], "--predictor_tile must be 64 pixels or more, got -1"),
        (["photos", "--depth", "16"], "c.webp cannot hold 16 bits"),
    ],
)
def test_bad_input_is_one_sentence(checkpoint, photos, tmp_path, monkeypatch, capsys, flags, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert sample.main([flags[0], "--checkpoint", str(checkpoint), "--output", "out", *flags[1:]]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("sample.py: error: ")
    assert words in sentence
    assert not any(word in sentence for word in ("typing", "Literal", "Union", "NoneType", "usage:"))


@pytest.mark.parametrize(("given", "words"), [([], "no image is named"), (["photo.jpg"], "--output is missing")])
def test_what_is_missing_on_the_command_line(capsys, given, words):
    assert sample.main(given) == 2
    assert words in capsys.readouterr().err


def test_help_and_wrong_arguments_come_before_torch():
    code = "import sys, sample; print([sample.main(a) for a in {}], {{'torch', 'numpy', 'PIL'}} & {{*sys.modules}})"
    given = [["nowhere.png"], ["docs", "--sampler", "euler"], ["docs", "--checkpoint", "c"], ["docs", "--steps", "0"]]
    commands = [["--help"], *([*one, "--output", "o"] for one in given)]
    process = fresh(code.format(commands))
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
    assert default(said, "steps") == "3"
    assert default(said, "blend") == "0.25"
    assert sample.main(["--checkpoint", named, "--preset", "fidelity", "--help"]) == 0
    assert default(capsys.readouterr().out, "steps") == "5"
    assert sample.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert default(said, "blend") == "0.5"  # of pretrained/lite
    for name, purpose in PURPOSES.items():
        assert re.search(rf"\b{name} \({purpose}\)", " ".join(said.split()))


@pytest.mark.parametrize(
    ("preset", "flags", "words"),
    [
        ({"eta": 1.0}, {"sampler": "ddpm"}, "ddpm, 2 steps"),
        ({"eta": 1.0}, {"sampler": "unipc"}, "unipc, 2 steps"),
        ({"eta": 1.0}, {"sampler": "ddim"}, "ddim, eta 1, 2 steps"),
        ({"sampler": "ddpm"}, {"eta": 0.5}, "ddim, eta 0.5, 2 steps"),
        ({"sampler": "ddpm"}, {"eta": 0}, "ddpm, 2 steps"),
    ],
)
def test_a_flag_replaces_what_belongs_to_the_presets_other_choice(preset, flags, words):
    settings = SamplingSettings(steps=2, **preset)
    assert str(settings.changed(flags)) == f"{words}, blend 1"
    with pytest.raises(ValueError, match="eta belongs to the sampler ddim"):  # an explicit contradiction
        settings.changed({"sampler": "ddpm", "eta": 1})


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
    assert small["tiles"] == {"predictor": None, "denoiser": None}
    assert large["tiles"]["denoiser"] == 64
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
    assert "--steps has no effect: with blend 0" in errors
    assert set(restored(out)) == {"a.png", "a_compare.png"}


def test_a_comparison_shows_no_image_twice(checkpoint, photos, tmp_path):
    """The prediction stands beside the restored image where a sample was drawn, and not where it is that image."""
    panels = {}
    for name, flags in (("blend", []), ("none", ["--blend", "0"])):
        assert run(photos / "a.png", "--compare", "--checkpoint", checkpoint, "--output", tmp_path / name, *flags) == 0
        panels[name] = images.read(tmp_path / name / "a_compare.png")
    plain, drawn = panels["none"], panels["blend"]
    assert drawn.shape[2] > plain.shape[2]
    columns = (drawn[..., : plain.shape[2]] != plain).any(0).any(0).nonzero()  # of the restored image alone
    assert columns.min() > 0.45 * plain.shape[2]


def painted(path, columns, inside, outside):
    """A mask of 31 x 20 pixels, RGBA, of two colours beside each other."""
    array = np.full((20, 31, 4), outside, np.uint8)
    array[:, :columns] = inside
    Image.fromarray(array).save(path)


@pytest.mark.parametrize("outside", [(255, 255, 255, 0), (0, 0, 0, 255)], ids=["transparent", "black"])
def test_a_mask_counts_by_what_is_painted_in_it(checkpoint, photos, tmp_path, capsys, outside):
    """What is transparent is not white; and a mask that is painted anew under its old name is another one."""
    blurry, white = images.read(photos / "a.png"), (255, 255, 255, 255)
    command = [photos / "a.png", "--mask", tmp_path / "mask.png", "--checkpoint", checkpoint, "--output", tmp_path]
    for columns in (10, 25):
        painted(tmp_path / "mask.png", columns, white, outside)
        assert run(*command) == 0
        assert "wrote 1 of 1" in capsys.readouterr().out
        changed = (images.read(tmp_path / "a.png") != blurry).any(0).any(0).nonzero()
        assert changed.max() == columns - 1


def test_a_missing_input_is_named_and_the_others_are_restored(checkpoint, photos, tmp_path, capsys):
    command = [tmp_path / "no.jpg", photos / "a.png", "--checkpoint", checkpoint, "--output", tmp_path / "out"]
    for words in ("wrote 1 of 1", "all 1 done before"):
        assert run(*command) == 1
        said = capsys.readouterr()
        assert words in said.out
        assert f"sample.py: error: {tmp_path / 'no.jpg'} is neither an image nor a folder" in said.err
        assert set(restored(tmp_path / "out")) == {"a.png"}


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
    assert said.startswith("sample.py: error: ")
    assert words in said
    assert "Errno" not in said


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
