"""The names of restored images."""

from pathlib import Path

import pytest

from data.search import ImageError
from restoration.outputs import outputs_of


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def outputs(*inputs, output="out", files=(), **options):
    """The outputs by their inputs, of files that are made first."""
    for file in files or inputs:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_bytes(b"")
    return {str(image): str(target) for image, target in outputs_of(inputs, output, **options).work}


def test_images_of_the_same_name_keep_their_folders():
    assert outputs("100/a.jpg", "200/a.jpg") == {"100/a.jpg": "out/100/a.jpg", "200/a.jpg": "out/200/a.jpg"}
    assert outputs("100", "200", "b.png", files=["b.png"]) == {
        "100/a.jpg": "out/100/a.jpg",
        "200/a.jpg": "out/200/a.jpg",
        "b.png": "out/b.png",
    }
    assert outputs("100/a.jpg", "b.png") == {"100/a.jpg": "out/a.jpg", "b.png": "out/b.png"}


def test_an_image_that_is_named_twice_is_restored_once():
    Path("link").symlink_to(".")
    files = ["x/a.png", "x/y/b.png"]
    assert outputs("x", "x/y/b.png", f"{Path.cwd()}/x/a.png", files=files) == {f: f"out/{f[2:]}" for f in files}


@pytest.mark.parametrize("suffix", [None, ".png", ".jpg", ".tif"])
def test_names_that_differ_in_their_suffix_alone_keep_it(suffix):
    files = ["a.png", "a.jpg", "a.tif", "a.ppm", "b.ppm"]
    expected = {file: file for file in files} | {"a.ppm": "a_ppm.png", "b.ppm": "b.png"}
    if suffix is not None:
        expected = {file: f"a_{file[2:]}{suffix}" if not file.endswith(suffix) else file for file in files}
        expected["b.ppm"] = f"b{suffix}"
    assert outputs(*files, suffix=suffix) == {file: f"out/{name}" for file, name in expected.items()}


def test_names_that_are_equal_nevertheless_are_refused():
    with pytest.raises(ValueError, match=r"a_jpg\.png would both be written to a_jpg\.png: rename one of them"):
        outputs("a.jpg", "a.png", "a_jpg.png", suffix=".png")


def test_results_inside_the_inputs_are_not_restored_again():
    assert outputs("photos", output="photos/out", files=["photos/a.png", "photos/out/a.png"]) == {
        "photos/a.png": "photos/out/a.png"
    }
    with pytest.raises(ImageError, match="all images lie in the output folder photos/out"):
        outputs("photos/*/a.png", output="photos/out", files=["photos/out/a.png"])
