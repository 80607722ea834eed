"""The page in a real browser, as visitors use it."""

import re
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from threading import Event
from urllib.parse import unquote, urlsplit

import imagecodecs
import numpy as np
import pytest
from PIL import Image

from deblur.hub import SHIPPED
from deblur.tools.web.restoration import DEVICE
from tests.conftest import ROOT
from tests.processes import free_port
from tests.web.conftest import PRESET, serving

expect = pytest.importorskip("playwright.sync_api").expect
expect.set_options(timeout=60_000)
STRENGTH = "#strength input[type=number]"
pytestmark = [pytest.mark.commands, pytest.mark.browser, pytest.mark.xdist_group("page")]  # which takes long to start


def is_fault(message):
    """Whether the console tells of an error. The next image may remove the one that the tab is still loading."""
    file = Path(unquote(message.location["url"].partition("file=")[2]))
    was_removed = "served" in file.parts and not file.exists()
    return message.type == "error" and not was_removed


def visiting(chromium, url, width=None):
    """A tab, which must log no error and ask no other host."""
    tab, errors, hosts = chromium.new_page(), [], set()
    if width:
        tab.set_viewport_size({"width": width, "height": 844})
    tab.set_default_timeout(60_000)
    tab.on("console", lambda message: errors.append(message.text) if is_fault(message) else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    tab.goto(url)
    yield tab
    tab.close()
    assert errors == [] and hosts - {""} == {urlsplit(url).netloc}


@pytest.fixture(scope="module")
def visitor(chromium, page):
    """A tab that several tests go on with, in which all is unfolded."""
    for tab in visiting(chromium, page.local_url):
        for name in ("more", "details"):
            tab.locator(f"#{name} button").first.click()
        yield tab


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    """A PNG of 16 bits."""
    path = tmp_path_factory.mktemp("photo") / "my photo (1).png"
    path.write_bytes(imagecodecs.png_encode(np.random.default_rng(0).integers(0, 1 << 16, (44, 60, 3), np.uint16)))
    return path


def upload(tab, *paths):
    # What is waited for below may stand there from an upload before. Then the steps are unfolded.
    steps = tab.locator("#steps input")
    if steps.count():
        steps.fill("999")
    tab.set_input_files("#photo input[type=file]", paths)
    said = f"{paths[0].name}: " if len(paths) == 1 else f"{len(paths)} photographs"
    tab.locator("#status").get_by_text(said).wait_for()
    expect(tab.locator("#way label").first).to_contain_text(re.compile(r", about \d+ (s|min)"))
    if steps.count():  # the numbers are those of the checkpoint that is chosen
        expect(steps).to_have_value(re.compile(r"^(?!999$)\d+$"))


def run(tab, **fields):
    """Restore with these numbers."""
    for name, value in fields.items():
        tab.fill(f"#{name} input", str(value))
    # The last run may have said the same.
    tab.locator("#status p").first.evaluate("said => { said.textContent = 'before'; }")
    tab.click("#run")
    tab.locator("#status").get_by_text("Done.").wait_for()
    ended(tab)


def ended(tab):
    """Wait until a run has ended in the page, too: until then Restore does nothing."""
    expect(tab.locator("#status [data-testid=status-tracker]:not(.hide)")).to_have_count(0)


def choose(tab, field, start):
    tab.click(f"#{field} input")
    tab.get_by_role("option", name=start).first.click()


def changed(tab, side, change, *given):
    """Wait until a change of the page has changed the left (0) or the right image (1)."""
    image = tab.locator("#slider img").nth(side)
    before = image.get_attribute("src")
    change(*given)
    expect(image).not_to_have_attribute("src", before)


def saved(tab, folder):
    with tab.expect_download() as download:
        tab.click("#save")
    download.value.save_as(folder / download.value.suggested_filename)
    return folder / download.value.suggested_filename


def drag(tab, target, right):
    """Drag the middle of a target by some pixels; returns its box."""
    target.scroll_into_view_if_needed()  # which also waits until it stands still
    box = target.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x + right, y, steps=3)
    tab.mouse.up()
    return box


