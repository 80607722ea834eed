import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from base.files import FolderInUse
from data import images
from data.datamodule import DeblurDataModule
from data.images import ImageError
from data.layouts import DatasetError, find_pairs
from data.packed import Packed
from data.pairs import TrainPairs, generator_of, shuffled
from tests import processes
from tools import pack

pytest.importorskip("litdata", reason="needs requirements-extra.txt")
pytestmark = pytest.mark.xdist_group("pack")  # most tests read the same shards


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Twelve pairs and their shards of two or three pairs each."""
    root = tmp_path_factory.mktemp("packed")
    for i in range(12):
        sharp = torch.rand(3, 40, 50, generator=generator_of("packed", i))
        images.write(root / "pairs" / "sharp" / f"{i:02}.png", sharp)
        images.write(root / "pairs" / "blur" / f"{i:02}.png", 1 - sharp)
    before = multiprocessing.get_start_method()
    pack.main(str(root / "pairs"), str(root / "shards"), num_workers=1, shard_bytes=30_000)
    assert multiprocessing.get_start_method() == before
    return root


def test_shards_hold_the_very_pixels_of_the_files(packed):
    pairs, shards = find_pairs(packed / "pairs"), Packed(str(packed / "shards"))
    assert len(shards) == 12 and sum(shards.shards) == 12 and 3 < len(shards.shards) < 12
    by_name = {shards[i].name: shards[i] for i in range(12)}
    assert sorted(by_name) == [pair.name for pair in pairs]
    for pair in pairs:
        for ours, theirs in zip(by_name[pair.name].read(), pair.read(), strict=True):
            assert ours.dtype == torch.uint8 and torch.equal(ours, theirs)


def test_crops_from_shards_are_those_of_the_files(packed):
    shards = Packed(str(packed / "shards"))
    dataset = TrainPairs(shards, 16, crops_per_image=2)
    pairs = {pair.name: pair for pair in find_pairs(packed / "pairs")}
    for number in range(12):
        crops = dataset[number]
        alone = TrainPairs([pairs[crops[0]["name"]]], 16, crops_per_image=2)[number]
        assert all(torch.equal(a["blurry"], b["blurry"]) for a, b in zip(crops, alone, strict=True))


def test_the_order_of_shards_passes_over_everything_once():
    sizes = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    total = sum(sizes)
    epochs = [[shuffled(e * total + i, total, 0, sizes) for i in range(total)] for e in range(3)]
    assert all(sorted(epoch) == list(range(total)) for epoch in epochs) and epochs[0] != epochs[1] != epochs[2]
    twice = [shuffled(i, 2 * total, 0, sizes) for i in range(2 * total)]
    assert sorted(twice) == sorted([*range(total), *range(total)])
    shard = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    first = {next(k for k, end in enumerate(shard) if item < end) for item in epochs[0][:8]}
    assert len(first) > 2  # mixed, not one shard after the other


READ = """
import sys
from torch.utils.data import DataLoader
from data.packed import Packed
from data.pairs import TrainPairs, flatten
root, first, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
stream = range(first, first + 1000)
for batch in DataLoader(TrainPairs(Packed(root), 16), 2, sampler=stream, num_workers=workers, collate_fn=flatten):
    print(" ".join(batch["name"]), flush=True)
