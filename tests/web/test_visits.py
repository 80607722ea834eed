"""What a visit keeps, and for how long."""

import shutil
import zipfile
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from deblur.data.files import images
from deblur.tools.web.visits import Visits
from tests.web.conftest import REQUEST, opened, run

pytestmark = pytest.mark.xdist_group("page")


def test_of_old_results_the_finished_file_stays_and_a_closed_visit_leaves_none(page, visit, tmp_path, monkeypatch):
    """It is downloaded as before, and its strength cannot be changed any more."""
    monkeypatch.setattr("deblur.tools.web.visits.LARGEST_RESULTS", 100_000)  # one result of 59 kB
    shutil.copy(tmp_path / "a photo.jpg", tmp_path / "b.jpg")
    opened(page, tmp_path / "a photo.jpg", tmp_path / "b.jpg")
    run(page)
    old, new = (photo.result for photo in visit.photos)
    assert (bool(old.finished), bool(new.finished)) == (True, False)
    written = tmp_path / "written" / "a.jpg"
    new.write(written, "restored")
    assert old.kinds == ["restored"]
    assert images.read(old.finished).shape == images.read(written).shape
    with pytest.raises(ValueError, match=r"a photo\.jpg was restored long ago: restore it again to change it"):
        page.actions.look(None, REQUEST, 0.9)
    with zipfile.ZipFile(page.actions.save(None, REQUEST)) as archive:
        assert archive.read("a photo.jpg") == old.finished.read_bytes()
    page.actions.leave(REQUEST)
    assert not visit.folder.exists()
    assert not visit.served.exists()


def test_new_photographs_take_the_place_of_the_old_ones_and_stop_their_run(page, visit, tmp_path):
    run(page)
    opened(page, tmp_path / "a photo.jpg")
    assert visit.stop.is_set()
    assert [*visit.folder.rglob("*.*")] == [visit.shown.file]
    assert visit.shown.result is None


def test_of_a_photograph_the_newest_result_alone_is_kept(page, visit):
    run(page)
    result = run(page)
    assert visit.shown.result is result
    assert {path.parent for path in visit.folder.rglob("*.npy")} == {result.folder}


def test_visits_end_when_they_are_idle_for_an_hour_not_an_hour_after_opening(page, tmp_path, monkeypatch):
    now = [0.0]
    for module in ("visits", "actions"):
        monkeypatch.setattr(f"deblur.tools.web.{module}.monotonic", lambda: now[0])
    visits = Visits(tmp_path)
    used, idle = visits.of("used"), visits.of("idle")
    for now[0] in (1800.0, 3599.0, 5400.0, 9000.0):
        assert visits.of("used") is used and not used.stop.is_set()
        assert idle.stop.is_set() == (now[0] > 3600) and idle.folder.exists() == (now[0] <= 3600)
    for now[0], _ in zip((12000.0, 15000.0), page.actions._bars(used, Future(), "Restoring"), strict=False):
        visits.of("another")
        assert not used.stop.is_set(), "it waits for its run"
    now[0] += 3600.1
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
        _, right = page.actions.look("restored", REQUEST, value)[page.ui.slider]
        assert (images.read(right) - (result.image("restored") * 255).round() / 255).abs().max() < 1e-6
        rights.append(right)
    assert len(set(rights)) == 3 and rights[1] == rights[3] == rights[4]
