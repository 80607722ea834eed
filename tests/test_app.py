"""The page of app.py in a real browser, as visitors use it."""

import re
import shlex
import signal
import struct
import subprocess
import sys
import urllib.error
import urllib.request
import zlib
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import imagecodecs
import numpy as np
import pytest
from PIL import Image, ImageCms

import app
import sample
from data import metadata
from models.checkpoints import save_presets
from models.settings import SamplingSettings
from restoration.options import Options
from tests.conftest import ROOT
from tests.processes import free_port
from tests.tiny import tiny_pipeline
from web.restoration import Limits

SETTINGS = SamplingSettings("ddim", steps=2, eta=1.0, blend=0.35)
SLIDER = "#slider img"
pytestmark = pytest.mark.xdist_group("page")  # which takes long to start, and one browser is enough


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page, served by this process."""
    folder = tmp_path_factory.mktemp("app")
    tiny_pipeline().save_pretrained(folder / "checkpoint")
    save_presets(folder / "checkpoint", {"balanced": SETTINGS, "perceptual": replace(SETTINGS, blend=0.8)})
    (folder / "visitors").mkdir()
    options = Options("", checkpoint=str(folder / "checkpoint"), device="cpu", precision="fp32")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED"):
            patch.setenv(name, "")  # put back what was there
        page = app.start(app.Served(port=free_port(), max_steps=1000), options, folder / "visitors")
        yield page
        page.close()


@pytest.fixture(scope="module")
def visitor(chromium, page):
    """A tab that several tests go on with; it must log no error and ask no other host."""
    yield from visiting(chromium, page)


@pytest.fixture
def second(chromium, page):
    yield from visiting(chromium, page)


def visiting(chromium, page):
    tab, errors, hosts = chromium.new_page(), [], set()
    tab.set_default_timeout(60_000)
    tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    tab.goto(page.local_url)
    yield tab
    tab.close()
    assert errors == [] and hosts - {""} == {urlsplit(page.local_url).netloc}


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    """A PNG of 16 bits."""
    path = tmp_path_factory.mktemp("photo") / "my photo (1).png"
    path.write_bytes(imagecodecs.png_encode(np.random.default_rng(0).integers(0, 1 << 16, (44, 60, 3), np.uint16)))
    return path


@pytest.fixture
def denoiser_calls(page):
    """The calls of the denoiser from now on, one entry each."""
    calls = []
    handle = first(page).pipeline.denoiser.register_forward_pre_hook(lambda *given: calls.append(1))
    yield calls
    handle.remove()


def first(page):
    """The restorer of the page's default checkpoint."""
    return next(iter(page.restorers.values()))


def upload(tab, path):
    tab.set_input_files("#photo input[type=file]", path)
    tab.get_by_text(f"{path.name}: ").wait_for()


def run(tab, **fields):
    """Run with these numbers; returns the number of the run."""
    for name, value in fields.items():
        tab.fill(f"#{name} input", str(value))
    number = "() => Number((document.querySelector('#status').innerText.match(/Run ([0-9]+): /) || [0, 0])[1])"
    before = tab.evaluate(number)
    tab.click("#run")
    return tab.wait_for_function(
        f"before => {{ const now = ({number})(); return now > before && now; }}", arg=before
    ).json_value()


def choose(tab, side, start):
    tab.click(f"#{side} input")
    tab.get_by_role("option", name=start).first.click()


def strengthen(tab, value):
    """Set the strength, and wait until the right image is another."""
    before = tab.locator(SLIDER).nth(1).get_attribute("src")
    tab.fill("#strength input[type=number]", str(value))
    tab.wait_for_function("before => document.querySelectorAll('#slider img')[1].src !== before", arg=before)


def saved(tab, folder):
    with tab.expect_download() as download:
        tab.click("#save")
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def alert(tab):
    """The sentence of the message that stands in the page; it is closed."""
    sentence = tab.get_by_test_id("toast-text").inner_text()
    tab.get_by_test_id("toast-close").click()
    tab.get_by_test_id("toast-body").wait_for(state="detached")
    return sentence