def test_the_slider_compares_by_mouse_and_keys_and_keeps_its_zoom(visitor, photo):
    upload(visitor, photo)
    run(visitor)
    left, right = (visitor.locator("#slider img").nth(side) for side in (0, 1))
    for name, pixels in (("naturalWidth", 60), ("naturalHeight", 44)):
        expect(left).to_have_js_property(name, pixels)
        expect(right).to_have_js_property(name, pixels)
    assert left.get_attribute("src") != right.get_attribute("src")
    expect(right).to_have_css("clip-path", "inset(0px 0px 0px 50%)")
    visitor.locator("h1").click()
    for key, share in (("ArrowRight", r"5[45]"), ("ArrowLeft", r"(49|50)"), ("ArrowLeft", r"4[45]")):
        visitor.keyboard.press(key)
        expect(right).to_have_css("clip-path", re.compile(rf"inset\(0px 0px 0px {share}[.%]"))
    drag(visitor, visitor.locator("#slider .icon-wrap"), 200)
    expect(right).not_to_have_css("clip-path", re.compile(r"4[45]"))
    box = left.bounding_box()
    visitor.mouse.move(box["x"] + 3, box["y"] + 3)  # off the handle
    visitor.mouse.wheel(0, -200)
    zoomed = re.compile(r"scale\(1\.05\)")
    expect(left).to_have_attribute("style", zoomed)
    changed(visitor, 1, run, visitor)
    expect(left).to_have_attribute("style", zoomed)
    visitor.locator("#slider").get_by_role("button", name="Fullscreen").click()
    visitor.get_by_role("button", name="Exit fullscreen mode").wait_for()
    assert visitor.locator("#slider").bounding_box()["width"] == 1200
    visitor.get_by_role("button", name="Exit fullscreen mode").click()


def test_the_strength_moves_without_a_network_and_0_is_the_prediction(visitor, page, photo, tmp_path):
    upload(visitor, photo)
    page.calls.clear()
    run(visitor, steps=3, seed=5)
    found, array = {0.35: saved(visitor, tmp_path).read_bytes()}, imagecodecs.png_decode(photo.read_bytes())
    for strength in (0.9, 0):
        changed(visitor, 1, visitor.fill, STRENGTH, str(strength))
        found[strength] = saved(visitor, tmp_path).read_bytes()
    assert len(page.calls) == 3 and [path.name for path in tmp_path.iterdir()] == [photo.name]
    for blend in (0.35, 0.9, 0):
        settings = replace(PRESET, steps=3, blend=blend)
        out = page.actions.restorer.pipeline(array, settings, seed=5, names=[photo.stem])
        assert np.array_equal(imagecodecs.png_decode(found[blend]), out.images[0])
    assert np.array_equal(out.images[0], out.predictions[0])


def test_samples_their_mean_and_the_prediction_are_looked_at_with_the_uncertainty(visitor, photo):
    upload(visitor, photo)
    for preset, strength, count in (("balanced", "0.35", 1), ("perceptual", "0.8", 2)):
        choose(visitor, "preset", preset)
        expect(visitor.locator(STRENGTH)).to_have_value(strength)
        run(visitor, count=count)
    expect(visitor.locator("#kind input")).to_have_value("mean of 2 samples")
    for kind in ("prediction", "sample 2 of 2"):
        changed(visitor, 1, choose, visitor, "kind", kind)
    expect(visitor.locator("#heat img")).to_have_js_property("naturalWidth", 60)
    visitor.locator("#facts").get_by_text("blend 0.8, 2 samples").wait_for()
    visitor.fill("#count input", "1")


