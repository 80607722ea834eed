"""The page's handlers without a browser: what they refuse, many photographs, downloads, and who gets which file."""

import re
import shutil
import zipfile
from concurrent.futures import CancelledError
from pathlib import Path
from threading import Event
from urllib.parse import quote

import httpx
import imagecodecs
import numpy as np
import pytest
from PIL import Image

import sample
from deblur.tools.web.actions import NO_PHOTO, NO_RESULT
from deblur.tools.web.restoration import DEVICE
from deblur.tools.web.served import Served
from tests.conftest import ROOT
from tests.web.conftest import PRESET, REQUEST, clicked, opened, run

pytestmark = pytest.mark.xdist_group("page")


def test_a_download_has_the_name_and_the_bytes_of_sample_py(page, visit, tmp_path):
    flags = [f"--checkpoint={page.checkpoint}", "--seed=3", "--device=cpu", "--precision=fp32"]
    for count, kind, *more in (
        (1, "restored"),
        (1, "prediction", "--blend=0"),
        (2, "sample 2 of 2"),
        (2, "mean of 2 samples", "--average"),
    ):
        run(page, count=count)
        file, folder = Path(page.actions.save(kind, REQUEST)), tmp_path / kind
        more += [f"--num_samples={count}", f"--output={folder}"]
        assert sample.main([str(tmp_path / "a photo.jpg"), *flags, *more]) == 0
        assert (folder / file.name).read_bytes() == file.read_bytes(), kind


def test_many_photographs_are_restored_and_downloaded_together_as_sample_py_writes_them(page, tmp_path):
    """Each in its own format, depth and with its metadata; of three of one name two get others."""
    random, exif = np.random.default_rng(3), Image.Exif()
    exif[0x010F] = "Camera"
    for name in ("a.jpg", "b/a.jpg", "c/a.jpg", "c.heic"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 52, 3), np.uint8)).save(tmp_path / name, exif=exif)
    deep = random.integers(0, 1 << 16, (30, 20, 3), np.uint16)
    (tmp_path / "d.png").write_bytes(imagecodecs.png_encode(deep))
    values = opened(page, *(tmp_path / name for name in ("a.jpg", "b/a.jpg", "c/a.jpg", "c.heic", "d.png")))
    visit = page.actions.visits.of("somebody")
    names = ["a.jpg", "a (2).jpg", "a (3).jpg", "c.heic", "d.png"]
    assert [photo.name for photo in visit.photos] == names
    assert [one["caption"] for one in values[page.ui.gallery].value] == names
    with pytest.raises(ValueError, match=NO_RESULT):
        page.actions.save(None, REQUEST)
    page.actions.select(clicked(4), REQUEST)
    run(page)
    assert all(photo.result for photo in visit.photos)
    assert visit.shown is visit.photos[4], "the one that the visitor looks at"
    page.actions.look(None, REQUEST, 0.9)
    shutil.copy(tmp_path / "b" / "a.jpg", tmp_path / "a (2).jpg")
    shutil.copy(tmp_path / "c" / "a.jpg", tmp_path / "a (3).jpg")
    with zipfile.ZipFile(page.actions.save(None, REQUEST)) as archive:
        assert archive.namelist() == names
        for name in names:
            flags = [f"--checkpoint={page.checkpoint}", "--seed=3", "--device=cpu", "--precision=fp32"]
            flags += ["--blend=0.9"] if name == "d.png" else []
            assert sample.main([str(tmp_path / name), *flags, f"--output={tmp_path / 'out'}"]) == 0
            assert archive.read(name) == (tmp_path / "out" / name).read_bytes(), name
    page.actions.leave(REQUEST)


def test_the_times_are_those_of_all_photographs(page, visit, tmp_path):
    """As a piece of one of them takes it."""
    opened(page, tmp_path / "a photo.jpg", tmp_path / "a photo.jpg")
    [(label, name)] = page.actions.choose(REQUEST)[page.ui.way].choices
    assert re.fullmatch(rf"{re.escape(name)}, about \d s", label)
    shown, ui = page.actions.numbers(name, None, REQUEST), page.ui
    assert shown.pop(ui.preset).value == "balanced"
    assert shown == {ui.sampler: "ddim", ui.steps: 2, ui.count: 1, ui.strength: 0.35}


def test_cancel_is_the_last_word_of_a_run_and_nothing_is_said_of_photographs_that_gave_way(page, visit, tmp_path):
    """Also of a run that waits for another visitor's, of which no layer runs then."""
    fields = page.checkpoint, None, "ddim", 1000, 8, 1, 0, "auto", None
    run = page.actions.restore(*fields, REQUEST)
    assert "<progress" in next(run)[page.ui.status]
    page.actions.cancel(REQUEST)
    assert list(run) == [{page.ui.status: "<p>Cancelled.</p>"}]
    page.calls.clear()
    others = Event()
    DEVICE.submit(others.wait, 60)
    run = page.actions.restore(*fields, REQUEST)
    assert "<progress" in next(run)[page.ui.status]
    assert "a photo.jpg, after another visitor" in next(run)[page.ui.status]
    page.actions.cancel(REQUEST)
    assert list(run) == [{page.ui.status: "<p>Cancelled.</p>"}]
    others.set()
    assert not page.calls
    run = page.actions.restore(*fields, REQUEST)
    assert "<progress" in next(run)[page.ui.status]
    opened(page, tmp_path / "a photo.jpg")
    assert list(run) == []


