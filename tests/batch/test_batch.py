"""python -m tools.batch on a Ray of two workers and an S3 server, both on this machine."""

import json
import logging
import os
import signal
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import sample

pytest.importorskip("ray")
from deblur.data.files import images
from deblur.data.pairs import generator_of
from deblur.tools.batch import command, run
from tests.processes import Command
from tests.tiny import tiny_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]  # which takes long to start

HOW = ["--steps", "1", "--precision", "fp32", "--device", "cpu", "--seed", "3"]
COUNT, DAMAGED, FATAL = 200, "a/b/bad.png", ("b/160.png", "b/196.png")  # of two chunks


@pytest.fixture(scope="module")
def place(bucket, tmp_path_factory):
    """Photographs in nested folders, some damaged, here and under s3://data/photos; what sample.py makes of them."""
    folder = tmp_path_factory.mktemp("batch")
    tiny_pipeline().save_pretrained(folder / "checkpoint")
    for i in range(COUNT):
        name = f"{'a/deep' if i % 3 == 0 else 'b'}/{i:03}.png"
        size = (24 + 8 * (i % 2), 28)
        images.write(folder / "photos" / name, torch.rand(3, *size, generator=generator_of("batch", i)))
    (folder / "photos" / DAMAGED).parent.mkdir()
    (folder / "photos" / DAMAGED).write_bytes((folder / "photos/b/001.png").read_bytes()[:200])
    (folder / "photos" / "b" / "notes.txt").write_text("no photograph")
    assert sample.main([str(folder / "photos"), "--output", str(folder / "local"), *how(folder)]) == 1
    bucket.upload(folder / "photos", "photos")
    return folder


def how(folder):
    return ["--checkpoint", str(folder / "checkpoint"), *HOW]


@pytest.fixture(scope="module")
def cluster(bucket, place):
    """A Ray on this machine; the address at which other processes find it."""
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.CRITICAL}
    ray.init(num_cpus=2, object_store_memory=run.OBJECT_STORE, _node_ip_address="127.0.0.1", **quiet)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


def kill(process):
    os.kill(process, signal.SIGKILL)


@pytest.fixture(scope="module")
def killed(bucket, place, cluster):
    """What stood in the manifest, and when each output was written, when the driver was killed in mid-batch."""
    words = ["s3://data/photos", "s3://data/out", *how(place), "--address", cluster, "--concurrency", "1"]
    command = Command("tools.batch", words)

    def kill_driver(_):
        while not bucket.keys("out/.rows"):  # the first rows are on their way
            time.sleep(0.02)
        kill(command.pid)

    bucket.fatal["b/100.png"] = kill_driver
    done = command.wait()
    assert done.returncode == -9, done.stderr
    bucket.fatal.clear()
    parts = [pq.read_table(pa.BufferReader(bucket.read(f"out/{key}"))) for key in bucket.keys("out") if ".rows/" in key]
    return pa.concat_tables(parts).to_pylist(), bucket.keys("out")


@pytest.fixture(scope="module")
def restored(bucket, place, killed):
    """The exit code of the same command, during which two photographs kill every worker that asks for them."""
    bucket.fatal |= dict.fromkeys(FATAL, kill)
    code = command.main(["s3://data/photos", "s3://data/out", *how(place), "--concurrency", "2"])
    bucket.fatal.clear()
    return code


@pytest.fixture(scope="module")
def rows(bucket, restored):
    """The manifest's."""
    return pq.read_table(pa.BufferReader(bucket.read("out/manifest.parquet"))).to_pylist()


def test_what_could_not_be_restored_is_listed_with_its_reason(restored, rows):
    assert restored == 1
    errors = {row["image"]: row["error"] for row in rows if row["error"]}
    assert set(errors) == {DAMAGED, *FATAL}
    assert errors[DAMAGED].startswith("cannot be decoded, it may be damaged")
    why = "a worker's process was killed, perhaps for its memory"
    assert {errors[name] for name in FATAL} == {f"ended its worker twice, the second time alone: {why}"}


def test_every_photograph_stands_in_the_manifest_once_with_what_made_it(rows, place):
    photos = (file.relative_to(place / "photos").as_posix() for file in (place / "photos").rglob("*.png"))
    assert sorted(row["image"] for row in rows) == sorted(photos)
    ours = next(row for row in rows if row["image"] == "b/001.png")
    theirs = json.loads((place / "local" / "manifest.json").read_text())[str(place / "photos/b/001.png")]
    for name in set(theirs) - {"seconds", "modified"}:
        value = json.loads(ours[name]) if isinstance(theirs[name], dict) else ours[name]
        assert value == theirs[name], name


def test_outputs_are_those_of_sample_py_to_the_bit(bucket, restored, place):
    expected = {f.relative_to(place / "local").as_posix(): f for f in (place / "local").rglob("*.png")}
    expected = {key: file for key, file in expected.items() if key not in FATAL}
    assert {key for key in bucket.keys("out") if not key.endswith("/") and key} == {*expected, "manifest.parquet"}
    for key, file in expected.items():
        assert bucket.read(f"out/{key}") == file.read_bytes(), key


def test_what_the_manifest_knew_is_not_done_twice(bucket, killed, restored, rows):
    before, written = killed
    assert 0 < len(before) < COUNT
    done, now = {row["image"]: row for row in before if not row["error"]}, bucket.keys("out")
    assert done.items() <= {row["image"]: row for row in rows}.items()
    assert all(now[image] == written[image] for image in done)
