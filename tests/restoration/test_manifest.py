"""What the manifest removes, and what it leaves alone."""

import json

import pytest

from restoration.manifest import Manifest


@pytest.fixture
def image(tmp_path):
    (tmp_path / "a.png").write_bytes(b"blurry")
    (tmp_path / "out").mkdir()
    return tmp_path / "a.png"


def written(folder, *names):
    for name in names:
        (folder / name).write_bytes(b"restored")
    return [folder / name for name in names]


def test_what_an_image_left_is_removed_and_nothing_else(image, tmp_path):
    out = tmp_path / "out"
    Manifest(out, {"seed": 0}).add(image, written(out, "a.png", "a_std.png"), {})
    written(out, "mine.png")
    again = Manifest(out, {"seed": 1})
    assert not again.has(image) and Manifest(out, {"seed": 0}).has(image)
    for name in ("a.png", "a_std.png"):
        (out / name).unlink()
        assert not Manifest(out, {"seed": 0}).has(image), name
        written(out, name)
    again.add(image, written(out, "a.png"), {})
    assert {file.name for file in out.glob("*.png")} == {"a.png", "mine.png"}


def test_a_manifest_removes_nothing_outside_its_folder(image, tmp_path):
    out = tmp_path / "out"
    keep = tmp_path / "keep.png"
    keep.write_bytes(b"")
    (out / "manifest.json").write_text(json.dumps({str(image): {"written": ["../keep.png", str(keep)]}}))
    Manifest(out, {}).add(image, written(out, "a.png"), {})
    assert keep.is_file()


def test_an_image_that_is_named_from_elsewhere_is_the_same_image(image, tmp_path, monkeypatch):
    out = tmp_path / "out"
    Manifest(out, {"seed": 0}).add(image, written(out, "a.png"), {})
    monkeypatch.chdir(tmp_path)
    relative = image.relative_to(tmp_path)
    assert Manifest(out, {"seed": 1}).replaces(relative, [out / "a.png"])
    Manifest(out, {"seed": 0}).add(relative, [out / "a.png"], {})
    assert list(json.loads((out / "manifest.json").read_text())) == ["a.png"] and (out / "a.png").is_file()
