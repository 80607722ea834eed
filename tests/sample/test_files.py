"""The files of sample.py: which are read, under which names restorations are written, and what gives way to them."""

import json
import os

import pytest
import torch
from PIL import ExifTags, Image

from deblur.data.files import images
from tests.sample.conftest import restored, run


def test_one_image_and_a_suffix_are_a_file(checkpoint, photos, tmp_path):
    assert run(photos / "a.png", "--checkpoint", checkpoint, "--output", tmp_path / "new" / "sharp.tif") == 0
    assert set(restored(tmp_path / "new")) == {"sharp.tif"}
    (tmp_path / "photos.png").mkdir()
    assert run(photos / "a.png", "--checkpoint", checkpoint, "--output", tmp_path / "photos.png") == 0
    assert set(restored(tmp_path / "photos.png")) == {"a.png"}, "a folder that is there stays one"
    assert run(photos / "a.png", "--checkpoint", checkpoint, "--output", f"{tmp_path}/album.old/") == 0
    assert set(restored(tmp_path / "album.old")) == {"a.png"}, "a slash makes it a folder"


@pytest.mark.parametrize(
    "content", [b'{"name": "my app", "icons": []}', b"[]", b"{}", b"[" * 9999, b'{"a": {"written": 1}}']
)
def test_a_manifest_of_another_program_is_refused_and_kept_and_its_photographs_are_no_results(
    checkpoint, photos, tmp_path, capsys, content
):
    for folder in (photos / "sub", tmp_path / "out"):
        folder.mkdir(exist_ok=True)
        (folder / "manifest.json").write_bytes(content)
    command = [photos, "--checkpoint", checkpoint, "--output"]
    assert run(*command, tmp_path / "out") == 2
    assert "out/manifest.json is no manifest of sample.py: give another --output" in capsys.readouterr().err
    assert (tmp_path / "out" / "manifest.json").read_bytes() == content
    assert run(*command, tmp_path / "new") == 0
    assert "sub/b.jpg" in restored(tmp_path / "new")
    assert run(photos / "sub", *command[1:], tmp_path / "one") == 0


def test_a_name_that_is_too_long_is_named_and_the_others_are_restored(checkpoint, tmp_path, capsys):
    """A comparison's name is longer than the photograph's."""
    longest = "x" * 251 + ".png"
    for name in (longest, "y.png"):
        images.write(tmp_path / "in" / name, torch.rand(3, 16, 20))
    command = [tmp_path / "in", "--checkpoint", checkpoint, "--output"]
    assert run(*command, tmp_path / "plain") == 0
    assert set(restored(tmp_path / "plain")) == {longest, "y.png"}
    assert run(*command, tmp_path / "compared", "--compare") == 1
    assert "x_compare.png: that name is too long, rename it" in capsys.readouterr().err
    assert set(restored(tmp_path / "compared")) == {"y.png", "y_compare.png"}


@pytest.mark.parametrize(
    ("suffix", "why"),
    [
        (".cr2", "RAW is not read: export it as TIFF or 16-bit PNG"),
        (".dng", "RAW is not read: export it as TIFF or 16-bit PNG"),
        (".gif", "GIF is not read: save its first frame as PNG"),
        (".jxl", "JPEG XL is not read: convert it to PNG"),
        (".psd", "a format that is not read"),
    ],
)
def test_formats_that_are_not_read_are_counted_in_folders_and_refused_by_name(
    checkpoint, photos, tmp_path, capsys, suffix, why
):
    """A RAW file is a TIFF file by its content, with a thumbnail that must not be taken for the photograph."""
    (photos / f"b{suffix}").write_bytes(b"no image")
    if "RAW" in why:
        Image.new("RGB", (20, 16)).save(photos / f"b{suffix}", format="TIFF")
    (photos / "notes.txt").write_text("no image")
    assert run(photos, "--checkpoint", checkpoint, "--output", tmp_path / "out") == 0
    errors = capsys.readouterr().err
    assert f"skipped 1 {suffix}, {why}" in errors
    assert ".txt" not in errors
    assert run(photos / f"b{suffix}", "--checkpoint", checkpoint, "--output", tmp_path / "named") == 1
    said = why if "a format" not in why else "is not an image of a known format"
    assert said in capsys.readouterr().err
    assert not list((tmp_path / "named").glob("b*"))


def test_several_photographs_in_one_file_are_counted_in_folders_and_the_first_is_restored_by_name(
    checkpoint, photos, tmp_path, capsys
):
    image = Image.open(photos / "a.png").convert("RGB")
    image.save(photos / "m.mpo", save_all=True, append_images=[image])
    assert run(photos, "--checkpoint", checkpoint, "--output", tmp_path / "out") == 0
    assert "skipped 1 .mpo" in capsys.readouterr().err
    assert run(photos / "m.mpo", "--checkpoint", checkpoint, "--output", tmp_path / "named") == 0
    assert set(restored(tmp_path / "named")) == {"m.png"}


