"""Finding images by their names: every folder once, and no results."""

import json
import re
from pathlib import Path

import pytest

from data import search


def files(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def names(root, *given, **options):
    return [file.relative_to(root).as_posix() for file in search.find(*given, **options)]


def test_a_folder_is_entered_once_whatever_links_lead_to_it(tmp_path):
    files(tmp_path, "photos/b/1.png", "photos/b/2.jpg", "elsewhere/3.png")
    for name, target in (("b/up", "photos"), ("b/round", "photos/b"), ("a", "photos/b"), ("c", "elsewhere")):
        (tmp_path / "photos" / name).symlink_to(tmp_path / target)
    (tmp_path / "photos" / "dead.png").symlink_to("nowhere")
    expected = ["b/1.png", "b/2.jpg", "c/3.png"]
    photos = tmp_path / "photos"
    assert names(photos, photos) == names(photos, f"{photos}/**/*.*") == expected
    assert names(photos, f"{photos}/*/1.png") == names(photos, f"{photos}/**/1.*") == ["b/1.png"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.png", ["1.png"]),
        ("**/*.png", ["1.png", "a/2.png", "a/b/3.png"]),
        ("**", ["1.png", "a/2.png", "a/4.jpg", "a/b/3.png"]),
        ("*/*.png", ["a/2.png"]),
        ("a/**/?.png", ["a/2.png", "a/b/3.png"]),
        ("**/b/*", ["a/b/3.png"]),
        ("a/[24].*", ["a/2.png", "a/4.jpg"]),
    ],
)
def test_patterns(tmp_path, monkeypatch, pattern, expected):
    files(tmp_path, "1.png", "a/2.png", "a/b/3.png", "a/4.jpg", ".hidden/5.png", "a/.6.png")
    monkeypatch.chdir(tmp_path)
    assert names(Path(), pattern) == names(tmp_path, f"{tmp_path}/{pattern}") == expected


def test_one_file_is_itself_and_nothing_found_is_said(tmp_path):
    files(tmp_path, "a.JPG", "[1].png", ".b.png", ".cache/c.png", "empty/notes.txt")
    assert names(tmp_path, tmp_path) == ["[1].png", "a.JPG"]
    for name in ("a.JPG", "[1].png"):
        assert search.find(tmp_path / name) == [tmp_path / name] and search.tree(tmp_path / name) == tmp_path
    assert search.tree(f"{tmp_path}/**/*.webp") == search.tree(tmp_path) == tmp_path
    for nothing in ("empty", "missing", "x*.bmp"):
        with pytest.raises(search.ImageError, match=re.escape(nothing)):
            search.find(tmp_path / nothing)


@pytest.mark.parametrize("manifest", ["manifest.json", "manifest.parquet"])
def test_folders_of_restored_images_are_no_inputs(tmp_path, manifest):
    files(tmp_path, "a.png", "out/a.png", "out/more/b.png", "web/c.png")
    (tmp_path / "out" / manifest).write_text(json.dumps({"a.png": {"written": ["a.png"]}}))
    (tmp_path / "web" / "manifest.json").write_text('{"name": "another program\'s"}')
    assert names(tmp_path, tmp_path, results=False) == ["a.png", "web/c.png"]
    assert names(tmp_path, f"{tmp_path}/**/*.png", results=False) == ["a.png", "web/c.png"]
    assert names(tmp_path, f"{tmp_path}/out/**/*.png", results=False) == ["out/a.png", "out/more/b.png"]
    assert names(tmp_path, tmp_path / "out") == ["out/a.png", "out/more/b.png"]  # such as the outputs to be scored
    with pytest.raises(search.ImageError, match=r"out holds restored images .* give a pattern, '.*out/\*.png'"):
        search.find(tmp_path / "out", results=False)


def test_an_image_in_each_format_is_found(tmp_path):
    files(tmp_path, *(f"a{suffix}" for suffix in search.SUFFIXES), "b.cr2", "b.eps", "b.txt")
    assert {file.suffix for file in search.find(tmp_path)} == search.SUFFIXES > {".avif", ".ppm", ".heic"}
    assert search.passed_over(tmp_path) == {".cr2": 1, ".eps": 1}