@pytest.mark.browser
def test_the_slider_compares_two_images_of_the_upload_s_size(visitor, photo):
    upload(visitor, photo)
    run(visitor)
    visitor.wait_for_function(
        "() => [...document.querySelectorAll('#slider img')].map(i => `${i.naturalWidth} ${i.naturalHeight}`).join()"
        " === '60 44,60 44'"
    )
    left, right = (visitor.locator(SLIDER).nth(side) for side in (0, 1))
    assert left.get_attribute("src") != right.get_attribute("src")
    before, box = right.get_attribute("style"), left.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    visitor.mouse.move(*middle)
    visitor.mouse.down()
    visitor.mouse.move(middle[0] + 10, middle[1], steps=3)
    visitor.mouse.up()
    clips = [re.search(r"clip-path: ([^;]+)", style)[1] for style in (before, right.get_attribute("style"))]
    assert clips[0] == "inset(0px 0px 0px 50%)" != clips[1]
    visitor.mouse.move(box["x"] + 3, box["y"] + 3)  # off the handle
    visitor.mouse.wheel(0, -200)
    visitor.wait_for_function("() => !document.querySelector('#slider img').style.transform.includes('scale(1)')")
    visitor.locator("#slider").get_by_role("button", name="Fullscreen").click()
    visitor.get_by_role("button", name="Exit fullscreen mode").wait_for()
    assert visitor.locator("#slider").bounding_box()["width"] == 1200
    visitor.get_by_role("button", name="Exit fullscreen mode").click()


@pytest.mark.browser
def test_the_download_is_what_the_pipeline_returns_and_the_command_makes_the_same_bytes(
    visitor, page, photo, tmp_path, monkeypatch
):
    upload(visitor, photo)
    run(visitor, steps=3, seed=5)
    path = saved(visitor, tmp_path)
    settings, array = replace(SETTINGS, steps=3), imagecodecs.png_decode(photo.read_bytes())
    [expected] = first(page).pipeline(array, settings, seed=5, names=[photo.stem]).images
    assert path.name == photo.name and np.array_equal(imagecodecs.png_decode(path.read_bytes()), expected)
    command = shlex.split(visitor.locator("#command textarea").input_value())
    monkeypatch.chdir(photo.parent)
    command[command.index("--output") + 1] = str(tmp_path / "restored")
    assert command[2] == photo.name and sample.main(command[2:]) == 0
    assert (tmp_path / "restored" / photo.name).read_bytes() == path.read_bytes()


@pytest.mark.browser
def test_the_strength_moves_without_a_network_and_0_is_the_prediction(visitor, page, photo, tmp_path, denoiser_calls):
    upload(visitor, photo)
    run(visitor, steps=2)
    assert len(denoiser_calls) == 2
    strengthen(visitor, 0.9)
    stronger = imagecodecs.png_decode(saved(visitor, tmp_path).read_bytes())
    strengthen(visitor, 0)
    weakest = imagecodecs.png_decode(saved(visitor, tmp_path).read_bytes())
    assert len(denoiser_calls) == 2
    array = imagecodecs.png_decode(photo.read_bytes())
    [expected] = first(page).pipeline(array, replace(SETTINGS, blend=0.0)).images
    assert np.array_equal(weakest, expected) and not np.array_equal(stronger, expected)


@pytest.mark.browser
def test_earlier_results_are_compared_with_their_mean_and_uncertainty(visitor, photo):
    upload(visitor, photo)
    choose(visitor, "preset", "balanced")
    visitor.wait_for_function("() => document.querySelector('#strength input[type=number]').value === '0.35'")
    first = run(visitor)
    choose(visitor, "preset", "perceptual")
    visitor.wait_for_function("() => document.querySelector('#strength input[type=number]').value === '0.8'")
    second = run(visitor, count=2)
    assert visitor.locator("#count input").input_value() == "2"
    assert visitor.locator("#right input").input_value() == f"{second}: mean of 2 samples, perceptual 0.80"
    source = visitor.locator(SLIDER).nth(0).get_attribute("src")
    choose(visitor, "left", f"{first}: restored, balanced 0.35")
    visitor.wait_for_function("before => document.querySelector('#slider img').src !== before", arg=source)
    visitor.get_by_role("tab", name="Uncertainty").click()
    visitor.wait_for_function("() => document.querySelector('#heat img')?.naturalWidth === 60")
    visitor.get_by_role("tab", name="Numbers").click()
    visitor.fill("#count input", "1")


