"""The names of restored images; what the manifest removes, and what it leaves alone."""

import json
import os
from pathlib import Path, PurePath, PurePosixPath

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deblur.data.files.kinds import NAME_OF, WRITTEN_SUFFIXES
from deblur.data.files.search import ImageError
from deblur.restoration.manifest import Manifest
from deblur.restoration.outputs import Extras, named, outputs_of, planned


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
    kept = {name: f"out/{name}" for name in ("100/a.jpg", "200/a.jpg", "b.png")}
    assert outputs("100", "200", "b.png", files=["b.png"]) == kept
    assert outputs("100/a.jpg", "b.png") == {"100/a.jpg": "out/a.jpg", "b.png": "out/b.png"}


@pytest.mark.parametrize("given", ["scans", "scans/**/*.png", "scans/*/*.png", "scans/x/../**/*.png"])
def test_the_tree_below_a_folder_or_below_the_fixed_part_of_a_pattern_is_kept(given):
    files = ["scans/x/a.png", "scans/y/b.png"]
    assert sorted(outputs(given, files=files).values()) == ["out/x/a.png", "out/y/b.png"]
    assert list(outputs("scans/x/*.png", files=files).values()) == ["out/a.png"]


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


def planned_names(extras, *names, inputs=(), owned=None):
    """The files of each image, of which `extras` are written."""
    work = {name: PurePosixPath(name) for name in names}
    found = planned(work, extras, map(PurePosixPath, inputs or ()), owned)
    return {name: [str(file) for file in own.files(extras)] for name, own in found.items()}


def test_derived_names_that_are_another_s_become_longer():
    compare, two, std = Extras(compare=True), Extras(samples=2), Extras(maps=("std",))
    assert planned_names(compare, "a.png") == {"a.png": ["a.png", "a_compare.png"]}
    assert planned_names(compare, "a.png", "a_compare.png")["a.png"] == ["a.png", "a_png_compare.png"]
    both = planned_names(compare, "a.png", "a.jpg")
    assert [files[1] for files in both.values()] == ["a_png_compare.png", "a_jpg_compare.png"]
    assert planned_names(two, "a.png", inputs=["a_0.png"])["a.png"] == ["a_png_0.png", "a_png_1.png"]
    assert planned_names(std, "a.png", "a_std.tif")["a.png"] == ["a.png", "a_png_std.png", "a_png_std.tif"]
    other = {PurePosixPath("a_compare.png"): "b.png"}
    assert planned_names(compare, "a.png", owned=other)["a.png"] == ["a.png", "a_png_compare.png"]


def test_names_that_are_taken_nevertheless_are_refused_in_a_sentence():
    compare = Extras(compare=True)
    with pytest.raises(ValueError, match=r"a_png_compare\.png is an input and would be overwritten: choose another"):
        planned_names(compare, "a.png", inputs=["a_compare.png", "a_png_compare.png"])
    with pytest.raises(ValueError, match=r"a_compare\.png belongs to a\.png and would be overwritten"):
        planned_names(Extras(), "a_compare.png", owned={PurePosixPath("a_compare.png"): "a.png"})


def test_an_input_under_another_name_is_one_too():
    Path("in").mkdir()
    Path("in/a_compare.png").write_bytes(b"")
    Path("link").symlink_to("in")
    found = planned({"x": Path("link/a.png")}, Extras(compare=True), [Path("in/a_compare.png")])
    assert found["x"].comparison() == Path("link/a_png_compare.png")


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
    Manifest(out).add(image, written(out, "a.png", "a_std.png"), {"seed": 0})
    written(out, "mine.png")
    again = Manifest(out)
    files = [out / "a.png", out / "a_std.png"]
    assert not again.has(image, files, {"seed": 1})
    assert Manifest(out).has(image, files, {"seed": 0})
    assert not Manifest(out).has(image, files[:1], {"seed": 0})
    for name in ("a.png", "a_std.png"):
        (out / name).unlink()
        assert not Manifest(out).has(image, files, {"seed": 0}), name
        written(out, name)
    again.add(image, written(out, "a.png"), {"seed": 1})
    assert {file.name for file in out.glob("*.png")} == {"a.png", "mine.png"}


