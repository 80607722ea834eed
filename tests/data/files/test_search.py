"""Finding images by their names: every folder once, no results, patterns, and what is passed over."""

import json
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from PIL import Image

from deblur.data.files import search
from deblur.data.files.kinds import NO_SUFFIX, READ_SUFFIXES, REFUSED_SUFFIXES
from deblur.data.files.lists import named_files
from tests.conftest import ROOT


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def found(root, *given, **options):
    return [file.relative_to(root).as_posix() for file in search.find(*given, **options)]


def test_a_folder_is_entered_once_whatever_links_lead_to_it(tmp_path):
    touch(tmp_path, "photos/b/1.png", "photos/b/2.jpg", "elsewhere/3.png")
    for name, target in (("b/up", "photos"), ("b/round", "photos/b"), ("a", "photos/b"), ("c", "elsewhere")):
        (tmp_path / "photos" / name).symlink_to(tmp_path / target)
    (tmp_path / "photos" / "dead.png").symlink_to("nowhere")
    expected, photos = ["b/1.png", "b/2.jpg", "c/3.png"], tmp_path / "photos"
    assert found(photos, photos) == found(photos, f"{photos}/**/*.*") == expected
    assert found(photos, f"{photos}/*/1.png") == found(photos, f"{photos}/**/1.*") == ["b/1.png"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.png", ["1.png"]),
        ("**/*.png", ["1.png", "a/2.png", "a/b/3.png"]),
        ("**", ["1.png", "a/2.png", "a/4.jpg", "a/b/3.png", "a/b/c/d/5.webp"]),
        ("*/*.png", ["a/2.png"]),
        ("a/**/?.png", ["a/2.png", "a/b/3.png"]),
        ("?/**/*.webp", ["a/b/c/d/5.webp"]),
        ("**/b/*", ["a/b/3.png"]),
        ("a/[24].*", ["a/2.png", "a/4.jpg"]),
    ],
)
def test_patterns(tmp_path, monkeypatch, pattern, expected):
    touch(tmp_path, "1.png", "a/2.png", "a/b/3.png", "a/4.jpg", "a/b/c/d/5.webp", ".hidden/6.png", "a/.7.png")
    monkeypatch.chdir(tmp_path)
    assert found(Path(), pattern) == found(tmp_path, f"{tmp_path}/{pattern}") == expected


def test_one_file_is_itself_and_nothing_found_is_said(tmp_path):
    touch(tmp_path, "a.JPG", "[1].png", ".b.png", ".cache/c.png", "empty/notes.txt")
    assert found(tmp_path, tmp_path) == ["[1].png", "a.JPG"]
    for name in ("a.JPG", "[1].png"):
        assert search.find(tmp_path / name) == [tmp_path / name]
        assert search.tree(tmp_path / name) == tmp_path
    assert search.tree(f"{tmp_path}/**/*.webp") == search.tree(tmp_path) == tmp_path
    for nothing in ("empty", "missing", "x*.bmp"):
        with pytest.raises(search.ImageError, match=re.escape(nothing)):
            search.find(tmp_path / nothing)


@pytest.mark.parametrize("manifest", ["manifest.json", "manifest.parquet"])
def test_restored_images_are_no_inputs(tmp_path, manifest):
    touch(tmp_path, "a.png", "out/a.png", "out/more/b.png", "web/c.png")
    (tmp_path / "out" / manifest).write_text(json.dumps({"../a.png": {"written": ["a.png", "more/b.png"]}}))
    (tmp_path / "web" / "manifest.json").write_text('{"name": "another program\'s"}')
    assert found(tmp_path, tmp_path, results=False) == ["a.png", "web/c.png"]
    assert found(tmp_path, f"{tmp_path}/**/*.png", results=False) == ["a.png", "web/c.png"]
    assert found(tmp_path, f"{tmp_path}/out/**/*.png", results=False) == ["out/a.png", "out/more/b.png"]
    assert found(tmp_path, tmp_path / "out") == ["out/a.png", "out/more/b.png"]  # such as the outputs to be scored
    for path in (tmp_path / "out", tmp_path / "o*" / "*.png"):
        with pytest.raises(search.ImageError, match=r"holds restored images alone .* such as '.*out/\*.png'"):
            search.find(path, results=False)


def test_a_photograph_beside_its_restoration_is_an_input(tmp_path):
    touch(tmp_path, "in/a.png", "in/sharp.png", "in/more/a.png")
    (tmp_path / "in" / "manifest.json").write_text(json.dumps({"a.png as sharp.png": {"written": ["sharp.png"]}}))
    for path in (tmp_path / "in", tmp_path, f"{tmp_path}/**/*.png"):
        assert found(tmp_path, path, results=False) == ["in/a.png", "in/more/a.png"]
    (tmp_path / "in" / "manifest.json").write_text(json.dumps({"b.png": {"written": ["a.png"]}}))
    assert found(tmp_path, tmp_path / "in", results=False) == ["in/more/a.png", "in/sharp.png"]