@pytest.mark.browser
def test_run_takes_what_is_typed_before_the_page_knows_it(second, photo, denoiser_calls):
    """The number stands in its field, but no event has told the page, as when Run is clicked at once."""
    upload(second, photo)
    second.evaluate("document.querySelector('#steps input').value = 7")
    second.click("#run")
    second.locator("#status").get_by_text("Run ").wait_for()
    assert len(denoiser_calls) == 7


@pytest.mark.browser
def test_a_jpeg_keeps_its_exif_and_its_profile(visitor, tmp_path):
    exif, profile = Image.Exif(), ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exif[0x010F], exif[0x0112] = "Camera", 6
    turned = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 64, 3), np.uint8))
    turned.save(tmp_path / "photo.jpg", exif=exif, icc_profile=profile)
    upload(visitor, tmp_path / "photo.jpg")
    run(visitor)
    (tmp_path / "saved").mkdir()
    with Image.open(saved(visitor, tmp_path / "saved")) as written:
        assert written.format == "JPEG" and written.size == (40, 64) and written.info["icc_profile"] == profile
        assert dict(written.getexif()) == {0x010F: "Camera", 0x0131: metadata.SOFTWARE}


@pytest.mark.browser
def test_cancel_ends_a_run_within_a_step_and_the_page_goes_on(visitor, photo, denoiser_calls):
    upload(visitor, photo)
    visitor.fill("#steps input", "1000")
    visitor.click("#run")
    visitor.locator("#status").get_by_text("steps done").first.wait_for()
    visitor.click("#cancel")
    visitor.locator("#status").get_by_text("Cancelled").wait_for()
    visitor.evaluate("document.querySelector('#status [data-testid=status-tracker]').classList.remove('hide')")
    visitor.wait_for_timeout(500)  # longer than the transition of gradio's styles
    assert visitor.locator("#status").get_by_text("Cancelled").is_visible(), "hidden by a late progress message"
    done = len(denoiser_calls)
    run(visitor, steps=2)
    assert 0 < done < 1000 and len(denoiser_calls) <= done + 1 + 2


@pytest.mark.browser
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_damaged_uploads_get_the_sentence_of_sample_py(visitor, page, photo, tmp_path, capsys, monkeypatch, every):
    monkeypatch.chdir(tmp_path)
    paths = damaged(photo)[::every]
    assert sample.main([*map(str, paths), "--checkpoint", first(page).name, "--output", "out"]) == 1
    sentences = {line for line in capsys.readouterr().err.splitlines() if line.startswith("sample.py: error: ")}
    assert len(paths) == len(sentences) == 20 // every
    for path in paths:
        visitor.set_input_files("#photo input[type=file]", path)
        said = alert(visitor)
        assert said.startswith(f"{path} ") and f"sample.py: error: {said}" in sentences
    upload(visitor, photo)
    run(visitor)


@pytest.mark.slow
@pytest.mark.browser
def test_of_two_visitors_at_once_both_finish_and_neither_gets_the_other_s_files(visitor, second, page, photo):
    for tab in (visitor, second):
        upload(tab, photo)
        tab.fill("#steps input", "60")
    visitor.click("#run")
    run(second)
    visitor.locator("#status").get_by_text("Run ").wait_for()
    own, other = (tab.locator(SLIDER).nth(1).get_attribute("src") for tab in (visitor, second))
    file = urlsplit(own).path.partition("file=")[2]
    assert own != other
    for path in (
        *(kept for kept in page.visits.folder.rglob("*") if kept.is_file()),
        *(folder for folder in page.visits.served.rglob("*") if folder.is_dir()),
        ROOT / "README.md",
        file.replace("image.png", "other.png"),
    ):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{page.local_url}gradio_api/file={quote(str(path))}")


