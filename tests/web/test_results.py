"""The command line of app.py; its page's handlers without a browser: results, refusals, and what a visit keeps."""

import re
import shutil
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import gradio as gr
import httpx
import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

import sample
from deblur.data.files import images
from deblur.pipeline import Area
from deblur.restoration.maps import heat_map
from deblur.restoration.options import Options
from deblur.tools.web.restoration import PhotoRestorer
from deblur.tools.web.served import Served
from deblur.tools.web.visits import Visits
from tests.conftest import ROOT
from tests.web.conftest import PRESET

REQUEST = SimpleNamespace(session_hash="somebody")
NO_PHOTO = "there is no photograph yet: upload one"
pytestmark = pytest.mark.xdist_group("page")


@pytest.fixture
def visit(page, tmp_path):
    """A visit that opened a JPEG of a camera that was held sideways."""
    exif, profile = Image.Exif(), ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exif[0x010F], exif[0x0112] = "Camera", 6
    turned = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 52, 3), np.uint8))
    turned.save(tmp_path / "a photo.jpg", exif=exif, icc_profile=profile)
    page.actions.open({"path": str(tmp_path / "a photo.jpg"), "orig_name": "a photo.jpg"}, REQUEST)
    yield page.actions.visits.of("somebody")
    page.actions.leave(REQUEST)


def run(page, preset=None, sampler=None, steps=None, count=None, strength=None, seed=3, scale="auto", mask=None):
    fields = preset, sampler, steps, count, strength, seed, scale, mask
    page.actions.restore(page.actions.restorer.name, *fields, REQUEST)
    return page.actions.visits.of("somebody").results[-1]


@pytest.mark.parametrize("preset", [None, "perceptual"])
@pytest.mark.parametrize("numbers", [{}, {"strength": 0}, {"steps": 3}, {"sampler": "unipc"}, {"count": 3}])
def test_every_image_is_the_pipeline_s_to_the_bit_at_every_strength(page, visit, preset, numbers):
    """What is left out follows the preset, which is balanced."""
    result, names = run(page, preset, **numbers), {"strength": "blend", "count": "num_samples"}
    followed = {"blend": 0.8 if preset else 0.35, "eta": 0.0 if "sampler" in numbers else 1.0}
    settings = replace(PRESET, **followed | {names.get(name, name): value for name, value in numbers.items()})
    call = {"seed": 3, "names": ["a photo"], "output_type": "pt"}
    for blend in (settings.blend, 0.0, 0.7):
        result.settings = replace(result.settings, blend=blend)
        average, each = (replace(settings, blend=blend, average=average) for average in (True, False))
        out = page.actions.restorer.pipeline(visit.photo.image.pixels, each, **call)
        assert torch.equal(result.image("prediction"), out.predictions[0])
        for kind, image in zip(result.kinds[1:], out.images, strict=False):
            assert torch.equal(result.image(kind), image), kind
        if out.std is not None:
            mean = page.actions.restorer.pipeline(visit.photo.image.pixels, average, **call).images[0]
            assert torch.equal(result.image("mean of 3 samples"), mean) and torch.equal(result.std(), out.std[0])
            heat = page.actions.look("blurry", f"{result.number}/{result.kinds[-1]}", REQUEST)[-1]
            assert heat.label.endswith(f"is {255 * heat_map(out.std[0])[1]:.1f} of 255 levels")


@pytest.mark.parametrize("level", [1e4, 0.5])
def test_a_sharp_upload_is_kept_as_the_pipeline_keeps_it(page, visit, monkeypatch, level):
    pipeline, pixels = page.actions.restorer.pipeline, visit.photo.image.pixels
    settings = replace(pipeline.preset("balanced"), keep_sharp=level)
    monkeypatch.setattr(pipeline, "preset", lambda name: settings)
    result = run(page)
    out = pipeline(pixels, settings, 3, ["a photo"], "pt")
    assert torch.equal(result.image("restored"), out.images[0])
    assert torch.equal(result.share, out.share)
    kept = level == 1e4
    assert torch.equal(result.image("restored"), visit.photo.image.values) == kept
    assert (result.facts.get("warning") == "looks sharp already, and is kept as it is (keep_sharp)") == kept
    reduced = run(page, scale="0.6").facts["warning"]
    assert ("restored at scale 0.6" in reduced) != kept