def test_a_format_that_is_not_written_becomes_png_in_a_folder_by_name_and_by_pattern(checkpoint, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    Image.new("RGB", (20, 16), (200, 0, 0)).save(tmp_path / "in" / "a.ppm")
    for given in (tmp_path / "in", tmp_path / "in" / "a.ppm", f"{tmp_path}/in/*.ppm"):
        assert run(given, "--checkpoint", checkpoint, "--output", tmp_path / "out", "--overwrite", "--blend", "0") == 0
        assert set(restored(tmp_path / "out")) == {"a.png"}
        assert "a.ppm: is written as a.png" in capsys.readouterr().err


def test_exif_that_a_jpeg_cannot_hold_is_left_out_and_said(checkpoint, tmp_path, capsys):
    block = Image.Exif()
    block[ExifTags.Base.Artist] = "a" * 70_000
    Image.new("RGB", (20, 16)).save(tmp_path / "a.png", exif=block)
    for kind, choice, said in (("jpg", "keep", True), ("png", "keep", False), ("jpg", "none", False)):
        command = [tmp_path / "a.png", "--checkpoint", checkpoint, "--format", kind, "--metadata", choice]
        assert run(*command, "--output", tmp_path / "out") == 0
        assert ("has more EXIF data than a JPEG can hold, which are left out" in capsys.readouterr().err) == said
        assert (b"a" * 70_000 in (tmp_path / "out" / f"a.{kind}").read_bytes()) == (kind == "png")


def test_what_other_settings_left_is_replaced_and_said_so(checkpoint, photos, tmp_path, capsys):
    out, flags = tmp_path / "out", ["--num_samples", "2", "--uncertainty", "--compare"]
    command = [photos / "a.png", "--checkpoint", checkpoint, "--output", out]
    run(*command, *flags)
    left = {"a_0.png", "a_1.png", "a_std.png", "a_std.tif", "a_compare.png"}
    assert set(restored(out)) == left
    assert "replaced" not in capsys.readouterr().out
    assert set(json.loads((out / "manifest.json").read_text())["../photos/a.png"]["written"]) == left
    run(*command)
    assert set(restored(out)) == {"a.png"}
    assert f"to {out}, replaced 1\n" in capsys.readouterr().out
    images.write(tmp_path / "other" / "a.png", torch.rand(3, 8, 8))
    run(tmp_path / "other" / "a.png", *command[1:])
    assert "replaced 1" in capsys.readouterr().out
    assert list(json.loads((out / "manifest.json").read_text())) == ["../other/a.png"]


def test_a_restoration_that_was_named_stays_beside_its_photograph_and_others(checkpoint, photos, capsys):
    flags = ["--checkpoint", checkpoint]
    for name, seed in (("sharp.png", "0"), ("other.png", "1"), ("sharp.png", "0")):
        run(photos / "a.png", "--output", photos / name, "--seed", seed, *flags)
    assert "all 1 done before" in capsys.readouterr().out
    run(photos, "--output", photos / "out", *flags)
    assert set(restored(photos / "out")) == {"a.png", "c.webp", "sub/b.jpg"}
    assert {"sharp.png", "other.png"} <= set(restored(photos))


@pytest.mark.commands
def test_no_file_of_a_job_is_another_s_or_an_input(checkpoint, tmp_path, capsys):
    for name in ("a.png", "a_compare.png", "a_0.png"):
        images.write(tmp_path / "photos" / name, torch.rand(3, 20, 24))
    command = ["--checkpoint", checkpoint, "--compare"]
    for said in ("wrote 3 of 3", "all 3 done before"):
        assert run(tmp_path / "photos", "--output", tmp_path / "out", *command) == 0
        assert said in capsys.readouterr().out
        names = {"a.png", "a_png_compare.png", "a_compare.png", "a_compare_compare.png", "a_0.png", "a_0_compare.png"}
        assert set(restored(tmp_path / "out")) == names
    before = restored(tmp_path / "photos")
    for name, flags in (("a_compare.png", command), ("a_0.png", [*command[:2], "--num_samples", "2"])):
        (tmp_path / "photos" / "a.png").unlink(missing_ok=True)
        assert run(tmp_path / "photos" / name, "--output", tmp_path / "photos" / "a.png", *flags) == 0
        assert restored(tmp_path / "photos")[name] == before[name]
    assert run(tmp_path / "photos" / "a_0.png", "--output", tmp_path / "out" / "a_png_compare.png", *command[:2]) == 2
    [sentence] = capsys.readouterr().err.splitlines()[-1:]
    assert "a_png_compare.png belongs to " in sentence and "choose another --output" in sentence


@pytest.mark.commands
def test_a_name_that_is_not_utf_8_is_one_like_any_other(checkpoint, tmp_path, capsys):
    photos = tmp_path / "photos"
    photos.mkdir()
    name = os.fsdecode(b"caf\xe9.png")
    for file in (name, "ok.png"):
        images.write(photos / file, torch.rand(3, 20, 24, generator=torch.Generator().manual_seed(0)))
    (photos / os.fsdecode(b"bad\xe9.png")).write_bytes(b"\x89PNG\r\n\x1a\n")
    for said in ("wrote 2 of 3", "wrote 0 of 1"):
        assert run(photos, "--output", tmp_path / "out", "--checkpoint", checkpoint, "--compare") == 1
        shown = capsys.readouterr()
        assert said in shown.out and "bad\\udce9.png cannot be decoded" in shown.err
    assert {os.fsencode(file) for file in restored(tmp_path / "out")} == {
        b"caf\xe9.png",
        b"caf\xe9_compare.png",
        b"ok.png",
        b"ok_compare.png",
    }
    text = (tmp_path / "out" / "manifest.json").read_text(encoding="utf-8")
    assert "caf\\udce9.png" in text and f"../photos/{name}" in json.loads(text)
    assert restored(tmp_path / "out")[name] != restored(tmp_path / "out")["ok.png"]  # other noise