def paint_the_centre(tab):
    """A short stroke of the mask's brush, until the restored image is another."""
    from playwright.sync_api import TimeoutError as TooLate

    source = tab.locator(SLIDER).nth(1).get_attribute("src")
    for _ in range(10):  # the editor shows the photograph before it takes strokes
        box = tab.locator("#mask canvas").first.bounding_box()
        tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        tab.mouse.down()
        tab.mouse.move(box["x"] + box["width"] / 2 + 2, box["y"] + box["height"] / 2)
        tab.mouse.up()
        changed = "before => document.querySelectorAll('#slider img')[1].src !== before"
        with suppress(TooLate):
            return tab.wait_for_function(changed, arg=source, timeout=6_000)
    raise AssertionError("nothing can be painted")


@pytest.mark.slow
@pytest.mark.browser
def test_outside_of_what_is_painted_is_the_prediction_to_the_bit(second, page, tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8)
    Image.fromarray(array).save(tmp_path / "wide.png")
    upload(second, tmp_path / "wide.png")
    run(second)
    second.get_by_role("tab", name="Mask").click()
    second.locator("#mask").get_by_text(re.compile("^[0-9]+%$")).wait_for()  # the scale, once the photograph is there
    paint_the_centre(second)
    (tmp_path / "saved").mkdir()
    masked = imagecodecs.png_decode(saved(second, tmp_path / "saved").read_bytes())
    out = first(page).pipeline(array, SETTINGS, names=["wide"])
    whole, prediction = ((masked == image[0]).all(-1) for image in (out.images, out.predictions))
    assert prediction[:, :30].all() and whole[50:70, 70:90].all() and not whole[:, :30].all()


def test_the_api_of_the_docs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (40, 64, 3), np.uint8)).save("photo.jpg")
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "web.md").read_text(), re.DOTALL)
    names = {}
    exec(code.replace("http://127.0.0.1:7860", page.local_url), names)
    assert names["command"].startswith("python sample.py photo.jpg --output restored ")
    assert "--preset perceptual --seed 1" in names["command"]
    with Image.open(names["restored"]) as restored:
        assert restored.format == "JPEG" and restored.size == (64, 40)


@pytest.fixture
def client(page, tmp_path):
    """A visitor who calls the API, and a photograph."""
    from gradio_client import Client

    Image.fromarray(np.random.default_rng(4).integers(0, 256, (40, 64, 3), np.uint8)).save(tmp_path / "photo.png")
    return Client(page.local_url, verbose=False)


def opened(client, folder):
    from gradio_client import handle_file

    return client.predict(handle_file(folder / "photo.png"), "photo.png", api_name="/open")


def test_what_a_call_of_the_api_leaves_out_follows_its_preset(client, page, tmp_path):
    opened(client, tmp_path)
    array = np.asarray(Image.open(tmp_path / "photo.png"))
    for given, settings in (
        ({"preset": "perceptual"}, replace(SETTINGS, blend=0.8)),
        ({}, SETTINGS),
        ({"preset": "perceptual", "steps": 3}, replace(SETTINGS, blend=0.8, steps=3)),
        ({"sampler": "ddpm", "strength": 1}, replace(SETTINGS, sampler="ddpm", eta=0.0, blend=1.0)),
    ):
        client.predict(**given, seed=1, api_name="/restore")
        [expected] = first(page).pipeline(array, settings, seed=1, names=["photo"]).images
        assert np.array_equal(np.asarray(Image.open(client.predict(api_name="/save"))), expected), given


def test_every_call_of_a_client_gets_its_files(client, tmp_path):
    for _ in range(20):
        opened(client, tmp_path)
    client.predict(api_name="/restore")
    for number in range(20):
        client.predict(number / 20, api_name="/strength")
        assert Image.open(client.predict(api_name="/save")).size == (64, 40)


@pytest.mark.parametrize(
    ("endpoint", "given", "words"),
    [
        ("/restore", {"steps": 1_000_000}, "this page takes at most 1000 steps, not 1000000"),
        ("/restore", {"count": 17}, "this page takes at most 16 samples, not 17"),
        ("/restore", {"steps": 0}, "steps must be a whole number of 1 or more, got 0"),
        ("/restore", {"steps": 2.5}, "steps must be a whole number of 1 or more, got 2.5"),
        ("/restore", {"seed": -1}, "seed must be a whole number of 0 or more, got -1"),
        ("/restore", {"strength": 7}, "blend must be between 0 and 1, got 7"),
        ("/restore", {"sampler": "euler"}, "sampler must be one of ddpm, ddim"),
        ("/restore", {"preset": "vivid"}, "no preset 'vivid'"),
        ("/strength", {"strength": -1}, "blend must be between 0 and 1, got -1"),
        ("/save", {"right": "9/restored"}, "there is no result 9/restored in this visit"),
    ],
)
def test_a_value_that_is_refused_is_a_sentence_and_no_traceback(client, tmp_path, capfd, endpoint, given, words):
    opened(client, tmp_path)
    client.predict(api_name="/restore")
    with pytest.raises(Exception, match=re.escape(words)):
        client.predict(**given, api_name=endpoint)
    assert "Traceback" not in capfd.readouterr().err


