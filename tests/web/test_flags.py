"""Every flag of app.py changes the page."""

import zipfile
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import app
from deblur.data.files import images
from deblur.models.networks.unet import UNetPredictor
from tests.processes import free_port
from tests.tiny import tiny_pipeline

pytestmark = pytest.mark.commands

REQUEST = SimpleNamespace(session_hash="somebody")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two checkpoints with size heads."""
    folder = tmp_path_factory.mktemp("flags")
    tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True)).save_pretrained(folder / "sized")
    tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True), residual_scale=0.3).save_pretrained(folder / "other")
    return folder


@pytest.fixture
def opened(place, tmp_path, monkeypatch):
    """A function that opens a photograph with the page that a command line makes; its handlers."""
    from deblur.restoration.restorer import Restorer
    from deblur.tools.web.actions import Actions
    from deblur.tools.web.page import Page
    from deblur.tools.web.visits import Visits

    exif = Image.Exif()
    exif[0x010F] = "Camera"
    noise = np.random.default_rng(0).integers(0, 256, (40, 52, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.jpg", exif=exif)
    monkeypatch.chdir(place)
    count = 0

    def opened(*flags):
        nonlocal count
        count += 1
        given = [*flags, *([] if "--checkpoint" in flags else ["--checkpoint", "sized"])]
        given += [] if "--device" in flags else ["--device", "cpu"]
        given += [] if "--precision" in flags else ["--precision", "fp32"]
        served, options = app.parsed(given)
        restorers = {options.checkpoint: Restorer(options, {})}
        actions = Page(Actions(restorers, served, Visits(tmp_path / f"visits{count}"))).actions
        actions.open([{"path": str(tmp_path / "photo.jpg"), "orig_name": "photo.jpg"}], REQUEST)
        return actions

    return opened


def restored(actions, steps=2, count=1):
    """The newest result's pixels, and its file."""
    list(
        actions.restore(actions.restorer.options.checkpoint, None, "ddim", steps, count, 1.0, 3, "auto", None, REQUEST)
    )
    result = actions.visits.of("somebody").shown.result
    return result.image(result.kinds[-1]), Path(actions.save(result.kinds[-1], REQUEST))


def refused(words, action, *given, **named):
    with pytest.raises(ValueError, match=words):
        action(*given, **named)


def test_the_page_writes_no_metadata_if_it_is_told_to(opened, tmp_path):
    for choice in ("keep", "none"):
        actions = opened("--metadata", choice)
        one = restored(actions)[1]
        actions.open([{"path": str(tmp_path / "photo.jpg"), "orig_name": name} for name in ("a.jpg", "b.jpg")], REQUEST)
        with zipfile.ZipFile(restored(actions)[1]) as archive:
            packed = Path(archive.extract("b.jpg", tmp_path / choice))
        for file in (one, packed):
            exif = images.read_file(file).exif
            assert (b"Camera" in exif) if choice == "keep" else (exif is None)


def test_the_page_s_limits_are_those_of_its_flags(opened):
    restored(opened(), steps=4, count=3)
    refused("more than the 0.001 megapixels", opened, "--max_pixels", "0.001")
    refused("at most 3 steps, not 4", restored, opened("--max_steps", "3"), steps=4)
    refused("at most 2 samples, not 3", restored, opened("--max_samples", "2"), steps=4, count=3)
    refused("longer than the 1e-09 seconds", restored, opened("--max_seconds", "1e-9"))


def test_the_page_s_networks_are_those_of_its_flags(opened):
    plain, _ = restored(opened())
    for flags in (["--checkpoint", "other"], ["--precision", "bf16"]):
        other, _ = restored(opened(*flags))
        assert not torch.equal(plain, other)
    refused("no ONNX folder, which the provider cuda", opened, "--provider", "cuda")
    refused("class mypred.Net cannot be imported", opened, "--classes", "mypred.Net")


@pytest.mark.xdist_group("page")
def test_the_page_is_served_as_its_flags_say(place, tmp_path, monkeypatch):
    for name in ("GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED", "no_proxy"):
        monkeypatch.setenv(name, "")
    port = free_port()
    flags = ["--host", "127.0.0.2", "--port", str(port), "--auth", "name:word", "--max_size", "0.001"]
    page = app.start(*app.parsed([*flags, "--checkpoint", str(place / "sized"), "--device", "cpu"]), tmp_path)
    try:
        address = f"http://127.0.0.2:{port}"
        assert page.local_url == f"{address}/"
        with httpx.Client(base_url=address) as visitor:
            assert visitor.get("/config").status_code == 401
            assert visitor.post("/login", data={"username": "name", "password": "word"}).status_code == 200
            assert visitor.get("/config").status_code == 200
            codes = []
            for size in (900, 1100):
                file = {"files": ("a.png", bytes(size))}
                codes.append(visitor.post("/gradio_api/upload", files=file).status_code)
            assert codes == [200, 413]
    finally:
        page.close()