@pytest.mark.parametrize("count", [1, 3])
def test_a_result_at_another_scale_is_the_pipeline_s_to_the_bit(page, visit, count):
    pipeline, pixels = page.actions.restorer.pipeline, visit.photo.image.pixels
    result = run(page, count=count, scale="0.6")
    out = pipeline(pixels, result.settings, 3, ["a photo"], "pt", area=Area(0.6))
    assert torch.equal(result.image("prediction"), out.predictions[0])
    for kind, image in zip(result.kinds[1:], out.images, strict=False):
        assert torch.equal(result.image(kind), image), kind
    assert count == 1 or torch.equal(result.std(), out.std[0])
    assert result.facts["scale"] == "0.6"
    assert "restored at scale 0.6" in result.facts["warning"]


def layer(path):
    """What gradio's ImageEditor sends of a layer that is a file."""
    return {
        "background": None,
        "layers": [{"path": str(path), "meta": {"_type": "gradio.FileData"}}],
        "composite": None,
    }


def brushed(path, height, width):
    """A layer whose right half is painted, with a soft edge and any colour; returns its alpha from 0 to 255."""
    alpha = (np.arange(width) * 255 - 255 * width // 2 + 77).clip(0, 255) * np.ones((height, 1))
    colours = np.random.default_rng(2).integers(0, 256, (height, width, 3))
    Image.fromarray(np.dstack([colours, alpha]).astype(np.uint8)).save(path)
    return alpha.astype(np.uint8)


@pytest.mark.parametrize("scale", ["auto", "0.6"])
def test_what_is_painted_is_restored_as_a_mask_of_sample_py_says(page, visit, tmp_path, monkeypatch, scale):
    """On the photograph as it is shown, upright; the file of the download is the same to the byte."""
    settings = replace(PRESET, keep_sharp=1e4)
    monkeypatch.setattr(page.actions.restorer.pipeline, "preset", lambda name: settings)
    alpha = brushed(tmp_path / "layer.png", 52, 40)
    result = run(page, count=2, scale=scale, mask=layer(tmp_path / "layer.png"))
    mask = torch.from_numpy(alpha).float() / 255
    assert 0.4 < mask.mean() < 0.6
    each = replace(result.settings, average=False)
    call = {"seed": 3, "names": ["a photo"], "output_type": "pt"}
    given = scale if scale == "auto" else float(scale)
    out = page.actions.restorer.pipeline(visit.photo.image.pixels, each, area=Area(given, mask), **call)
    assert torch.equal(result.image("prediction"), out.predictions[0])
    for kind, image in zip(result.kinds[1:], out.images, strict=False):
        assert torch.equal(result.image(kind), image), kind
        assert torch.equal(image[..., :20], visit.photo.image.values[..., :20])
        assert not torch.equal(image[..., 21:], visit.photo.image.values[..., 21:])
    assert torch.equal(result.std(), out.std[0])
    assert result.facts["mask"] == f"{mask.mean():.0%} of the photograph painted"
    assert "looks" not in result.facts.get("warning", "")
    Image.fromarray(alpha).save(tmp_path / "mask.png")
    result = run(page, scale=scale, mask=layer(tmp_path / "layer.png"))
    file = Path(page.actions.save(f"{result.number}/restored", REQUEST))
    numbers = ["--sampler=ddim", "--steps=2", "--eta=1", "--blend=0.35", "--keep_sharp=1e4", "--seed=3"]
    flags = [f"--checkpoint={page.actions.restorer.name}", "--device=cpu", "--precision=fp32", *numbers]
    flags += [f"--mask={tmp_path / 'mask.png'}", f"--scale={scale}", f"--output={tmp_path / 'out'}"]
    assert sample.main([str(tmp_path / "a photo.jpg"), *flags]) == 0
    assert (tmp_path / "out" / "a photo.jpg").read_bytes() == file.read_bytes()


def test_where_nothing_is_painted_all_is_as_without_a_mask(page, visit, tmp_path):
    before = run(page).image("restored")
    Image.new("RGBA", (40, 52)).save(tmp_path / "layer.png")
    for mask in (layer(tmp_path / "layer.png"), {"background": None, "layers": [], "composite": None}, None):
        result = run(page, mask=mask)
        assert result.mask is None
        assert "mask" not in result.facts
        assert torch.equal(result.image("restored"), before)


def test_what_is_painted_on_a_reduced_copy_is_enlarged_for_the_photograph(page, visit, tmp_path, monkeypatch):
    monkeypatch.setattr("deblur.tools.web.actions.MOST_PAINTED", 600)
    opened = page.actions.open({"path": str(tmp_path / "a photo.jpg"), "orig_name": "a photo.jpg"}, REQUEST)
    [canvas] = [value for value in opened if isinstance(value, dict) and "background" in value]
    with Image.open(canvas["background"]) as shown:
        width, height = shown.size
    assert (width, height) == (21, 27), "upright, and of less than 600 pixels"
    brushed(tmp_path / "layer.png", height, width)
    result = run(page, mask=layer(tmp_path / "layer.png"))
    assert result.mask.shape == (52, 40)
    assert not result.mask[:, :16].any()
    assert (result.mask[:, 24:] > 1 - 1e-5).all()
    assert torch.equal(result.image("restored")[..., :16], visit.photo.image.values[..., :16])


@pytest.mark.parametrize("scale", [1.0, 0.6])
def test_a_cutout_is_restored_as_the_pipeline_does(page, visit, tmp_path, monkeypatch, scale):
    """What is hidden stays, and its colours change nothing else."""
    settings = replace(PRESET, keep_sharp=0.5)
    monkeypatch.setattr(page.actions.restorer.pipeline, "preset", lambda name: settings)
    array = np.random.default_rng(1).integers(0, 256, (40, 52, 4), np.uint8)
    array[..., 3] = 255 * (np.arange(52) > 20)
    Image.fromarray(array).save(tmp_path / "a photo.png")
    page.actions.open({"path": str(tmp_path / "a photo.png"), "orig_name": "a photo.png"}, REQUEST)
    result = run(page, count=2, scale=f"{scale:g}")
    call = {"seed": 3, "names": ["a photo"], "scale": scale}
    each = replace(result.settings, average=False)
    out = page.actions.restorer.pipeline(array, each, output_type="np", **call)
    for kind, image in zip(result.kinds, [*out.predictions, *out.images], strict=False):
        found = Path(page.actions.save(f"{result.number}/{kind}", REQUEST))
        assert np.array_equal(np.asarray(Image.open(found)), image), kind
        assert np.array_equal(image[:, :21], array[:, :21])
    assert torch.equal(result.std(), out.std[0])
    assert not result.std()[..., :21].any()
    assert not result.share[..., : int(21 * scale)].any()
    assert result.share.any()
    assert scale < 1 or torch.equal(result.share, out.share)


def test_a_download_has_the_name_and_the_bytes_of_sample_py(page, visit, tmp_path):
    flags = [f"--checkpoint={page.actions.restorer.name}", "--seed=3", "--device=cpu", "--precision=fp32"]
    for count, kind, *more in (
        (1, "restored"),
        (1, "prediction", "--blend=0"),
        (2, "sample 2 of 2"),
        (2, "mean of 2 samples", "--average"),
    ):
        file, folder = Path(page.actions.save(f"{run(page, count=count).number}/{kind}", REQUEST)), tmp_path / kind
        more += [f"--num_samples={count}", f"--output={folder}"]
        assert sample.main([str(tmp_path / "a photo.jpg"), *flags, *more]) == 0
        assert (folder / file.name).read_bytes() == file.read_bytes(), kind
    file = Path(page.actions.save("blurry", REQUEST))
    assert file.name == "a photo.png" and torch.equal(images.read_file(file).pixels, visit.photo.image.pixels)


def test_damaged_uploads_get_the_sentence_of_sample_py(page, visit, tmp_path, capsys):
    files = {"text.png": b"not an image", "empty.jpg": b"", "page.webp": b"<html></html>"}
    for suffix in ("png", "jpg", "webp", "tif", "bmp"):
        images.write(tmp_path / f"whole.{suffix}", visit.photo.image.values)
        content = (tmp_path / f"whole.{suffix}").read_bytes()
        files |= {f"{part}.{suffix}": content[: int(part) * len(content) // 8] for part in "135"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    paths = [str(tmp_path / name) for name in files]
    assert sample.main([*paths, f"--checkpoint={page.actions.restorer.name}", f"--output={tmp_path / 'out'}"]) == 1
    said = capsys.readouterr().err.replace(f"{tmp_path}/", "").splitlines()
    for name, path in zip(files, paths, strict=True):
        with pytest.raises(gr.Error) as refused:
            page.actions.open({"path": path, "orig_name": name}, REQUEST)
        assert refused.value.message.startswith(f"{name} ") and f"sample.py: error: {refused.value.message}" in said


def test_a_file_that_nobody_uploaded_is_not_opened(page, visit, tmp_path):
    """Neither one of the page's own nor another, as a photograph or as a mask, in a request that no page sends."""
    run(page)
    Image.new("RGBA", (40, 52), "white").save(tmp_path / "layer.png")
    fields = [page.actions.restorer.name, None, "ddim", 1, 1, 1, 0, "auto"]
    [event] = [event["id"] for event in page.config["dependencies"] if event["api_name"] == "restore"]
    for meta in ({}, {"meta": {"_type": "gradio.FileData"}}):
        file = {"path": str(tmp_path / "layer.png"), "orig_name": "layer.png", **meta}
        data = [*fields, {"background": None, "layers": [file], "composite": None}]
        join = {"data": data, "fn_index": event, "session_hash": "somebody"}
        assert httpx.post(f"{page.local_url}gradio_api/queue/join", json=join).is_success
        answer = httpx.get(f"{page.local_url}gradio_api/queue/data", params={"session_hash": "somebody"}, timeout=60)
        assert '"success":false' in answer.text
        assert len(visit.results) == 1
    [event] = [event["id"] for event in page.config["dependencies"] if event["api_name"] == "open"]
    for number, path in enumerate([tmp_path / "a photo.jpg", *visit.folder.glob("*/*")]):
        for meta in ({}, {"meta": {"_type": "gradio.FileData"}}):
            visitor, file = f"forger {number} {len(meta)}", {"path": str(path), "orig_name": "a.jpg", **meta}
            join = {"data": [file], "fn_index": event, "session_hash": visitor}
            assert httpx.post(f"{page.local_url}gradio_api/queue/join", json=join).is_success
            answer = httpx.get(f"{page.local_url}gradio_api/queue/data", params={"session_hash": visitor}, timeout=60)
            assert '"success":false' in answer.text and page.actions.visits.of(visitor).photo is None


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda page: run(page, steps=1001), "this page takes at most 1000 steps, not 1001"),
        (lambda page: run(page, count=17), "this page takes at most 16 samples, not 17"),
        (lambda page: run(page, steps=0), "steps must be a whole number of 1 or more, got 0"),
        (lambda page: run(page, steps=2.5), "steps must be a whole number of 1 or more, got 2.5"),
        (lambda page: run(page, scale="2"), "scale is one of auto, 1, 0.6, 0.4, 0.25, 0.1, not '2'"),
        (lambda page: run(page, scale=["a"]), "scale is one of auto"),
        (lambda page: run(page, seed=-1), "seed must be a whole number of 0 or more, got -1"),
        (lambda page: run(page, seed=None), "seed must be a whole number of 0 or more, got nothing"),
        (lambda page: run(page, strength=7), "blend must be between 0 and 1, got 7"),
        (lambda page: run(page, sampler="euler"), "sampler must be one of ddpm, ddim"),
        (lambda page: run(page, preset="vivid"), "no preset 'vivid'"),
        (lambda page: page.actions.look("blurry", "blurry", REQUEST, -1), "blend must be between 0 and 1, got -1"),
        (lambda page: page.actions.save("9/restored", REQUEST), "there is no result 9/restored in this visit"),
        (lambda page: page.actions.open(None, REQUEST), NO_PHOTO),
        (lambda page: page.actions.open(["x"], REQUEST), "file cannot be ['x']: the page makes no such request"),
        (lambda page: page.actions.open({"path": 1}, REQUEST), "path cannot be 1"),
        (lambda page: page.actions.example(99, REQUEST), "there is no example 99"),
        (lambda page: page.actions.example("x", REQUEST), "example cannot be 'x'"),
        (lambda page: page.actions.look(["x"], "blurry", REQUEST), "left cannot be ['x']"),
        (lambda page: page.actions.save({}, REQUEST), "right cannot be {}"),
        (lambda page: run(page, steps="x"), "steps cannot be 'x'"),
        (lambda page: run(page, preset=[1]), "preset cannot be [1]"),
        (lambda page: page.actions.restore("x", None, "ddim", 1, 1, 1, 0, "auto", None, REQUEST), "not x"),
        (lambda page: run(page, mask=[1]), "mask cannot be [1]: the page makes no such request"),
        (lambda page: run(page, mask={"layers": "x"}), "layers cannot be 'x'"),
        (lambda page: run(page, mask={"layers": [1]}), "layer cannot be 1"),
        (lambda page: run(page, mask={"layers": [{"path": 1}]}), "path cannot be 1"),
        (lambda page: run(page, mask=layer(ROOT / "README.md")), "what is painted is not an image"),
        (lambda page: run(page, mask=layer(ROOT / "docs" / "page.jpg")), "painted cannot be None"),
        (lambda page: (page.actions.leave(REQUEST), run(page)), NO_PHOTO),
        (lambda page: (page.actions.leave(REQUEST), page.actions.save("blurry", REQUEST)), NO_PHOTO),
    ],
)
def test_what_is_refused_is_a_sentence(page, visit, action, words):
    run(page)
    with pytest.raises(gr.Error, match=re.escape(words)) as refused:
        action(page)
    assert not refused.value.print_exception


