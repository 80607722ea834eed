"""Every flag of app.py changes the page."""

import zipfile
from dataclasses import fields
from pathlib import Path

import httpx
import pytest

import app
from deblur.data.files import images
from deblur.restoration.options import Options
from deblur.tools.web.served import Served
from tests.processes import free_port
from tests.tiny import tiny_pipeline
from tests.web.conftest import REQUEST, opened, run

pytestmark = pytest.mark.xdist_group("page")
SERVED = {"host": "::1", "port": 80, "auth": "a:b", "max_size": 1, "max_pixels": 2, "max_steps": 3, "max_samples": 4}
SERVED |= {"max_seconds": 5}
SHARED = {"checkpoint": "text", "device": "cpu", "precision": "bf16", "provider": "cuda", "classes": "mypred.Net"}
SHARED |= {"memory": 2.5, "metadata": "none"}


def test_each_flag_is_a_limit_of_the_page_or_an_option_of_sample_py():
    assert SERVED.keys() == {field.name for field in fields(Served)}
    assert SHARED.keys() == set(app.SHARED)
    words = [f"--{name}={value}" for name, value in (SERVED | SHARED).items()]
    assert app.parsed(words) == (Served(**SERVED), Options("", **SHARED))


def test_the_page_s_limits_are_those_of_its_flags(page, visit, monkeypatch):
    for limits, words in (
        ({"max_steps": 3}, "at most 3 steps, not 4"),
        ({"max_samples": 2}, "at most 2 samples, not 3"),
        ({"max_seconds": 1e-9}, "longer than the 1e-09 seconds"),
    ):
        monkeypatch.setattr(page.actions, "served", Served(**limits))
        with pytest.raises(ValueError, match=words):
            run(page, steps=4, count=3)


def test_the_page_writes_no_metadata_if_it_is_told_to(page, visit, tmp_path, monkeypatch):
    for choice in ("keep", "none"):
        monkeypatch.setattr(page.actions.restorer.options, "metadata", choice)
        opened(page, tmp_path / "a photo.jpg")
        run(page)
        one = Path(page.actions.save("restored", REQUEST))
        opened(page, tmp_path / "a photo.jpg", tmp_path / "a photo.jpg")
        run(page)
        with zipfile.ZipFile(page.actions.save("restored", REQUEST)) as archive:
            packed = Path(archive.extract("a photo (2).jpg", tmp_path / choice))
        for file in (one, packed):
            exif = images.read_file(file).exif
            assert (b"Camera" in exif) if choice == "keep" else (exif is None)


def test_the_page_is_served_as_its_flags_say(tmp_path, monkeypatch):
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "visitors").mkdir()
    for name in ("GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED", "no_proxy"):
        monkeypatch.setenv(name, "")
    port = free_port()
    flags = ["--host", "127.0.0.2", "--port", str(port), "--auth", "name:word", "--max_size", "0.001"]
    page = app.start(*app.parsed([*flags, "--checkpoint", str(tmp_path / "checkpoint")]), tmp_path / "visitors")
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