def test_requests_that_no_page_sends_are_refused_without_a_traceback(page, tmp_path, capfd):
    """Every event, the page's own too, with values of wrong types, files that nobody uploaded, and too few values."""
    api = f"{page.local_url}gradio_api/queue/"
    for event in httpx.get(f"{page.local_url}config").json()["dependencies"]:
        values = ["x", -1, 99, {"path": "/etc/passwd"}, {"layers": 3}, [[]], None]
        for number, data in enumerate([[], *([value] * len(event["inputs"]) for value in values)]):
            visit = f"{event['id']}_{number}"
            join = {"data": data, "fn_index": event["id"], "session_hash": visit}
            if event["backend_fn"] and httpx.post(f"{api}join", json=join).is_success:
                with httpx.stream("GET", f"{api}data", params={"session_hash": visit}, timeout=60) as answer:
                    assert any("process_completed" in line for line in answer.iter_lines())
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture
def both(tmp_path, monkeypatch):
    """The page without --checkpoint."""
    for name in ("GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED"):
        monkeypatch.setenv(name, "")  # put back what was there
    (tmp_path / "visitors").mkdir()
    options = Options("", device="cpu", precision="fp32")
    page = app.start(app.Served(port=free_port()), options, tmp_path / "visitors")
    yield page
    page.close()


def test_without_a_flag_the_page_offers_the_repository_s_checkpoints(both, chromium, tmp_path):
    """Each with its presets and an example; the page's own example chooses the checkpoint for text."""
    from gradio_client import Client

    Image.fromarray(np.random.default_rng(4).integers(0, 256, (40, 64, 3), np.uint8)).save(tmp_path / "photo.png")
    array = np.asarray(Image.open(tmp_path / "photo.png"))
    client = Client(both.local_url, verbose=False)
    opened(client, tmp_path)
    for given, name in (({}, "lite"), ({"checkpoint": "text"}, "text"), ({"checkpoint": "lite"}, "lite")):
        *_, command, _ = client.predict(**given, preset="perceptual", api_name="/restore")
        assert f"--checkpoint {name} --preset perceptual --device cpu --precision fp32" in command
        [expected] = both.restorers[name].pipeline(array, preset="perceptual", names=["photo"]).images
        assert np.array_equal(np.asarray(Image.open(client.predict(api_name="/save"))), expected), name
    with pytest.raises(Exception, match="checkpoint is one of lite, text, u2net, not best"):
        client.predict(checkpoint="best", api_name="/restore")
    tab, expect = chromium.new_page(), pytest.importorskip("playwright.sync_api").expect
    tab.goto(both.local_url)
    strength = tab.locator("#strength input[type=number]")
    tab.locator("#examples button").last.click()
    tab.get_by_text("page_blurry.jpg: ").wait_for()
    expect(tab.get_by_role("radio", name="text: documents, screens, receipts, signs")).to_be_checked()
    tab.locator("#preset input").click()
    tab.get_by_role("option", name="perceptual").click()
    for purpose in ("text: documents, screens, receipts, signs", "lite: photographs"):
        tab.get_by_role("radio", name=purpose).check()
        blend = both.restorers[purpose.partition(":")[0]].pipeline.preset("perceptual").blend
        expect(strength).to_have_value(f"{blend:g}")
    tab.screenshot(path=tmp_path / "page.png")
    tab.close()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["photo.jpg"], "photo.jpg belongs to no flag (--help lists the flags)"),
        (["--prot", "80"], "--prot is unknown: did you mean --port?"),
        (["--port", "many"], "--port is a whole number, not many"),
        (["--auth", "name"], "--auth is NAME:PASSWORD"),
        (["--max_pixels", "0"], "--max_pixels must be above 0, got 0"),
        (["--checkpoint", "nowhere"], "checkpoint nowhere is neither a folder"),
        (["--device", "cuda:99"], "device cuda:99 cannot be used here"),
        (["--memory", "0.01"], "--memory 0.01 is less than the program itself takes"),
    ],
)
def test_a_wrong_flag_is_one_sentence(capsys, flags, words):
    assert app.main(flags) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("app.py: error: ") and words in sentence