def test_a_forged_request_prints_no_traceback(page, capfd):
    address = f"{page.local_url}gradio_api/queue"
    events = httpx.get(f"{page.local_url}config").json()["dependencies"]
    for event in events:
        for data in ([], ["x"] * len(event["inputs"]), [[1]] * len(event["inputs"])):
            asked = {"fn_index": event["id"], "data": data, "session_hash": "forged"}
            httpx.post(f"{address}/join", json=asked)
            with httpx.stream("GET", f"{address}/data", params={"session_hash": "forged"}, timeout=60) as stream:
                assert any("process_completed" in line or "close_stream" in line for line in stream.iter_lines())
    assert "Traceback" not in capfd.readouterr().err


def test_nobody_can_fill_the_memory_with_painted_layers(page):
    """Gradio's editor would keep what this request sends for good."""
    [editor] = [block for block in page.blocks.values() if block.elem_id == "mask"]
    about = {"component_id": editor._id, "fn_name": "accept_blobs", "session_hash": "forged"}
    form = {**about, "data[type]": "background", "data[index]": "0", "data[id]": "a"}
    sent = httpx.post(f"{page.local_url}gradio_api/component_server", data=form, files={"file": b"x" * 100})
    assert sent.status_code == 404
    assert not editor.blob_storage


