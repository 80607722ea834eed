"""evaluate.py --checkpoints: two checkpoints on the same images and noise."""

# ruff: noqa: F811

import base64
import csv
import json
import re
import shutil

import pytest
import torch

import evaluate
from deblur.data.files import images
from deblur.models.networks.unet import UNetPredictor
from tests.test_evaluate import arguments, each, flags, place  # noqa: F401 (a fixture)
from tests.tiny import tiny_pipeline

pytestmark = pytest.mark.commands


def test_two_checkpoints_are_compared_on_the_same_images_and_noise(place, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(place / "checkpoint", other)
    index = json.loads((other / "model_index.json").read_text())
    (other / "model_index.json").write_text(json.dumps(index | {"residual_scale": 0.01}))
    given = arguments(place, tmp_path / "ab", checkpoint=None, controls=False)
    evaluate.command([*flags(given), "--checkpoints", str(place / "checkpoint"), str(other)])
    lines = list(csv.DictReader((tmp_path / "ab" / "comparison.csv").open()))
    change = {(line["setting"], line["metric"]): line for line in lines}
    assert float(change["predictor", "psnr"]["difference"]) == 0
    own = change["ddim 2", "psnr"]
    assert float(own["difference"]) == pytest.approx(float(own["b"]) - float(own["a"]), abs=1e-6)
    assert float(own["low"]) < float(own["difference"]) < float(own["high"])
    assert own["images"] == "3"
    assert float(own["difference"]) > 0.02, "less of the residual spoils less"
    said = capsys.readouterr().out.splitlines()
    interval = f"{float(own['difference']):+.2f} ({float(own['low']):+.2f} to {float(own['high']):+.2f})"
    [line] = [line for line in said if line.startswith("ddim 2 ") and "(+" in line]
    assert line.split()[:3] == ["ddim", "2", "3"]
    assert interval in line
    assert said[-1] == f"wrote {tmp_path / 'ab'}: open {tmp_path / 'ab' / 'report.html'}"
    page = (tmp_path / "ab" / "report.html").read_text()
    assert interval in page
    assert all(f"{letter}, restored" in page for letter in "AB")
    assert page.count("data:image/png;base64,") == 1, "one curve of both"
    assert base64.b64encode((tmp_path / "ab" / "pareto.png").read_bytes()).decode() in page


@pytest.mark.parametrize("scale", [1e-4, 0.3])
def test_two_checkpoints_show_one_image_as_the_best_rows_of_each_have_it(place, tmp_path, scale):
    """The typical image of A, though B has another one; of B, too, where nothing is better than its prediction."""
    index = json.loads((place / "checkpoint" / "model_index.json").read_text())
    for name, number in (("a", 0.3), ("b", scale)):
        shutil.copytree(place / "checkpoint", tmp_path / name)
        (tmp_path / name / "model_index.json").write_text(json.dumps(index | {"residual_scale": number}))
    given = arguments(place, tmp_path / "ab", checkpoint=None, controls=False)
    evaluate.command([*flags(given), "--checkpoints", str(tmp_path / "a"), str(tmp_path / "b")])
    page = (tmp_path / "ab" / "report.html").read_text()
    image = re.search(r'<h2 id="overview">(\w+), the median of 3 images by LPIPS \(AlexNet\) in A<', page)[1]
    titles = re.findall(r"<figcaption><b>(.+?)</b>(.*?)</figcaption>", page)
    assert (titles[0][0], titles[-1]) == ("Blurry", ("Sharp", ""))
    for letter in "AB":
        lines = each(tmp_path / "ab" / letter)
        scores = {
            line["setting"]: f"PSNR {line['psnr']:.2f}" for line in lines if line["image"] == image and line["psnr"]
        }
        own = [(title.partition(": ")[2], words) for title, words in titles if title.startswith(f"{letter}, best by ")]
        assert own
        assert all(words.startswith(scores[label]) for label, words in own)


def test_each_of_two_checkpoints_shows_its_own_typical_image_in_its_own_report(place, tmp_path):
    for name, scale in (("a", 0.3), ("b", 0.02)):
        torch.manual_seed(1 + ord(name))
        pipeline = tiny_pipeline(UNetPredictor(8, (1, 2), 1))
        pipeline.register_to_config(residual_scale=scale)
        pipeline.save_pretrained(tmp_path / name)
    torch.manual_seed(5)
    for number in range(8):
        blurry = torch.rand(3, 64, 64)
        images.write(tmp_path / f"data/blur/{number}.png", blurry)
        images.write(tmp_path / f"data/sharp/{number}.png", blurry.mean(0) * torch.rand(3, 1, 1))
    (tmp_path / "grid.yaml").write_text("product: {steps: [2]}")
    given = arguments(place, tmp_path / "ab", checkpoint=None, grid=tmp_path / "grid.yaml", controls=False)
    given["data"] = str(tmp_path / "data")
    evaluate.command([*flags(given), "--checkpoints", str(tmp_path / "a"), str(tmp_path / "b")])
    found = []
    for folder in ("", "A", "B"):
        page = (tmp_path / "ab" / folder / "report.html").read_text()
        found.append(re.search(r'<h2 id="overview">(\w+), the median of 8 images', page)[1])
    assert found[0] == found[1] != found[2]
