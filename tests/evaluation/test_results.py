"""The files of an evaluation and its printed table."""

import csv
import dataclasses
import json

import pyarrow.parquet as pq
import pytest

from evaluation.grid import key
from evaluation.journal import Score
from evaluation.metrics import make_metrics
from evaluation.results import Results, format_table, write_results
from evaluation.summary import image_table, summarise
from models.settings import SamplingSettings
from tests.evaluation.test_summary import row
from tests.evaluation.toy import METRICS, Toy


@pytest.fixture
def written(tmp_path):
    """The folder of the files of four rows, over two images."""
    settings = [SamplingSettings("ddim", steps=5), SamplingSettings("ddpm", steps=5)]
    keys = ["blurry", "predictor", *map(key, settings)]
    numbers = [(25.0, 0.5), (float("inf"), 1.0), (26.0, 0.7), (24.0, 0.4)]
    metrics = make_metrics(["psnr", "ssim"]) | {"lpips": dataclasses.replace(METRICS["ssim"], reason="no weights")}
    toy = Toy([(16, 12), (16, 12)])
    toy.images = [dataclasses.replace(image, name=name) for image, name in zip(toy.images, ("a/1", "b"), strict=True)]
    plan = dataclasses.replace(toy.plan(tmp_path / "journal", settings, metrics), facts={"seed": 3})
    for name, (p, s) in zip(keys, numbers, strict=True):
        for image, shift in (("a/1", 0.0), ("b", 1.0)):
            plan.journal.add(Score(name, image, 0.25, {"psnr": p + shift, "ssim": s}, {}))
    table = image_table(plan)
    rows = summarise(plan, table)
    paths = write_results(tmp_path, plan, Results(table, rows, {"perceptual": rows[2]}, 20))
    assert sorted(tmp_path.iterdir()) == sorted([*paths, tmp_path / "journal"])
    return tmp_path


def test_the_tables_hold_the_rows_and_the_images(written):
    table = list(csv.DictReader((written / "results.csv").open()))
    assert [line["setting"] for line in table] == ["blurry", "predictor", "ddim 5", "ddpm 5"]
    assert {line["perceptual"] for line in table} == {line["lpips_over_noised_high"] for line in table} == {""}
    assert (table[0]["sampler"], table[0]["steps"]) == ("", "")
    assert (table[3]["sampler"], table[3]["steps"], table[3]["psnr"]) == ("ddpm", "5", "24.5")
    assert (table[2]["preset"], table[2]["front"], table[3]["front"]) == ("perceptual", "False", "False")
    assert (table[2]["psnr_low"], table[2]["psnr_high"], table[2]["psnr_n"]) == ("26", "27", "2")
    assert table[1]["psnr"] == "inf" and table[1]["psnr_low"] == ""
    assert {line["lpips"] for line in table} == {""}
    each = pq.read_table(written / "per_image.parquet").to_pylist()
    scores = {"psnr": 26.0, "ssim": 0.7, "lpips": None}
    assert each[4] == {"setting": "ddim 5", "image": "a/1", "seconds": 0.25, **scores, "missing": None}


def test_the_document_holds_the_rows_in_standard_json(written):
    document = json.loads((written / "results.json").read_text(), parse_constant=pytest.fail)
    assert document["seed"] == 3
    assert [r["metrics"]["psnr"]["mean"] for r in document["rows"]] == [25.5, "inf", 26.5, 24.5]
    assert [r["front"] for r in document["rows"]] == [False, True, False, False]
    assert document["rows"][2]["fields"]["steps"] == 5
    assert document["rows"][2]["metrics"]["lpips"]["missing"] == "no weights"
    assert document["rows"][2]["verdict"] == {"perceptual": None, "differences": {}, "missing": "LPIPS is missing"}
    assert document["rows"][1]["verdict"] is None and "Gaussian noise" in document["controls"]["recipes"]["noised"]
    assert document["rows"][2]["metrics"]["ssim"]["difference"] == pytest.approx(-0.3)
    assert document["cost"] == {"denoising_steps": 20}


def test_the_table_is_sorted_and_marks_the_front():
    lines = format_table(
        [row("blurry", 25.0, 0.3), row("predictor", 27.0, 0.4), row("ddim 5", 24.0, None)]
    ).splitlines()
    assert [line[:11].strip() for line in lines[1:4]] == ["* blurry", "* predictor", "ddim 5"]
    assert lines[3].split()[2:8] == ["24.00", "-", "0.5000", "-", "-", "-"]