def test_only_what_is_painted_is_restored_until_the_next_photograph(visitor, tmp_path):
    photo = tmp_path / "photo.png"
    before = np.random.default_rng(5).integers(0, 1 << 16, (120, 160, 3), np.uint16)
    photo.write_bytes(imagecodecs.png_encode(before))
    upload(visitor, photo)
    canvas = visitor.locator("#mask canvas").first
    canvas.wait_for()

    def restored():
        run(visitor)
        return imagecodecs.png_decode(saved(visitor, tmp_path / "saved").read_bytes())

    everywhere = restored()
    drag(visitor, canvas, 4)
    part = restored()
    expect(visitor.locator("#facts")).to_contain_text("% of the photograph painted")
    assert np.array_equal(part[60, 70:90], everywhere[60, 70:90]), "the middle"
    is_same = (part == before).all(2)
    is_same[10:-10, 20:-20] = True
    assert is_same.all(), "the border"
    assert not np.array_equal(everywhere[:10], before[:10])
    upload(visitor, photo)
    assert np.array_equal(restored(), everywhere)


def test_restore_takes_what_is_typed_before_the_page_knows_it_or_refuses_it(visitor, photo, capfd):
    """The number stands in its field, but no event has told the page, as when Restore is clicked at once."""
    upload(visitor, photo)
    visitor.evaluate("document.querySelector('#steps input').value = 7")
    run(visitor)
    expect(visitor.locator("#facts")).to_contain_text(" 7 steps, ")
    visitor.fill("#steps input", "1001")
    visitor.click("#run")
    said = visitor.get_by_test_id("toast-text")
    expect(said).to_have_text("this page takes at most 1000 steps, not 1001: restore it with sample.py")
    visitor.get_by_test_id("toast-close").click()
    expect(said).to_have_count(0)
    visitor.set_input_files("#photo input[type=file]", ROOT / "README.md")
    expect(said).to_have_text("README.md is not an image of a known format: save it as PNG, JPEG or TIFF.")
    visitor.get_by_test_id("toast-close").click()
    upload(visitor, photo)
    assert "Traceback" not in capfd.readouterr().err


def test_cancel_ends_a_run_at_once_and_the_page_goes_on(visitor, page, photo):
    upload(visitor, photo)
    page.calls.clear()
    visitor.fill("#steps input", "1000")
    visitor.fill("#count input", "8")
    visitor.click("#run")
    visitor.locator("#status progress").wait_for()
    visitor.click("#cancel")
    visitor.locator("#status").get_by_text("Cancelled.").wait_for()
    ended(visitor)  # it is the run's last word
    assert visitor.locator("#status").inner_text() == "Cancelled."
    done = len(page.calls)
    visitor.fill("#count input", "1")
    run(visitor, steps=2)
    assert done < 8000
    assert len(page.calls) <= done + 1 + 2


def test_on_a_phone_many_photographs_are_restored_and_downloaded_together(chromium, page, photo, tmp_path):
    """Also a HEIC. Nothing is wider than the screen."""
    for name in ("sea.heic", "town.jpg"):
        Image.effect_noise((64, 40), 60).convert("RGB").save(tmp_path / name)
    for tab in visiting(chromium, page.local_url, width=390):
        upload(tab, photo, tmp_path / "sea.heic", tmp_path / "town.jpg")
        run(tab)
        expect(tab.locator("#remarks")).to_contain_text(photo.name)
        tab.locator("#gallery").get_by_role("button", name=re.compile("2")).click()
        expect(tab.locator("#remarks")).to_contain_text("sea.heic")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        with zipfile.ZipFile(saved(tab, tmp_path)) as archive:
            assert archive.namelist() == [photo.name, "sea.heic", "town.jpg"]


