"""What python -m tools.batch says and does without Ray, and what guards users' images. test_batch.py has Ray."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
import torch

import sample

pytest.importorskip("ray")
from deblur.data.files import images
from deblur.data.pairs import generator_of
from deblur.restoration.options import Options
from deblur.tools.batch import command, run
from deblur.tools.batch.options import Flags
from deblur.tools.batch.run import Batch, Worker
from deblur.tools.batch.store import PARTS_FOLDER, ROWS_FOLDER, ManifestTable, Place, StoreError, row_values
from tests.conftest import ROOT
from tests.tiny import tiny_pipeline


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A checkpoint, and photographs in nested folders."""
    folder = tmp_path_factory.mktemp("batch")
    tiny_pipeline().save_pretrained(folder / "checkpoint")
    for name in ("a/deep/0", "b/1", "b/2"):
        images.write(folder / "photos" / f"{name}.png", torch.rand(3, 24, 28, generator=generator_of(name)))
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["s3://nowhere/a", "out"], "s3://nowhere/a cannot be listed: The specified bucket does not exist"),
        (["photos", "s3://nowhere/a"], "s3://nowhere/a cannot be written: The specified bucket does not exist"),
        (["s3://data/nothing", "out"], "s3://data/nothing cannot be listed: No such file or directory"),
        (["photos", "photos/restored"], "photos/restored lies in "),
        (["ftp://photos", "out"], "ftp://photos cannot be opened: "),
        (["photos"], "a source and a target are needed, got photos"),
        (["photos", "out", "--address", "127.0.0.1:9"], "no Ray cluster answers at 127.0.0.1:9 (Connection refused)"),
        (["photos", "out", "--concurrency", "0"], "--concurrency must be 1 or more"),
        (["photos", "out", "--depth", "12"], "--depth is one of 8, 16"),
        (["photos", "out", "--num_gpu", "1"], "--num_gpu is unknown: did you mean --num_gpus?"),
        (["photos", "out", "--checkpoint", "nowhere"], "checkpoint nowhere is neither"),
        (["checkpoint/scheduler", "out"], "checkpoint/scheduler holds no image"),
    ],
)
def test_what_is_wrong_is_one_sentence(place, bucket, tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(place)
    assert command.main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1 and said.startswith("batch: error: "), said


def test_wrong_credentials_are_one_sentence(bucket, tmp_path, capsys):
    bucket.ask_for_credentials(True)
    try:
        assert command.main(["s3://data/photos", str(tmp_path)]) == 2
    finally:
        bucket.ask_for_credentials(False)
    wrong = "The AWS Access Key Id you provided does not exist in our records (INVALID_ACCESS_KEY_ID)"
    assert capsys.readouterr().err == f"batch: error: s3://data/photos cannot be listed: {wrong}\n"


def test_without_the_extra_it_is_named(place, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert command.main([str(place / "photos"), str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"batch: error: {command.NEEDED}\n"


@pytest.mark.parametrize("error", [OSError, RuntimeError, ValueError])
def test_a_ray_that_does_not_start_is_one_sentence(place, tmp_path, monkeypatch, capsys, error):
    def init(**arguments):
        raise error("no room\nfor it")

    monkeypatch.setattr("ray.init", init)
    assert command.main([str(place / "photos"), str(tmp_path), "--checkpoint", str(place / "checkpoint")]) == 2
    assert capsys.readouterr().err == "batch: error: Ray cannot be started: no room for it\n"


class Failing(Place):
    """A folder that refuses the k-th write."""

    left = 0

    def write(self, files):
        self.left -= 1
        if self.left == 0:
            raise StoreError(f"{self.url} cannot be written: No space left on device")
        super().write(files)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_what_was_not_uploaded_is_not_listed_as_done(place, tmp_path, k):
    keys, target = ["a/deep/0.png", "b/1.png", "b/2.png"], Failing(str(tmp_path / "out"))
    target.left = k
    options = Options("", checkpoint=str(place / "checkpoint"), device="cpu", batch_size=1)
    worker = Worker(Batch(options, {"steps": 1}, Place(str(place / "photos")), target))
    chunk = [{"key": key, "bytes": 1, "modified": 1, "target": key, "stem": PurePosixPath(key).stem} for key in keys]
    rows, reason = worker.restore(chunk)
    assert all((tmp_path / "out" / row["image"]).is_file() for row in rows)
    assert len(rows) == (k - 1 if k <= 3 else 3)
    assert ("No space left" in reason) == (k <= 3)


@pytest.mark.parametrize(
    ("total", "options", "flags", "workers", "cpus", "gpus"),
    [
        ({"CPU": 8.0, "GPU": 2.0}, {}, {}, 2, 4, 1),
        ({"CPU": 8.0, "GPU": 2.0}, {"device": "cuda"}, {}, 2, 4, 1),
        ({"CPU": 8.0, "GPU": 2.0, "memory": 64e9}, {"device": "cpu"}, {}, 8, 1, 0),
        ({"CPU": 8.0, "GPU": 1.0}, {}, {"num_gpus": 0.25}, 4, 2, 0.25),
        ({"CPU": 8.0, "memory": 8e9}, {}, {}, 2, 4, 0),  # two workers of 3.5 GB
        ({"CPU": 8.0, "memory": 8e9}, {"memory": 2.0}, {}, 4, 2, 0),
        ({"CPU": 1.0}, {}, {"concurrency": 2}, 2, 0.5, 0),
        ({"CPU": 4.0, "memory": 1e9}, {}, {}, 1, 4, 0),  # one at least
    ],
)
def test_workers_share_the_gpus_or_the_cores_and_the_memory(total, options, flags, workers, cpus, gpus):
    found = run.workers_and_resources(total, Options("out", **options), Flags(**flags))
    assert found == (workers, {"num_cpus": cpus, "num_gpus": gpus})


def test_more_gpus_than_there_are_belong_to_a_cluster_alone():
    with pytest.raises(ValueError, match="--num_gpus 2, but this machine has 1"):
        run.workers_and_resources({"CPU": 4.0, "GPU": 1.0}, Options("out"), Flags(num_gpus=2))
    assert run.workers_and_resources({"CPU": 4.0}, Options("out"), Flags(num_gpus=1, address="HEAD:1"))[0] == 1


def test_a_cluster_that_answers_is_tried_and_one_that_does_not_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        for given in (address, f"ray://{address}"):
            run.require_listening(given)
            server.settimeout(10)
            server.accept()[0].close()  # it was asked
    for given in (address, f"ray://{address}"):
        with pytest.raises(ValueError, match="no Ray cluster answers"):
            run.require_listening(given)
    for given in ("auto", None):  # no address of its own: Ray looks for it
        run.require_listening(given)


@pytest.mark.parametrize(
    ("end", "code", "is_said"),
    [
        ("os._exit(1)", 1, True),  # as Ray's library ends it when its node is dead
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, True),
        ("pass", 0, False),
        ("sys.exit(3)", 3, False),
        ("raise KeyError", 1, False),
    ],
)
def test_an_end_without_a_word_is_told_and_an_orderly_one_is_not(tmp_path, end, code, is_said):
    program = f"import os, signal, sys\nfrom deblur.tools.batch.command import watched\nwith watched('out'): {end}"
    with open(tmp_path / "said", "wb") as said:
        ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stderr=said, timeout=300)
    assert ended.returncode == code
    sentence = f"batch: error: {command.ENDED.format('out')}\n"
    until = time.monotonic() + 20
    while is_said and time.monotonic() < until and sentence not in (tmp_path / "said").read_text():
        time.sleep(0.05)
    assert (sentence in (tmp_path / "said").read_text()) == is_said


@pytest.fixture
def job(tmp_path):
    """A task on three photographs, one in a folder and one damaged."""
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    for name in ("a.png", "deep/b.png", "bad.png"):
        images.write(tmp_path / "photos" / name, torch.rand(3, 16, 20))
    damaged = tmp_path / "photos" / "bad.png"
    damaged.write_bytes(damaged.read_bytes()[:200])
    options = Options(str(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), device="cpu", precision="fp32")
    return Batch(options, {"steps": 1}, Place(str(tmp_path / "photos")), Place(str(tmp_path / "out")))


def wanted(job):
    """The rows of all images with the names of their files."""
    rows = run.images_of(job.source, job.options)
    return run.named_rows(rows, Worker(job).describe()[3], job, ManifestTable(job.target))


def done(job):
    """The images that the manifest in the target counts as done."""
    return ManifestTable(job.target).done(wanted(job), Worker(job).describe()[0])


def record(job, rows):
    """Record the images that were restored."""
    manifest, facts = ManifestTable(job.target), row_values(Worker(job).describe()[0])
    manifest.add([row | facts for row in rows if not row.get("error")])
    manifest.close()


def test_good_images_are_restored_and_bad_ones_are_named(job, tmp_path):
    found, reason = Worker(job).restore(wanted(job))
    rows = {row["image"]: row for row in found}
    assert {name for name, row in rows.items() if row.get("error")} == {"bad.png"}
    assert "damaged" in rows["bad.png"]["error"]
    assert reason == ""
    for name in ("a.png", "deep/b.png"):
        assert rows[name]["written"] == [name]
        assert images.read(tmp_path / "out" / name).shape == (3, 16, 20)
    assert not (tmp_path / "out" / "bad.png").exists()
    assert not any((tmp_path / "out" / PARTS_FOLDER).iterdir())


def test_an_error_that_is_not_an_image_s_is_raised(job):
    with pytest.raises(KeyError, match="target"):
        Worker(job).restore([{"key": "a.png", "bytes": 1, "modified": 0}])


def test_images_are_done_until_they_or_their_restorations_change(job, tmp_path):
    rows, _ = Worker(job).restore(wanted(job))
    assert done(job) == set()
    record(job, rows)
    assert done(job) == {"a.png", "deep/b.png"}
    assert not (tmp_path / "out" / ROWS_FOLDER).exists()
    (tmp_path / "out" / "a.png").unlink()
    assert done(job) == {"deep/b.png"}
    images.write(tmp_path / "photos" / "deep" / "b.png", torch.rand(3, 16, 22))
    assert done(job) == set()


def test_every_file_of_a_batch_has_a_name_of_its_own(job, tmp_path):
    job = replace(job, options=replace(job.options, compare=True))
    images.write(tmp_path / "photos" / "a_compare.png", torch.rand(3, 16, 20))
    rows = {row["key"]: row["files"] for row in wanted(job)}
    assert rows["a.png"] == ["a.png", "a_png_compare.png"]
    assert rows["a_compare.png"] == ["a_compare.png", "a_compare_compare.png"]
    record(job, Worker(job).restore(wanted(job))[0])
    assert done(job) == {"a.png", "a_compare.png", "deep/b.png"}
    assert images.read(tmp_path / "out" / "a_compare.png").shape == (3, 16, 20)


def test_a_name_that_is_not_utf_8_is_restored_like_any_other(job, tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    (tmp_path / "photos" / "a.png").rename(tmp_path / "photos" / name)
    rows = {row["image"]: row for row in Worker(job).restore(wanted(job))[0]}
    assert rows["caf\\udce9.png"]["written"] == ["caf\\udce9.png"]
    record(job, rows.values())
    assert done(job) == {"caf\\udce9.png", "deep/b.png"}
    flags = ["--checkpoint", job.options.checkpoint, "--device", "cpu", "--precision", "fp32", "--steps", "1"]
    assert sample.main([str(tmp_path / "photos"), "--output", str(tmp_path / "local"), *flags]) == 1
    assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()  # of the same noise
    job.target.remove(["caf\\udce9.png"])
    assert not (tmp_path / "out" / name).exists()


def test_a_batch_into_the_folder_above_its_photographs_overwrites_none(job, tmp_path):
    images.write(tmp_path / "photos" / "photos" / "a.png", torch.rand(3, 16, 20))
    above = replace(job, target=Place(str(tmp_path)))
    with pytest.raises(ValueError, match=r"photos/a\.png is an input and would be overwritten"):
        wanted(above)


def test_images_of_formats_that_are_not_read_are_counted(tmp_path, capsys):
    for name in ("a.png", "sub/b.JFIF", "c.hif", "d.gif", "sub/e.GIF", "f.cr2", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    rows = run.images_of(Place(str(tmp_path)), Options(""))
    assert {row["target"] for row in rows} == {"a.png", "sub/b.JFIF", "c.hif"}
    assert capsys.readouterr().err.splitlines() == [
        "batch: skipped 1 .cr2, RAW is not read: export it as TIFF or 16-bit PNG",
        "batch: skipped 2 .gif, GIF is not read: save its first frame as PNG",
    ]