def test_what_is_asked_while_the_time_is_measured_comes_after_it_by_the_way_s_own_preset(page, visit, tmp_path):
    others = Event()
    DEVICE.submit(others.wait, 60)
    upload = {"path": str(tmp_path / "a photo.jpg"), "orig_name": "a.jpg"}
    shown, ui = page.actions.open([upload], REQUEST), page.ui
    numbers = [shown[part] for part in (ui.preset, ui.sampler, ui.steps, ui.count)]
    name = page.checkpoint
    assert shown[ui.way].choices == [(f"{name} (measuring)", name)]
    assert numbers == [None] * 4
    fields = name, *numbers, 0.9, 0, "auto", None  # the strength of the way before
    run = page.actions.restore(*fields, REQUEST)
    assert "Measuring how long it takes" in next(run)[page.ui.status]
    page.actions.cancel(REQUEST)
    assert list(run) == [{page.ui.status: "<p>Cancelled.</p>"}]
    run = page.actions.restore(*fields, REQUEST)
    assert "Measuring how long it takes" in next(run)[page.ui.status]
    others.set()
    *_, last = run
    assert "Done." in last[ui.status]
    assert visit.shown.result.settings == PRESET


def test_photographs_that_gave_way_are_measured_no_longer(page, visit, tmp_path):
    entered, go_on = Event(), Event()

    def enter(*given):
        entered.set()
        go_on.wait(60)

    hook = page.actions.restorer.pipeline.predictor.register_forward_pre_hook(enter)
    page.actions.open([{"path": str(tmp_path / "a photo.jpg"), "orig_name": "a.jpg"}], REQUEST)
    before = visit.measuring
    assert entered.wait(60)
    page.actions.open([{"path": str(tmp_path / "a photo.jpg"), "orig_name": "b.jpg"}], REQUEST)
    go_on.set()
    hook.remove()
    assert isinstance(before.exception(60), CancelledError)
    assert page.actions.choose(REQUEST)[page.ui.way].choices


def test_what_cannot_be_read_is_named_and_the_rest_is_opened(page, visit, tmp_path, monkeypatch):
    (tmp_path / "text.png").write_bytes(b"not an image")
    Image.new("RGB", (900, 700)).save(tmp_path / "large.png")
    monkeypatch.setattr(page.actions, "served", Served(max_pixels=0.5))
    said = opened(page, tmp_path / "text.png", tmp_path / "a photo.jpg", tmp_path / "large.png")[page.ui.status]
    assert "a photo.jpg: 40 x 52 pixels." in said
    assert "text.png is not an image of a known format" in said
    assert "large.png has 900 x 700 pixels, more than the 0.5 megapixels that this page takes" in said
    monkeypatch.setattr("deblur.tools.web.actions.LARGEST_UPLOAD", 1000)
    with pytest.raises(ValueError, match=r"these are more than 1e-06 GB: upload fewer, or use sample\.py"):
        opened(page, tmp_path / "a photo.jpg")


def test_one_that_fails_is_named_and_the_others_are_restored(page, visit, tmp_path, monkeypatch):
    Image.new("RGB", (300, 300)).save(tmp_path / "large.png")
    opened(page, tmp_path / "large.png", tmp_path / "a photo.jpg")
    monkeypatch.setattr("deblur.restoration.restorer.require_memory", lambda *given: None)
    monkeypatch.setattr(visit.ways[page.checkpoint].restorer.options, "memory", 0.01)
    *_, last = page.actions.restore(page.checkpoint, None, "ddim", 1, 1, 1, 0, "auto", None, REQUEST)
    assert "large.png does not fit into --memory" in last[page.ui.status]
    assert [photo.result is not None for photo in visit.photos] == [False, True]


def answer(page, handler, data, visitor, **more):
    """What the page answers to a request that no browser sent."""
    number = next(event["id"] for event in page.config["dependencies"] if event["api_name"] == handler)
    join = {"data": data, "fn_index": number, "session_hash": visitor, **more}
    assert httpx.post(f"{page.local_url}gradio_api/queue/join", json=join).is_success
    return httpx.get(f"{page.local_url}gradio_api/queue/data", params={"session_hash": visitor}, timeout=60).text


