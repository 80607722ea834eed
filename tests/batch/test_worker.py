"""A worker of python -m batch without a cluster: what guards users' images. test_batch.py has the long form on Ray."""

import pyarrow as pa
import pytest
import torch

pytest.importorskip("ray")

from batch.command import images_of
from batch.store import PARTS, ROWS, ManifestTable, Place, plain
from batch.worker import Job, Worker, describe
from data import images
from restoration.options import Options
from tests.tiny import tiny_pipeline


@pytest.fixture
def job(tmp_path):
    """A task on three photographs, one in a folder and one damaged."""
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    for name in ("a.png", "deep/b.png", "bad.png"):
        images.write(tmp_path / "photos" / name, torch.rand(3, 16, 20))
    damaged = tmp_path / "photos" / "bad.png"
    damaged.write_bytes(damaged.read_bytes()[:200])
    options = Options(str(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), device="cpu", precision="fp32")
    return Job(options, {"steps": 1}, Place(str(tmp_path / "photos")), Place(str(tmp_path / "out")))


def run(job):
    """The rows of a chunk with all images."""
    rows = images_of(job.source, job.options)
    return Worker(job)(pa.Table.from_pylist(rows)).to_pylist()


def done(job):
    """The images that the manifest in the target counts as done."""
    wanted = {row["key"]: (row["bytes"], row["modified"]) for row in images_of(job.source, job.options)}
    return ManifestTable(job.target).done(wanted, describe(job)[0])


def record(job, rows):
    manifest, facts = ManifestTable(job.target), plain(describe(job)[0])
    manifest.add([{name: value for name, value in (row | facts).items() if name != "stop"} for row in rows])
    manifest.close()


def test_good_images_are_restored_and_bad_ones_are_named(job, tmp_path):
    rows = {row["image"]: row for row in run(job)}
    assert {name for name, row in rows.items() if row["error"]} == {"bad.png"}
    assert "damaged" in rows["bad.png"]["error"] and not any(row["stop"] for row in rows.values())
    for name in ("a.png", "deep/b.png"):
        assert rows[name]["written"] == [name] and images.read(tmp_path / "out" / name).shape == (3, 16, 20)
    assert not (tmp_path / "out" / "bad.png").exists() and not any((tmp_path / "out" / PARTS).iterdir())


def test_an_error_that_is_not_an_image_s_is_raised(job):
    with pytest.raises(KeyError, match="target"):
        Worker(job)(pa.Table.from_pylist([{"key": "a.png", "bytes": 1, "modified": 0}]))


def test_images_are_done_until_they_or_their_restorations_change(job, tmp_path):
    rows = run(job)
    assert done(job) == set()
    record(job, [row for row in rows if not row["error"]])
    assert done(job) == {"a.png", "deep/b.png"} and not (tmp_path / "out" / ROWS).exists()
    (tmp_path / "out" / "a.png").unlink()
    assert done(job) == {"deep/b.png"}
    images.write(tmp_path / "photos" / "deep" / "b.png", torch.rand(3, 16, 22))
    assert done(job) == set()


def test_a_target_that_takes_nothing_ends_the_job_and_nothing_is_done(job, tmp_path):
    (tmp_path / "out").write_text("a file in the folder's place")
    rows = run(job)
    assert "cannot be written" in rows[-1]["stop"] and not any(row["written"] for row in rows)