def test_a_refused_upload_clears_the_field_and_says_so(page):
    [after] = [each for each in page.fns.values() if each.trigger_only_on_failure]
    assert [block.elem_id for block in after.outputs] == ["photo", "status"]
    assert after.fn() == (None, "<p>Not opened.</p>")


def test_beyond_pixels_time_or_memory_the_end_is_a_sentence_and_leaves_nothing(page, visit, monkeypatch):
    restorer = page.actions.restorer
    monkeypatch.setattr(restorer, "served", Served(max_pixels=0.0005, max_seconds=1e-9))
    with pytest.raises(gr.Error, match=r"rsblur_1\.jpg has \d+ x \d+ pixels, more than the 0\.0005 megapixels"):
        page.actions.example(0, REQUEST)
    with pytest.raises(gr.Error, match="longer than the 1e-09 seconds that this page takes, for 0 of 2 steps"):
        run(page)
    monkeypatch.setattr(restorer.options, "memory", 0.01)
    visit.photo = replace(visit.photo, image=images.ImageFile(torch.zeros(3, 300, 300, dtype=torch.uint8)))
    with pytest.raises(gr.Error, match=r"a photo.jpg does not fit into --memory: give \d"):
        run(page)
    assert not list(visit.folder.iterdir())


def test_a_result_says_how_it_was_made(page, visit, monkeypatch):
    facts = run(page, "balanced").facts
    assert facts["preset"] == "balanced" and facts["seed"] == "3" and facts["device"] == "cpu, fp32"
    assert facts["tiles"] == "whole image" and len(facts["sha256"]) == 64
    assert facts["checkpoint"].endswith("licence not stated")
    assert "cc-by-sa-4.0" in PhotoRestorer(Options("", checkpoint="lite"), Served()).licence
    monkeypatch.setattr(page.actions.restorer.pipeline, "denoiser", None)
    assert run(page).kinds == ["prediction"]