"""


def names_seen(root, processed, workers, count):
    """Start to read after `processed` batches of two, take `count` and kill the process."""
    run = processes.Command("-c", [READ, root, 2 * processed, workers])
    said = run.said / "out"
    processes.until(lambda: said.is_file() and said.read_text().count("\n") >= count, run)
    os.killpg(run.pid, signal.SIGKILL)
    return [name for line in run.wait().stdout.splitlines()[:count] for name in line.split()]


def test_a_killed_and_resumed_epoch_sees_every_sample_once(packed):
    seen = names_seen(packed / "shards", 0, 0, 2) + names_seen(packed / "shards", 2, 2, 4)
    assert sorted(seen) == [f"{i:02}" for i in range(12)]
    assert seen != sorted(seen)


def test_shards_through_the_data_module(packed):
    data = DeblurDataModule(train=str(packed / "shards"), patch_size=16, batch_size=4, crops_per_image=2)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch["blurry"].shape == (4, 3, 16, 16)
    torch.testing.assert_close(batch["blurry"], 1 - batch["sharp"], atol=1 / 255, rtol=0)


def test_what_cannot_be_packed(packed, tmp_path):
    with pytest.raises(FolderInUse, match="not an empty folder"):
        pack.main(str(packed / "pairs"), str(packed / "shards"))
    with pytest.raises(DatasetError, match="not a folder"):
        pack.main(str(tmp_path / "gone"), str(tmp_path / "out"))
    shutil.copytree(packed / "pairs", tmp_path / "pairs")
    (tmp_path / "pairs" / "sharp" / "04.png").unlink()
    with pytest.raises(DatasetError, match=r"1 images without a partner .*04\.png"):
        pack.main(str(tmp_path / "pairs"), str(tmp_path / "out"))


@pytest.mark.slow
def test_the_split_and_variant_asked_for_are_packed(tmp_path, capfd):
    for i, (split, kind) in enumerate([(s, k) for s in ("train", "test") for k in ("blur", "blur_gamma", "sharp")]):
        images.write(tmp_path / "data" / split / "A" / kind / f"{split}.png", torch.full((3, 8, 8), i / 10))
    (tmp_path / "shards").mkdir()  # empty: welcome
    pack.main(str(tmp_path / "data"), str(tmp_path / "shards"), split="test", variant="blur_gamma")
    shards = Packed(str(tmp_path / "shards"))
    pair = shards[0]
    assert len(shards) == 1 and pair.name == "A/test" and (pair.blurry == 102).all() and (pair.sharp == 128).all()
    assert "1 pairs of" in (told := capfd.readouterr().out) and "(test, layout gopro, variant blur_gamma)" in told


@pytest.mark.slow
def test_a_damaged_image_stops_the_packing_with_its_name(packed, tmp_path):
    shutil.copytree(packed / "pairs", tmp_path / "pairs")
    ill = tmp_path / "pairs" / "sharp" / "07.png"
    whole = ill.read_bytes()
    ill.write_bytes(whole[:100] + bytes(200) + whole[300:])  # in the middle, which only decoding finds
    with pytest.raises(ImageError) as caught:
        pack.main(str(tmp_path / "pairs"), str(tmp_path / "shards"), num_workers=2)
    assert str(caught.value).startswith(f"{ill} cannot be decoded") and "\n" not in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pairs"]  # nothing half-written, not even hidden
    for process in multiprocessing.active_children():
        process.join(10)
    assert not multiprocessing.active_children()


def kill_when(ready):
    """Kill a process that this one has started, as soon as there is one and `ready()` holds."""

    def wait():
        while not (multiprocessing.active_children() and ready()):
            time.sleep(0.001)
        multiprocessing.active_children()[0].kill()

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.parametrize("shards", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_a_killed_process_leaves_nothing_half_written(tmp_path, shards):
    count = 300 if shards else 8
    for i in range(count):
        for side in ("sharp", "blur"):
            images.write(tmp_path / "pairs" / side / f"{i:03}.png", torch.rand(3, 40, 50))
    kill_when(lambda: len(list(tmp_path.glob(".*/*.bin"))) >= shards)
    with pytest.raises(DatasetError, match=rf"Only \d+ of {count} pairs of .* since a process was killed"):
        pack.main(str(tmp_path / "pairs"), str(tmp_path / "shards"), num_workers=1, shard_bytes=30_000)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pairs"]


def test_an_index_without_shards(packed, tmp_path):
    shutil.copytree(packed / "shards", tmp_path / "shards")
    index = tmp_path / "shards" / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"chunks": []}))
    with pytest.raises(DatasetError, match="shards holds no shards: pack the dataset again"):
        Packed(str(tmp_path / "shards"))


def test_what_heads_and_ends_show_is_named_before_anything_is_packed(packed, tmp_path):
    shutil.copytree(packed / "pairs", tmp_path / "pairs")
    for number in (3, 9):
        ill = tmp_path / "pairs" / "blur" / f"{number:02}.png"
        ill.write_bytes(ill.read_bytes()[:-20])
    with pytest.raises(DatasetError, match="2 files or pairs are damaged") as caught:
        pack.main(str(tmp_path / "pairs"), str(tmp_path / "shards"))
    assert "03.png" in str(caught.value) and "09.png" in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pairs"]


class Bucket(SimpleHTTPRequestHandler):
    """What S3 answers when an object is asked for, whole or in part: a folder's files as BUCKET/KEY."""

    def do_GET(self):
        file = Path(self.translate_path(self.path))
        if not file.is_file():
            self.send_error(404)
            return
        content, asked = file.read_bytes(), self.headers.get("Range")
        first, last = 0, len(content) - 1
        if asked:
            start, end = asked.removeprefix("bytes=").split("-")
            first, last = int(start), min(int(end or last), last)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("Last-Modified", self.date_time_string(int(file.stat().st_mtime)))
        self.send_header("ETag", f'"{len(content)}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[first : last + 1])

    do_HEAD = do_GET

    def log_message(self, *arguments):
        self.server.asked.append(self.path)


@pytest.fixture
def store(packed, monkeypatch, tmp_path):
    """An object store on this machine which has the shards as s3://packed/shards."""
    root = packed.parent / "store"
    shutil.copytree(packed / "shards", root / "packed" / "shards", dirs_exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Bucket, directory=str(root)))
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "DATA_OPTIMIZER_CACHE_FOLDER": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_shards_stream_from_an_object_store(packed, store, workers):
    data, local = (
        DeblurDataModule(train=root, patch_size=16, batch_size=4, num_workers=workers)
        for root in ("s3://packed/shards", str(packed / "shards"))
    )
    for module in (data, local):
        module.setup("fit")
    fetched = sum(path.endswith(".bin") for path in store.asked)
    assert fetched == 0  # shards come when they are needed
    for _, ours, theirs in zip(range(3), data.train_dataloader(), local.train_dataloader(), strict=False):
        assert ours["name"] == theirs["name"]
        assert torch.equal(ours["blurry"], theirs["blurry"]) and torch.equal(ours["sharp"], theirs["sharp"])
    assert any(path.startswith("/packed/shards/") and ".bin" in path for path in store.asked)