def test_a_port_that_is_taken_is_one_sentence(page, capsys):
    taken = urlsplit(page.local_url).port
    assert app.main(["--checkpoint", first(page).name, "--port", str(taken)]) == 2
    assert f"port {taken} of 127.0.0.1 cannot be used: give another --port" in capsys.readouterr().err


def test_help_names_every_flag(capsys):
    assert app.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  --{name} " in said for name in (*app.SHARED, *(field.name for field in fields(app.Served))))
    assert "largest photograph in megapixels" in said


def test_the_page_is_for_this_machine_unless_told(monkeypatch, capsys):
    assert app.Served().host == "127.0.0.1"
    assert app.main(["--host", "0.0.0.0", "--checkpoint", "nowhere"]) == 2
    assert "warning: everybody who reaches 0.0.0.0 can use the page: give --auth" in capsys.readouterr().err
    assert app.main(["--host", "0.0.0.0", "--auth", "a:b", "--checkpoint", "nowhere"]) == 2
    assert "warning" not in capsys.readouterr().err


def test_an_upload_of_too_many_pixels_is_refused(page, tmp_path, monkeypatch):
    Image.new("RGB", (30, 20)).save(tmp_path / "photo.png")
    monkeypatch.setattr(first(page), "limits", Limits(500))
    with pytest.raises(ValueError, match=r"photo\.png has 30 x 20 pixels, more than the 0\.0005 megapixels"):
        first(page).open(tmp_path / "photo.png", "photo.png")


@pytest.mark.slow
def test_24_megapixels_stay_below_4_gb(tmp_path):
    from gradio_client import Client, handle_file

    noise = np.random.default_rng(0).integers(0, 256, (400, 600, 3), np.uint8)
    Image.fromarray(noise).resize((6000, 4000)).save(tmp_path / "large.jpg")
    command = [sys.executable, "app.py", "--port", str(free_port()), "--device", "cpu"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = re.search(r"http://\S+", server.stdout.readline())[0]
            client = Client(url, verbose=False)
            client.predict(handle_file(tmp_path / "large.jpg"), "large.jpg", api_name="/open")
            client.predict(api_name="/restore")
            client.predict(0.4, api_name="/strength")
            with Image.open(client.predict(api_name="/save")) as restored:
                assert restored.size == (6000, 4000)
            status = Path(f"/proc/{server.pid}/status").read_text()
        finally:
            server.send_signal(signal.SIGINT)
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
    print(f"{peak / 1e9:.2f} GB")
    assert peak < 4e9


def damaged(photo):
    """Twenty files in the folder that one is in, none of which is a whole image."""
    whole = photo.read_bytes()
    array = np.random.default_rng(2).integers(0, 256, (30, 40, 3), np.uint8)
    files = {"text.png": b"not an image", "empty.jpg": b"", "page.webp": b"<html></html>"}
    files |= {"half.png": whole[: len(whole) // 2], "wide.png": header(100_000, 100_000)}
    for suffix in ("jpg", "webp", "tif", "bmp"):
        Image.fromarray(array).save(f"whole.{suffix}")
        content = Path(f"whole.{suffix}").read_bytes()
        files |= {f"{part}.{suffix}": content[: int(part) * len(content) // 8] for part in "135"}
    files |= {"head.png": whole[:40], "flipped.png": whole[:200] + bytes(200) + whole[400:], "zero.tiff": bytes(1000)}
    for name, content in files.items():
        Path(name).write_bytes(content)
    return [Path(name) for name in files]


def header(width, height):
    """A PNG that says how large it is, and holds nothing."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