def test_one_run_is_processed_at_a_time(page, visit):
    """Two visitors begin at once; each call of the network takes long enough for another one to begin meanwhile."""
    other, denoiser = page.actions.visits.of("other"), page.actions.restorer.pipeline.denoiser
    other.photo = visit.photo
    inside, most = [], []

    def enter(*given):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)

    hooks = [
        denoiser.register_forward_pre_hook(enter),
        denoiser.register_forward_hook(lambda *given: inside.pop() and None),
    ]
    try:
        with ThreadPoolExecutor(2) as threads:
            restore = page.actions.restorer.restore
            runs = [threads.submit(restore, one, None, {"steps": 5}, 0, print, 1.0) for one in (visit, other)]
            assert all(run.result() for run in runs)
    finally:
        for hook in hooks:
            hook.remove()
        page.actions.leave(SimpleNamespace(session_hash="other"))
    assert most == [1] * 10


def test_cancelling_leaves_nothing_and_no_further_step_begins(page, visit):
    done = []

    def tell(step, total, words):
        done.append((step, total))
        if step == 2:
            visit.stop.set()

    with pytest.raises(CancelledError):
        page.actions.restorer.restore(visit, None, {"steps": 9}, 0, tell, scale=1.0)
    assert done == [(0, 9), (1, 9), (2, 9)]
    assert not list(visit.folder.iterdir())