def test_a_file_that_nobody_uploaded_is_not_opened(page, visit, tmp_path):
    """Neither one of the page's own nor another, as a photograph or as a mask, in a request that no page sends."""
    result, fields = run(page), [page.checkpoint, None, "ddim", 1, 1, 1, 0, "auto"]
    Image.new("RGBA", (40, 52), "white").save(tmp_path / "layer.png")
    for meta in ({}, {"meta": {"_type": "gradio.FileData"}}):
        file = {"path": str(tmp_path / "layer.png"), "orig_name": "layer.png", **meta}
        mask = {"background": None, "layers": [file], "composite": None}
        assert '"success":false' in answer(page, "restore", [*fields, mask], "somebody")
        assert visit.shown.result is result
        for number, path in enumerate([tmp_path / "a photo.jpg", *visit.folder.rglob("*.*")]):
            visitor, file = f"forger {number} {len(meta)}", {"path": str(path), "orig_name": "a.jpg", **meta}
            assert '"success":false' in answer(page, "open", [[file]], visitor)
            assert page.actions.visits.of(visitor).shown is None


@pytest.mark.parametrize(
    ("handler", "data", "words"),
    [
        ("restore", ["Worst", None, "ddim", 1, 1, 1, 0, "auto", None], "a way to restore is one of"),
        ("restore", ["Best", None, "ddim", 1, 1, 1, 0, "auto", {"layers": 5}], "1 validation error"),
        ("numbers", ["Worst", None], "a way to restore is one of"),
        ("example", [99], "the page cannot answer this"),
        ("open", [[{}]], "1 validation error"),
        ("restore", [], "didn't receive enough input values"),
        ("look", ["restored", "strong"], "could not convert string to float"),
    ],
)
def test_a_forged_request_is_refused_in_a_line(page, visit, capfd, handler, data, words):
    run(page)
    said = answer(page, handler, data, "somebody")
    assert '"success":false' in said and words in said
    errors = capfd.readouterr().err.splitlines()
    assert len(errors) == ("cannot answer" in words) and all(line.startswith("app.py: ") for line in errors)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda page: run(page, steps=0), "steps must be a whole number of 1 or more, got 0"),
        (lambda page: run(page, steps=2.5), "steps must be a whole number of 1 or more, got 2.5"),
        (lambda page: run(page, seed=-1), "seed must be a whole number of 0 or more, got -1"),
        (lambda page: run(page, seed=None), "seed must be a whole number of 0 or more, got nothing"),
        (lambda page: run(page, strength=7), "blend must be between 0 and 1, got 7"),
        (lambda page: run(page, sampler="euler"), "sampler must be one of ddpm, ddim"),
        (lambda page: run(page, preset="vivid"), "no preset 'vivid'"),
        (lambda page: page.actions.look(None, REQUEST, -1), "blend must be between 0 and 1, got -1"),
        (lambda page: page.actions.open(None, REQUEST), NO_PHOTO),
        (lambda page: (page.actions.leave(REQUEST), run(page)), NO_PHOTO),
        (lambda page: (page.actions.leave(REQUEST), page.actions.save(None, REQUEST)), NO_RESULT),
    ],
)
def test_what_is_refused_is_a_sentence(page, visit, action, words):
    run(page)
    with pytest.raises(ValueError, match=re.escape(words)):
        action(page)


def test_nobody_can_fill_the_memory_with_painted_layers(page):
    """Gradio's editor would keep what this request sends for good."""
    [editor] = [block for block in page.blocks.values() if block.elem_id == "mask"]
    about = {"component_id": editor._id, "fn_name": "accept_blobs", "session_hash": "forged"}
    form = {**about, "data[type]": "background", "data[index]": "0", "data[id]": "a"}
    sent = httpx.post(f"{page.local_url}gradio_api/component_server", data=form, files={"file": b"x" * 100})
    assert sent.status_code == 404
    assert not editor.blob_storage


def test_a_refused_upload_clears_the_field_and_says_so(page):
    after = {each.outputs[0].elem_id: each for each in page.fns.values() if each.trigger_only_on_failure}
    assert [block.elem_id for block in after["photo"].outputs] == ["photo", "status"]
    assert after["photo"].fn() == (None, "<p>Not opened.</p>")


def test_a_visitor_gets_no_file_that_is_not_served_to_it(page, visit):
    """Photographs and results are private, and so are the program's files and what lies beside a served file."""
    run(page)
    _, shown = page.actions.look("restored", REQUEST)[page.ui.slider]
    kept, served = page.actions.visits.kept, page.actions.visits.served
    private = [path for path in kept.rglob("*") if path.is_file()]
    assert private
    private += [ROOT / "README.md", visit.folder, Path(shown).parent, Path(shown).with_name("other.png")]
    private += [served / ".." / "kept" / path.relative_to(kept) for path in kept.rglob("*") if path.is_file()]
    address = f"{page.local_url}gradio_api/file="
    assert httpx.get(address + quote(shown)).status_code == 200
    for path in private:
        assert httpx.get(address + quote(str(path))).status_code == 403, path
