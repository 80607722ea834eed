"""The files of an evaluation and its printed table."""

import csv
import dataclasses
import json

import pyarrow.parquet as pq
import pytest

from evaluation.catalogue import METRICS as COLUMNS
from evaluation.journal import Score
from evaluation.metrics import make_metrics
from evaluation.results import format_table, write_results
from evaluation.summary import RowSummary, summarise
from models.settings import SamplingSettings
from tests.evaluation.document import of_rows, summary_of
from tests.evaluation.test_summary import row
from tests.evaluation.toy import METRICS, Toy

FIRST = {"blurry": (25.0, 0.5), "predictor": (float("inf"), 1.0), "ddim 5": (26.0, 0.7), "ddpm 5": (24.0, 0.4)}


@pytest.fixture
def written(tmp_path):
    """The folder of the files of an evaluation of two settings, over two images."""
    settings = [SamplingSettings("ddim", steps=5), SamplingSettings("ddpm", steps=5)]
    metrics = make_metrics(["psnr", "ssim"]) | {"lpips": dataclasses.replace(METRICS["ssim"], reason="no weights")}
    toy = Toy([(16, 12), (16, 12)])
    toy.images = [dataclasses.replace(image, name=name) for image, name in zip(toy.images, ("a/1", "b"), strict=True)]
    plan = dataclasses.replace(toy.plan(tmp_path / "journal", settings, metrics), facts={"seed": 3})
    for own in plan.rows:
        psnr, ssim = FIRST.get(own.label, (20.0, 0.1))
        for image, shift in (("a/1", 0.0), ("b", 1.0)):
            plan.journal.add(Score(own.key, image, 0.25, {"psnr": psnr + shift, "ssim": ssim}, {}))
    write_results(tmp_path, summarise(plan))
    names = {"results.csv", "results.json", "per_image.parquet", "journal"}
    assert {path.name for path in tmp_path.iterdir()} == names
    return tmp_path


def test_the_tables_hold_the_rows_and_the_images(written):
    table = {line["setting"]: line for line in csv.DictReader((written / "results.csv").open())}
    table = [table[label] for label in FIRST]
    assert [line["perceptual"] for line in table] == ["", "", "unknown", "unknown"]
    assert {line["lpips_over_noised_high"] for line in table} == {""}
    assert (table[0]["sampler"], table[0]["steps"]) == ("", "")
    assert (table[3]["sampler"], table[3]["steps"], table[3]["psnr"]) == ("ddpm", "5", "24.5")
    assert (table[2]["preset"], table[2]["front"]) == ("fidelity, balanced, perceptual", "False")
    assert (table[2]["psnr_low"], table[2]["psnr_high"], table[2]["psnr_n"]) == ("26", "27", "2")
    assert table[1]["psnr"] == "inf" and table[1]["psnr_low"] == ""
    assert {line["lpips"] for line in table} == {""}
    each = pq.read_table(written / "per_image.parquet").to_pylist()
    scores = {"psnr": 26.0, "ssim": 0.7, "lpips": None}
    assert next(line for line in each if line["setting"] == "ddim 5") == {
        "setting": "ddim 5",
        "image": "a/1",
        "seconds": 0.25,
        **scores,
        "missing": None,
    }


def test_the_document_holds_the_rows_in_standard_json(written):
    document = json.loads((written / "results.json").read_text(), parse_constant=pytest.fail)
    assert document["seed"] == 3
    document["rows"] = [next(row for row in document["rows"] if row["setting"] == label) for label in FIRST]
    assert [r["metrics"]["psnr"]["mean"] for r in document["rows"]] == [25.5, "inf", 26.5, 24.5]
    assert [r["front"] for r in document["rows"]] == [False, True, False, False]
    assert document["rows"][2]["fields"] == dataclasses.asdict(SamplingSettings("ddim", steps=5))
    assert document["rows"][2]["metrics"]["lpips"]["missing"] == "no weights"
    assert document["rows"][2]["verdict"] == {"perceptual": "unknown", "differences": {}, "missing": "LPIPS is missing"}
    assert document["rows"][1]["verdict"] is None and "Gaussian noise" in document["controls"]["recipes"]["noised"]
    assert document["rows"][2]["metrics"]["ssim"]["difference"] == pytest.approx(-0.3)
    assert document["cost"] == {"denoising_steps": 20}


def lines_of(rows: list[RowSummary], **changes) -> list[str]:
    return format_table(of_rows(rows, **changes)).splitlines()


def test_the_table_is_sorted_and_marks_the_front():
    metrics = make_metrics(["psnr", "ssim", "lpips"])
    lines = lines_of([row("blurry", 25.0, 0.3), row("predictor", 27.0, 0.4), row("ddim 5", 24.0)], metrics=metrics)
    assert [line[:11].strip() for line in lines[1:4]] == ["* blurry", "* predictor", "ddim 5"]
    assert lines[3].split()[2:8] == ["24.00", "-", "0.5000", "-", "-", "-"]


@pytest.mark.parametrize("count", range(2, len(COLUMNS) + 1))
def test_the_table_shows_every_metric_that_was_asked_for_and_has_a_value(count):
    names = list(COLUMNS)[:count]
    rows = [row("blurry", 25.0, 0.3), row("predictor", 27.0, 0.4)]
    for position, own in enumerate(rows):
        own.estimates.update(
            {name: dataclasses.replace(own.estimates["psnr"], mean=position + 0.125) for name in names}
        )
    metrics = {name: dataclasses.replace(METRICS["psnr"], column=COLUMNS[name]) for name in names}
    head, *lines = lines_of(rows, metrics=metrics)
    for name in names:
        title, digits, _ = COLUMNS[name]
        at = head.index(title.partition(" (")[0]) + len(title.partition(" (")[0])
        assert {line[:at].split()[-1] for line in lines[:2]} == {f"{value:.{digits}f}" for value in (0.125, 1.125)}


def test_without_lpips_every_setting_is_unknown_and_the_table_says_why(tmp_path):
    toy, settings = Toy([(16, 12)] * 2), [SamplingSettings(steps=5), SamplingSettings(blend=0.0)]
    lines = format_table(toy.summary(tmp_path, settings)).splitlines()
    assert [line.split()[-1] for line in lines if line[2:].startswith(("ddim 5", "blend 0"))] == ["unknown"] * 2
    assert "unknown: LPIPS was not asked for" in lines and not any(line.endswith(" -") for line in lines)


def test_the_table_says_a_verdict_for_each_setting_and_none_for_other_rows():
    summary = summary_of()
    words = {row.label: row.verdict.perceptual for row in summary.settings}
    lines = format_table(summary).splitlines()
    for label in (own.label for own in summary.rows):
        [line] = [line for line in lines if line[2:].startswith(f"{label} ")]
        assert line[-10:].strip() == words.get(label, "")