def test_an_image_written_again_with_as_many_bytes_is_not_done(image, tmp_path):
    manifest = Manifest(tmp_path / "out")
    manifest.add(image, written(tmp_path / "out", "a.png"), {"seed": 0})
    assert manifest.has(image, [tmp_path / "out" / "a.png"], {"seed": 0})
    os.utime(image, ns=(0, image.stat().st_mtime_ns + 1))
    assert not manifest.has(image, [tmp_path / "out" / "a.png"], {"seed": 0})
    assert manifest.replaces(image, [])


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["..", ".", "", "a", "keep.png", "link", "out"]), max_size=6), st.booleans())
@example(["..", "keep.png"], False)
@example(["keep.png"], True)
def test_no_name_in_a_manifest_leads_out_of_its_folder(image, tmp_path, parts, is_absolute):
    out, outside = tmp_path / "out", tmp_path / "outside"
    for folder in (out / "a", outside / "a"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "keep.png").write_bytes(b"")
    (out / "link").unlink(missing_ok=True)
    (out / "link").symlink_to(outside)
    (tmp_path / "keep.png").write_bytes(b"")
    name = f"{tmp_path}/" * is_absolute + "/".join(parts)
    (out / "manifest.json").write_text(json.dumps({"../a.png": {"written": [name]}}))
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(out)}
    Manifest(out).add(image, written(out, "a.png"), {})
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(out)} == before


def test_an_image_that_is_named_from_elsewhere_is_the_same_image(image, tmp_path, monkeypatch):
    out = tmp_path / "out"
    files = written(out, "a.png")
    Manifest(out).add(image, files, {"seed": 0})
    for folder, name in (("", "a.png"), ("elsewhere", "../a.png"), ("out", "../a.png")):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        assert Manifest(Path(os.path.relpath(out))).has(Path(name), [Path(os.path.relpath(files[0]))], {"seed": 0})
    assert list(json.loads((out / "manifest.json").read_text())) == ["../a.png"]


def test_the_same_name_in_another_folder_is_another_image(image, tmp_path, monkeypatch):
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    (other / "a.png").write_bytes(b"blurry")
    for folder, name in ((tmp_path, "x.png"), (other, "y.png")):
        monkeypatch.chdir(folder)
        Manifest(out, out / name).add(Path("a.png"), written(out, name), {})
    assert {file.name for file in out.glob("*.png")} == {"x.png", "y.png"}


def test_what_the_user_named_is_replaced_under_that_name_alone(image, tmp_path):
    out = tmp_path / "out"
    Manifest(out, out / "fine.png").add(image, written(out, "fine.png", "fine_std.png"), {"seed": 0})
    Manifest(out, out / "other.png").add(image, written(out, "other.png"), {"seed": 1})
    Manifest(out).add(image, written(out, "a.png"), {"seed": 2})
    assert Manifest(out, out / "fine.png").has(image, [out / "fine.png", out / "fine_std.png"], {"seed": 0})
    assert Manifest(out, out / "other.png").has(image, [out / "other.png"], {"seed": 1})
    assert Manifest(out).has(image, [out / "a.png"], {"seed": 2})
    Manifest(out, out / "fine.png").add(image, written(out, "fine.png"), {"seed": 3})
    assert {file.name for file in out.glob("*.png")} == {"a.png", "fine.png", "other.png"}


def test_a_file_that_became_another_s_takes_nothing_with_it_and_stays_that_one_s(image, tmp_path):
    out, other = tmp_path / "out", tmp_path / "a_compare.png"
    other.write_bytes(b"blurry")
    manifest = Manifest(out)
    manifest.add(image, written(out, "a.png", "a_compare.png"), {})
    assert manifest.owned([other], []) == {out / "a.png": "../a.png", out / "a_compare.png": "../a.png"}
    assert manifest.owned([image], []) == manifest.owned([other], [out / "a.png"]) == {}
    manifest.add(other, written(out, "a_compare.png"), {})
    assert (out / "a.png").is_file()
    assert "../a.png" in json.loads((out / "manifest.json").read_text())
    manifest.add(image, written(out, "a.png"), {})
    assert (out / "a_compare.png").is_file(), "it is the other image's by now"


@pytest.mark.parametrize("suffix", sorted(WRITTEN_SUFFIXES))
def test_a_format_keeps_each_of_its_suffixes(suffix):
    """--format jpg leaves a.jpeg its name, and --format tif a.tiff; of another format the image gets the suffix."""
    for other in sorted(WRITTEN_SUFFIXES - {suffix}):
        target = str(named(PurePath(f"a{suffix}"), other, False))
        assert (target == f"a{suffix}") == (NAME_OF[other] == NAME_OF[suffix]), (suffix, other, target)
