"""Places and the manifest of python -m tools.batch in local folders."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deblur.tools.batch.store import COLUMNS, SECONDS_BETWEEN_WRITES, ManifestTable, Place, StoreError

FACTS = {"checkpoint_sha256": "c", "settings": {"steps": 2}, "seed": 0, "depth": None}


@pytest.fixture
def place(tmp_path):
    return Place(str(tmp_path / "out"))


def row(image, *written, seed=0, error=None):
    facts = FACTS | {"settings": '{"steps": 2}', "seed": seed}
    return {"image": image, "bytes": 5, "modified": 7, "written": list(written) or None, "error": error} | facts


def image(key, size=5, modified=7, files=None):
    return {"key": key, "bytes": size, "modified": modified, "files": [key] if files is None else files}


def rows_of(place):
    return {row["image"]: row for row in pq.read_table(f"{place.base}/manifest.parquet").to_pylist()}


def kept(place, *rows):
    """A manifest with rows, and their files."""
    place.write({key: b"image" for row in rows for key in row["written"] or []})
    manifest = ManifestTable(place)
    manifest.add(rows)
    manifest.close()
    return ManifestTable(place)


def test_done_is_what_has_the_same_settings_is_unchanged_and_still_there(place):
    manifest = kept(place, row("a", "a"), row("b", "b", seed=1), row("c", "c"), row("d", "d"), row("e", error="broken"))
    os.remove(f"{place.base}/d")
    wanted = [*map(image, "abde"), image("c", modified=8), image("f")]
    assert ManifestTable(place).done(wanted, FACTS) == {"a"}
    assert manifest.done(wanted, FACTS | {"settings": {"steps": 3}}) == set()
    for other in (image("a", size=6), image("a", files=["a", "a_std"]), image("a", files=[])):
        assert manifest.done([other], FACTS) == set()


VALUES = {pa.string(): "b", pa.list_(pa.string()): ["b"], pa.int64(): 9, pa.float64(): 0.5, pa.bool_(): True}
NAMED = [(name, VALUES[kind]) for kind, names in COLUMNS.items() for name in names.split()]


@pytest.mark.parametrize(("name", "value"), NAMED, ids=[name for name, _ in NAMED])
def test_a_row_reads_back_whole_and_every_column_tells_two_restorations_apart(place, name, value):
    whole = row("a", "a") | {name: value, "image": "a", "written": ["a"], "error": None}
    kept(place, whole)
    [found] = pq.read_table(f"{place.base}/manifest.parquet").to_pylist()
    assert found.items() >= whole.items()
    wanted = [image("a", whole["bytes"], whole["modified"])]
    assert ManifestTable(place).done(wanted, {name: whole[name]}) == {"a"}
    if name not in ("error", "bytes", "modified"):  # which are those of the image
        assert all(ManifestTable(place).done(wanted, {name: other}) == set() for other in ("other", None))


def test_a_restoration_that_fails_later_leaves_the_files_of_the_one_before(place):
    kept(place, row("a", "a"))
    manifest = kept(place, row("a", error="broken"))
    assert set(place.list()) == {"a", "manifest.parquet"}
    assert rows_of(place)["a"]["error"] == "broken"
    assert manifest.done([image("a")], FACTS) == set()


def test_rows_are_on_the_disk_after_some_seconds_and_the_newest_counts(place, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("deblur.tools.batch.store.time.monotonic", lambda: clock[0])
    manifest = ManifestTable(place)
    for key, seed, wait in (("a", 0, 0.0), ("b", 1, SECONDS_BETWEEN_WRITES - 1), ("a", 2, 2.0), ("b", 3, 1.0)):
        clock[0] += wait
        manifest.add([row(key, "a", seed=seed)])
        place.write({"a": b"image"})
        stored, wanted = ManifestTable(place), [image("a"), image("b", files=["a"])]  # as after a kill
        done = [key for at in range(4) for key in sorted(stored.done(wanted, FACTS | {"seed": at}))]
        assert done == {0: ["a"], 1: ["a"], 2: ["b", "a"], 3: ["b", "a"]}[seed]


def test_a_manifest_of_older_batches_is_read_with_other_columns_but_not_without_the_settings(place):
    kept(place, row("a", "a"))
    table = pq.read_table(f"{place.base}/manifest.parquet")
    for other in (table.append_column("scores", pa.array(["{}"])), table.drop_columns(["metadata"])):
        pq.write_table(other, f"{place.base}/manifest.parquet")
        assert ManifestTable(place).done([image("a")], FACTS) == {"a"}
    pq.write_table(table.drop_columns("settings"), f"{place.base}/manifest.parquet")
    with pytest.raises(StoreError, match="is no manifest"):
        ManifestTable(place)


def test_a_new_row_takes_the_place_of_the_old_one_and_of_its_files(place):
    kept(place, row("a", "a_0.png", "a_1.png"), row("b", "../b"))
    assert (place.base.rpartition("/")[0], "b")[1] in os.listdir(os.path.dirname(place.base))
    kept(place, row("a", "a_0.png"), row("b", "b.png"))
    assert rows_of(place)["a"]["written"] == ["a_0.png"]
    assert set(place.list()) == {"a_0.png", "b.png", "manifest.parquet"}
    assert "b" in os.listdir(os.path.dirname(place.base)), "what lies elsewhere is not removed"


def two_folders(place):
    """Files here, and some outside, to which a link leads."""
    outside = Path(place.base).parent / "outside"
    for folder in (Path(place.base), Path(place.base) / "a", outside, outside / "a"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "b").write_bytes(b"")
    link = Path(place.base) / "link"
    if not link.is_symlink():
        link.symlink_to(outside)
    return outside


PARTS_OF_KEYS = ["..", ".", "", "a", "b", "link", "out", "outside"]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PARTS_OF_KEYS), max_size=6), st.sampled_from(["", "/", "outside", "out"]))
def test_no_key_leads_out_of_a_place(place, parts, root):
    """Whatever a manifest says was written: relative, absolute, up and down again, through a link."""
    outside = two_folders(place)
    roots = {"outside": f"{outside}/", "out": f"{place.base}/"}
    key = roots.get(root, root) + "/".join(parts)
    before = sorted(outside.rglob("*"))
    place.remove([key])
    assert sorted(outside.rglob("*")) == before
    meant = Path(place.base, key)
    if meant.parent.resolve().is_relative_to(place.base):
        assert not meant.is_file(), key
    assert (Path(place.base) / "b").exists() or meant.resolve() == Path(place.base) / "b"


def test_a_file_that_became_another_image_s_is_not_removed(place):
    kept(place, row("a.png", "a_0.png", "a_1.png"))
    kept(place, row("a_0.png", "a_0.png"), row("a.png", "a.png"))
    assert set(place.list()) == {"a.png", "a_0.png", "manifest.parquet"}


def test_rows_outlive_a_command_that_was_killed(place):
    manifest = ManifestTable(place)
    manifest.add([row("a", "a")])
    manifest.flush()
    manifest.add([row("b", "b")])  # and no more
    assert not os.path.exists(f"{place.base}/manifest.parquet")
    kept(place, row("c", "c"))
    assert set(rows_of(place)) == {"a", "c"}
    assert not any(name.startswith(".") for name in os.listdir(place.base))


def test_a_file_gets_its_name_when_all_are_there(place):
    place.write({"a": b"old"})
    with pytest.raises(TypeError):
        place.write({"a": b"new", "b": "no bytes"})
    assert place.read("a") == b"old"
    assert set(place.list()) == {"a"}
    place.clear(".parts")
    assert os.listdir(place.base) == ["a"]


def test_hidden_files_and_those_of_other_places_are_not_seen(place):
    place.write({"a/b.png": b"", ".hidden/c.png": b"", "a/.d.png": b""})
    assert set(place.list()) == {"a/b.png"}
    assert set(Place(f"{place.base}/a").list()) == {"b.png"}
    assert place.contains(Place(f"{place.base}/a"))
    assert not place.contains(Place(f"{place.base}s"))


def test_a_foreign_manifest_is_named(place):
    place.write({"manifest.parquet": b"no parquet"})
    with pytest.raises(
        StoreError, match=r"out/manifest.parquet is no manifest of python -m tools.batch \(.*: remove it"
    ):
        ManifestTable(place)


def test_folders_are_listed_once_and_results_are_no_inputs(place, tmp_path):
    names = ("a/1.png", "b/2.png", "out/1.png", "out/manifest.parquet", "web/manifest.json", "local/1.png")
    listed = b'{"../1.png": {"written": ["1.png"]}}'
    place.write(dict.fromkeys(names, b"[]") | {"local/manifest.json": listed, "b/manifest.json": listed})
    os.symlink(place.base, f"{place.base}/a/up")
    os.symlink(f"{place.base}/b", f"{place.base}/c")
    manifests = {"local/manifest.json", "b/manifest.json"}
    assert set(place.inputs()) == {"a/1.png", "b/2.png", "web/manifest.json", *manifests}
    assert set(place.list()) == {*names, *manifests}
    assert set(Place(f"{place.base}/b").inputs()) == {"2.png", "manifest.json"}  # an original beside a result
    for folder in ("out", "local"):
        with pytest.raises(StoreError, match=f"{folder} holds restored images"):
            Place(f"{place.base}/{folder}").inputs()
