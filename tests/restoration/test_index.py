"""index.html of a folder of restored images."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import sample
from data import images
from models.heads import IdentityPredictor
from models.pipeline import DeblurPipeline
from restoration.index import write_index
from tests.tiny import tiny_pipeline


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which two images were restored, with the page."""
    monkeypatch.setattr("restoration.index.MOST_SHOWN", 2000)
    tiny_pipeline().save_pretrained(tmp_path / "checkpoint")
    generator = torch.Generator().manual_seed(0)
    for name, size in (("a & b.png", (20, 31)), ("sub/c.tif", (90, 80))):
        images.write(tmp_path / "in" / name, torch.rand(3, *size, generator=generator))
    command = [str(tmp_path / "in"), "--checkpoint", str(tmp_path / "checkpoint"), "--steps", "1", "--index"]
    assert sample.main([*command, "--output", str(tmp_path / "out")]) == 0
    return tmp_path / "out"


def shown(folder):
    page = (folder / "index.html").read_text()
    return page, json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def marked(folder, **entries):
    """The manifest's entries of the images whose names end so, changed."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, entry in manifest.items():
        entry.update(entries["c" if name.endswith("c.tif") else "a"])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return shown(write_index(folder).parent)


@pytest.mark.parametrize("blurriest", ["a", "c"])
def test_the_blurriest_image_comes_first_with_its_warning(folder, blurriest):
    blurs = {"a": {"blur": 3.0, "faults": ["<dull>"]}, "c": {"blur": 9.0 if blurriest == "c" else 2.0, "faults": []}}
    page, data = marked(folder, **blurs)
    entries = [entry for entry in data["examples"] if entry["setting"] == "all"]
    order = ["c.tif", "a & b.png"] if blurriest == "c" else ["a & b.png", "c.tif"]
    assert [Path(entry["image"]).name for entry in entries] == order
    assert [entry["rank"] for entry in entries] == ["1", "2"]
    [warned] = [entry for entry in data["examples"] if entry["setting"] == "with a warning"]
    assert warned["image"].endswith("a & b.png") and warned["about"].endswith(": <dull>")
    assert "&lt;dull&gt;" in page and "<dull>" not in page and "http" not in page.replace("http-equiv", "")
    assert page.index(order[0].replace("&", "&amp;")) < page.index(order[1].replace("&", "&amp;"))


def test_the_copies_are_the_images_before_and_after(folder):
    _, data = shown(folder)
    assert data["left"] == "blurry" and data["right"] == "restored"
    for entry in data["examples"]:
        before, after = (images.read(folder / data["images"][entry["files"][kind]]) for kind in ("blurry", "restored"))
        name = Path(entry["image"])
        assert before.shape[1:] == after.shape[1:] == (entry["height"], entry["width"])
        assert before[0].numel() <= 2000 and (name.suffix == ".png") == (before.shape[1:] == (20, 31))
        if name.suffix == ".png":
            assert (before - images.read(name)).abs().mean() < 0.02
            assert (after - images.read(folder / name.name)).abs().mean() < 0.02


def test_the_page_knows_earlier_runs_and_forgets_what_is_gone(folder, capsys):
    images.write(folder.parent / "in" / "d.png", torch.rand(3, 9, 9))
    command = [str(folder.parent / "in" / "d.png"), "--checkpoint", str(folder.parent / "checkpoint"), "--index"]
    assert sample.main([*command, "--steps", "1", "--output", str(folder)]) == 0
    assert f"before and after: {folder / 'index.html'}" in capsys.readouterr().out
    names = {Path(entry["image"]).name for entry in shown(folder)[1]["examples"]}
    assert names == {"a & b.png", "c.tif", "d.png"} and len(list((folder / "index_files").iterdir())) == 6
    (folder / "d.png").unlink()
    shutil.rmtree(folder.parent / "in" / "sub")
    write_index(folder)
    assert {Path(entry["image"]).name for entry in shown(folder)[1]["examples"]} == {"a & b.png"}
    assert len(list((folder / "index_files").iterdir())) == 2


def test_blur_is_the_change_that_the_predictor_makes_where_it_expects_no_error(folder, tmp_path):
    for entry in json.loads((folder / "manifest.json").read_text()).values():
        assert entry["blur"] > 0
    same = tiny_pipeline(IdentityPredictor())
    assert isinstance(same, DeblurPipeline)
    same.save_pretrained(tmp_path / "same")
    command = [str(tmp_path / "in" / "a & b.png"), "--checkpoint", str(tmp_path / "same"), "--steps", "1"]
    assert sample.main([*command, "--output", str(tmp_path / "unchanged")]) == 0
    [entry] = json.loads((tmp_path / "unchanged" / "manifest.json").read_text()).values()
    assert entry["blur"] == 0