def test_a_visitor_gets_no_file_that_is_not_served_to_it(page, visit):
    """Photographs and results are private, and so are the program's files and what lies beside a served file."""
    result = run(page)
    _, _, (shown, _), *_ = page.actions.look("blurry", f"{result.number}/restored", REQUEST)
    kept, served = page.actions.visits.kept, page.actions.visits.served
    private = [path for path in kept.rglob("*") if path.is_file()]
    assert private
    private += [ROOT / "README.md", visit.folder, Path(shown).parent, Path(shown).with_name("other.png")]
    private += [served / ".." / "kept" / path.relative_to(kept) for path in kept.rglob("*") if path.is_file()]
    address = f"{page.local_url}gradio_api/file="
    assert httpx.get(address + quote(shown)).status_code == 200
    for path in private:
        assert httpx.get(address + quote(str(path))).status_code == 403, path


def test_old_results_make_room_and_a_closed_visit_leaves_no_file(page, visit, monkeypatch):
    monkeypatch.setattr("deblur.tools.web.visits.MOST_BYTES", 150_000)  # two results of 59 kB
    numbers = [run(page).number for _ in range(3)]
    assert [result.number for result in visit.results] == numbers[1:] and len(list(visit.folder.iterdir())) == 2
    assert list(visit.served.iterdir())
    page.actions.leave(REQUEST)
    assert not visit.folder.exists() and not visit.served.exists()


def test_visits_end_when_they_are_idle_for_an_hour_not_an_hour_after_opening(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("deblur.tools.web.visits.monotonic", lambda: now[0])
    visits = Visits(tmp_path)
    used, idle = visits.of("used"), visits.of("idle")
    for now[0] in (1800.0, 3599.0, 5400.0, 9000.0):
        assert visits.of("used") is used and not used.stop.is_set()
        assert idle.stop.is_set() == (now[0] > 3600) and idle.folder.exists() == (now[0] <= 3600)
    now[0] = 12600.1
    visits.of("another")
    assert used.stop.is_set() and not used.folder.exists() and visits.of("used") is not used


def test_a_file_is_served_again_and_those_served_least_lately_make_room(tmp_path):
    visit = Visits(tmp_path).of("somebody")

    def serve(key):
        return Path(visit.serve(key, "a.png", lambda path: images.write(path, torch.zeros(3, 1, 1))))

    for number in range(30):
        same, other = serve("same"), serve(number)
        assert same.is_file() and other.is_file() and serve("same") == same != other
    assert len(list(visit.served.iterdir())) == 8
    same.unlink()  # as gradio does, an hour after it was written
    assert serve("same").is_file()
    shutil.rmtree(visit.served)  # as whoever clears the folder of temporary files
    assert all(serve(key).is_file() for key in range(9))


def test_the_slider_shows_what_was_changed_last(page, visit):
    result, rights = run(page), []
    for value in (None, 0.9, 0.5, 0.9, None):  # None: the field is empty
        *_, (_, right), _, _ = page.actions.look("blurry", f"{result.number}/restored", REQUEST, value)
        assert (images.read(right) - (result.image("restored") * 255).round() / 255).abs().max() < 1e-6
        rights.append(right)
    assert len(set(rights)) == 3 and rights[1] == rights[3] == rights[4]