def test_an_image_in_each_format_is_found_and_those_of_others_are_counted(tmp_path):
    """Windows and its browsers save .jfif, old programs .JPE, cameras .HIF, and some programs no suffix at all."""
    others = [f"b{suffix}" for suffix in REFUSED_SUFFIXES]
    touch(tmp_path, *(f"a{suffix.upper()}" for suffix in READ_SUFFIXES), *others, "b.txt", "b")
    assert {".jfif", ".jpe", ".hif", ".dib", ".avif"} < READ_SUFFIXES
    assert {file.suffix.lower() for file in search.find(tmp_path)} == READ_SUFFIXES
    assert search.passed_over(tmp_path) == dict.fromkeys(REFUSED_SUFFIXES, 1)
    for name, kind in (("c", "JPEG"), ("sub/c.jpg_large", "JPEG"), ("c.part", "PNG"), ("c.1", "WEBP"), ("e.x", "AVIF")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (5, 3)).save(tmp_path / name, kind)
    assert search.passed_over(tmp_path)[NO_SUFFIX] == 5
    assert search.passed_over(f"{tmp_path}/c*")[NO_SUFFIX] == 3
    assert search.passed_over(tmp_path / "c") == {}, "it is named, and restored"


@pytest.mark.parametrize("folder", ["[old]", "[2019] trip", "what?", "a*b"])
def test_what_exists_is_itself_before_it_is_a_pattern(tmp_path, folder):
    touch(tmp_path, f"{folder}/sub/a[1].png", f"{folder}/sub/a1.png", "o/sub/a1.png", "2 trip/sub/x.png")
    for given in (f"{folder}", f"{folder}/*/*", f"{folder}/**/*.png"):
        names = {file.name for file in search.find(tmp_path / given)}
        assert names == {"a1.png", "a[1].png"}, given
    assert found(tmp_path, tmp_path / folder / "sub" / "a[1].png") == [f"{folder}/sub/a[1].png"]
    assert found(tmp_path, tmp_path / folder / "*" / "a[1].png") == [f"{folder}/sub/a1.png", f"{folder}/sub/a[1].png"]
    assert f"{folder}/sub/a1.png" in found(tmp_path, tmp_path / "*" / "sub" / "a[1].png")
    assert search.tree(tmp_path / folder / "*.png") == search.tree(tmp_path / folder) == tmp_path / folder


@pytest.mark.parametrize("written", ["NFC", "NFD"])
def test_a_name_is_the_same_in_every_form_of_unicode(tmp_path, written):
    """macOS writes an umlaut as two characters, all others as one."""
    stored = {form: unicodedata.normalize(form, "Grüße/Müller.png") for form in ("NFC", "NFD")}
    touch(tmp_path, stored["NFD" if written == "NFC" else "NFC"])
    [there] = search.find(tmp_path)
    for given in (stored[written], stored[written].replace("M", "[M]"), stored[written].replace(".", "*")):
        assert search.find(tmp_path / given) == [there]
    (tmp_path / "names.txt").write_text(stored[written] + "\n")
    assert named_files(tmp_path / "names.txt", tmp_path) == [there]
    assert search.name_below(there, tmp_path) == unicodedata.normalize("NFC", "Grüße/Müller")


@pytest.fixture
def unreadable(tmp_path):
    """A folder that the user of `as_user` may not read, below one with an image and a link into it."""
    folder = tmp_path / "disk" / "lost+found"
    folder.mkdir(parents=True)
    (tmp_path / "disk" / "a.png").touch()
    (folder / "b.png").touch()
    (tmp_path / "disk" / "link.png").symlink_to(folder / "b.png")
    folder.chmod(0)
    yield folder
    folder.chmod(0o700)


def found_as_user(path):
    """What `find` does for a user without root's rights: its result and what is said."""
    as_user = ["unshare", "--user", "--map-user=12345", "--map-group=12345"] if os.geteuid() == 0 else []
    if as_user and subprocess.run([*as_user, "true"], capture_output=True).returncode:
        pytest.skip("root reads everything, and becomes no other user here")
    code = (
        "import sys; from deblur.data.files.search import find; print([file.name for file in find(sys.argv[1], False)])"
    )
    command = [*as_user, sys.executable, "-c", code, str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_folder_that_may_not_be_read_is_named_and_the_others_are_searched(unreadable):
    link = unreadable.parent / "link.png"
    done = found_as_user(unreadable.parent)
    assert done.stdout == "['a.png']\n"
    told = [f"{path} cannot be read, and is left out: Permission denied" for path in (link, unreadable)]
    assert sorted(done.stderr.splitlines()) == told


def test_a_folder_that_is_named_and_may_not_be_read_is_an_error_with_its_name(unreadable):
    done = found_as_user(unreadable)
    assert done.returncode == 1
    assert done.stderr.endswith(f"PermissionError: [Errno 13] Permission denied: '{unreadable}'\n")