def test_a_fresh_page_restores_by_the_best_checkpoint_and_shows_the_quick_one_first(chromium, tmp_path, monkeypatch):
    """Without touching another control; a visitor's choice stays, and text chooses its checkpoint. With a login."""
    monkeypatch.setattr("deblur.tools.web.actions.WORTH_A_PREVIEW", 0.0)
    monkeypatch.setattr("deblur.restoration.duration.PIECE_SIDES", (64,))  # maxim takes seconds for larger ones
    array, go_on = np.random.default_rng(4).integers(0, 256, (40, 64, 3), np.uint8), Event()
    Image.fromarray(array).save(tmp_path / "photo.png")
    with serving(tmp_path / "visitors", auth="name:pass:word") as page:
        page.actions.restorers[str(SHIPPED / "swift")].pipeline.config.presets["balanced"]["blend"] = (
            0.5  # unlike maxim's
        )
        for word, status in (("pass", 401), ("pass:word", 200)):
            chromium.request.post(f"{page.local_url}login", form={"username": "name", "password": word})
            assert chromium.request.get(f"{page.local_url}config").status == status
        for tab in visiting(chromium, page.local_url):
            tab.locator("#details button").first.click()
            upload(tab, tmp_path / "photo.png")
            expect(tab.get_by_role("radio", name="Best, ")).to_be_checked()
            predictor = page.actions.restorers[str(SHIPPED / "maxim")].pipeline.predictor
            hook = predictor.register_forward_pre_hook(lambda *given: go_on.wait(60) and None)
            tab.click("#run")
            expect(tab.locator("#facts")).to_contain_text("pretrained/swift")
            expect(tab.locator("#status")).to_contain_text("Best: photo.png")
            hook.remove()
            go_on.set()
            expect(tab.locator("#facts")).to_contain_text("pretrained/maxim")
            expect(tab.locator("#status")).to_contain_text("Done.")
            [restored] = page.actions.restorers[str(SHIPPED / "maxim")].pipeline(array, names=["photo"]).images
            assert np.array_equal(np.asarray(Image.open(saved(tab, tmp_path / "saved"))), restored)
            go_on.clear()  # Quick and Restore are clicked while the times are measured
            DEVICE.submit(go_on.wait, 60)
            tab.set_input_files("#photo input[type=file]", tmp_path / "photo.png")
            tab.get_by_role("radio", name="Quick (measuring)").check()
            tab.click("#run")
            expect(tab.locator("#status")).to_contain_text("Measuring how long it takes")
            go_on.set()
            expect(tab.locator("#facts")).to_contain_text("pretrained/swift")
            expect(tab.locator("#status")).to_contain_text("Done.")
            expect(tab.get_by_role("radio", name="Quick, about ")).to_be_checked()
            expect(tab.locator(STRENGTH)).to_have_value("0.5")
            [restored] = page.actions.restorers[str(SHIPPED / "swift")].pipeline(array, names=["photo"]).images
            assert np.array_equal(np.asarray(Image.open(saved(tab, tmp_path / "saved"))), restored)
            examples = tab.locator("#examples button")
            expect(examples).to_have_count(len(page.actions.examples))  # until then another one is the last
            examples.last.click()
            tab.get_by_text("page_blurry.jpg: ").wait_for()
            expect(tab.get_by_role("radio", name="A page of text, ")).to_be_checked()
            upload(tab, tmp_path / "photo.png")
            expect(tab.get_by_role("radio", name="Best, ")).to_be_checked()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_24_megapixels_stay_below_4_gb(chromium, tmp_path):
    expect.set_options(timeout=2_000_000)
    Image.effect_noise((600, 400), 60).resize((6000, 4000)).convert("RGB").save(tmp_path / "large.jpg")
    command = [sys.executable, "app.py", "--port", str(free_port()), "--device", "cpu"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            for tab in visiting(chromium, re.search(r"http://\S+", server.stdout.readline())[0]):
                tab.set_default_timeout(2_000_000)
                tab.set_input_files("#photo input[type=file]", tmp_path / "large.jpg")
                tab.get_by_role("radio", name="Quick (measuring)").check()  # it may be found to be the best, too
                run(tab)
                changed(tab, 1, tab.fill, STRENGTH, "0.4")
                with Image.open(saved(tab, tmp_path)) as restored:
                    assert restored.size == (6000, 4000)
            status = Path(f"/proc/{server.pid}/status").read_text()
        finally:
            server.send_signal(signal.SIGINT)
    assert int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 < 4e9
