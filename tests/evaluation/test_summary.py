"""From scores to intervals, verdicts, the Pareto front and presets; the files of an evaluation and its table."""

import csv
import dataclasses
import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from deblur.evaluation.grid import CONTROLS, NOISED, SHARPENED
from deblur.evaluation.journal import Score
from deblur.evaluation.metrics import METRICS as COLUMNS
from deblur.evaluation.metrics import make_metrics
from deblur.evaluation.results import format_table, write_results
from deblur.evaluation.statistics import Estimate, estimates
from deblur.evaluation.summary import RowSummary, summarise
from deblur.settings import SamplingSettings
from tests.evaluation.document import of_rows, summary_of
from tests.evaluation.toy import METRICS, Toy, decibels, summary


def row(label: str, psnr: float | None, lpips: float | None = None, ssim: float | None = 0.5) -> RowSummary:
    settings = None if label in ("blurry", "predictor", *CONTROLS) else SamplingSettings(steps=5)
    values = {"psnr": psnr, "ssim": ssim, "lpips": lpips}
    estimates = {name: Estimate(value, None, None, 1) for name, value in values.items() if value is not None}
    return RowSummary(label, settings, 1, 0.0, estimates)


def test_a_setting_is_perceptual_where_it_beats_both_controls(tmp_path):
    """LPIPS is planted: the controls' falls with their strength, and the first setting's is a little lower still."""
    settings = [SamplingSettings(steps=steps) for steps in (22, 23, 24)]
    lpips, toy = dataclasses.replace(METRICS["ssim"], column=COLUMNS["lpips"]), Toy([(16, 12)] * 6)
    plan = toy.plan(tmp_path, settings, METRICS | {"lpips": lpips})
    names = dict(zip((row.label for row in plan.settings), ("better", "worse", "broken"), strict=True))
    for row in plan.rows:
        for number, image in enumerate(plan.images):
            spread = 0.001 * (number - 2.5)
            planted = {"better": 0.05 + spread, "worse": 0.5 + spread, "broken": None}.get(names.get(row.label), 0.1)
            scores = {"psnr": decibels(20), "ssim": 0.5, "lpips": planted}
            if row.settings:
                scores["psnr"] = decibels(row.settings.steps)
            elif row.label in CONTROLS:
                scores |= {"psnr": decibels(20) - 2 * (CONTROLS.index(row.label) % 5), "lpips": 0.07}
            missing = {} if planted else {"lpips": "not finite"}
            plan.journal.add(Score(row.key, image.name, 0.0, scores, missing))
    rows = summary(plan).rows
    assert not toy.log
    better, worse, broken = (row.verdict for row in rows[-3:])
    assert (better.perceptual, worse.perceptual) == ("yes", "no")
    for control in (SHARPENED, NOISED):
        assert better.differences[control].mean == pytest.approx(-0.02, abs=0.003)
        assert better.differences[control].high < 0 < worse.differences[control].low
    assert broken.perceptual == "unknown"
    assert broken.missing == "its LPIPS is missing for an image"
    assert all(row.verdict is None for row in rows[:-3])


def test_pareto_front_is_what_nothing_beats():
    places = {"blurry": (25.0, 0.30), "predictor": (27.0, 0.40), "front": (26.0, 0.25), "beaten": (25.9, 0.26)}
    places |= {"equal on one axis": (26.0, 0.27), "twin": (26.0, 0.25), "unscored": (None, None)}
    rows = [row(label, *scores) for label, scores in (places | {"sharpened 0.6": (26.5, 0.2)}).items()]
    assert [r.label for r in of_rows(rows).front] == ["front", "twin", "predictor"]


def test_without_lpips_the_front_is_of_psnr_and_ssim():
    rows = [row("blurry", 25.0, ssim=0.9), row("predictor", 27.0, ssim=0.6), row("a", 26.0, ssim=0.7), row("b", 25.5)]
    assert of_rows(rows, metrics=METRICS).perception == "ssim"
    assert [r.label for r in of_rows(rows, metrics=METRICS).front] == ["blurry", "a", "predictor"]


def test_presets_are_the_ends_and_the_knee():
    places = {"predictor": (30.0, 0.05), "plain": (27.0, 0.40), "knee": (26.5, 0.28), "middle": (25.5, 0.26)}
    places |= {"sharpest": (25.0, 0.25), "beaten": (24.0, 0.30)}
    made = [row(label, *scores) for label, scores in places.items()]
    ends = {"fidelity": "plain", "balanced": "knee", "perceptual": "sharpest"}
    assert {name: chosen.label for name, chosen in of_rows(made).presets.items()} == ends
    assert {chosen.label for chosen in of_rows(made[:2]).presets.values()} == {"plain"}
    assert of_rows(made[:1]).presets == {}


def test_an_image_that_every_setting_keeps_as_it_is_decides_no_preset(tmp_path):
    """Its PSNR is infinite, and so is each mean; the other image tells the settings apart."""
    settings, toy = [SamplingSettings(steps=steps) for steps in (2, 8, 20)], Toy([(16, 12)] * 2)
    plan = toy.plan(tmp_path, settings)
    for row in plan.rows:
        steps = row.settings.steps if row.settings else 40
        for image, psnr in zip(plan.images, (math.inf, decibels(steps)), strict=True):
            ssim = 0.5 + steps / 100 if row.settings else 0.1
            plan.journal.add(Score(row.key, image.name, 0.0, {"psnr": psnr, "ssim": ssim}, {}))
    found = summary(plan)
    chosen = {name: row.settings.steps for name, row in found.presets.items()}
    assert (chosen["fidelity"], chosen["perceptual"]) == (2, 20)
    assert [row.settings.steps for row in found.settings_front] == [20, 8, 2]


def test_the_interval_is_the_bootstrap_s_own_expanded_for_small_samples():
    values = np.random.default_rng(0).normal(3, 2, (200, 1))
    (found,) = estimates(values)
    half = 1.96 * values.std() / math.sqrt(200)
    assert found.mean == pytest.approx(values.mean())
    assert found.n == 200
    assert found.mean - found.low == pytest.approx(half, rel=0.1)
    assert found.high - found.mean == pytest.approx(half, rel=0.1)
    assert estimates(values)[0] == found, "the same seed"
    assert estimates(values, seed=1)[0] != found


def test_all_columns_share_their_resamples_and_infinity_has_no_interval():
    values = np.random.default_rng(0).normal(size=(20, 1))
    one, two, shifted, broken = estimates(np.hstack([values, values, values + 5, values + np.inf]))
    assert one == two
    assert shifted.low == pytest.approx(one.low + 5)
    assert shifted.high == pytest.approx(one.high + 5)
    assert (broken.mean, broken.low, broken.high) == (math.inf, None, None)
    assert estimates(values[:1])[0].low is None


@pytest.mark.parametrize(("n", "skewed", "normal"), [(5, 0.876, 0.917), (12, 0.911, 0.948), (60, 0.934, 0.953)])
def test_intervals_cover_the_mean(n, skewed, normal):
    """95 % of the time, but for skewed values and five images, which have few distinct resamples."""
    random = np.random.default_rng(n)
    found = estimates(random.exponential(size=(n, 2000)))
    covered = np.mean([one.low <= 1 <= one.high for one in found])
    assert covered == pytest.approx(skewed, abs=0.01)
    found = estimates(random.normal(size=(n, 2000)))
    covered = np.mean([one.low <= 0 <= one.high for one in found])
    assert covered == pytest.approx(normal, abs=0.01)


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
    assert table[1]["psnr"] == "inf"
    assert table[1]["psnr_low"] == ""
    assert {line["lpips"] for line in table} == {""}
    assert {line["lpips_n"] for line in table} == {"0"}
    assert {line["images"] for line in table} == {"2"}
    each = pq.read_table(written / "per_image.parquet").to_pylist()
    expected = {"setting": "ddim 5", "image": "a/1", "seconds": 0.25, "psnr": 26.0, "ssim": 0.7, "lpips": None}
    assert next(line for line in each if line["setting"] == "ddim 5") == expected | {"missing": None}


def test_the_document_holds_the_rows_in_standard_json(written):
    document = json.loads((written / "results.json").read_text(), parse_constant=pytest.fail)
    assert document["seed"] == 3
    document["rows"] = [next(row for row in document["rows"] if row["setting"] == label) for label in FIRST]
    assert [r["metrics"]["psnr"]["mean"] for r in document["rows"]] == [25.5, "inf", 26.5, 24.5]
    assert [r["front"] for r in document["rows"]] == [False, True, False, False]
    assert document["rows"][2]["fields"] == dataclasses.asdict(SamplingSettings("ddim", steps=5))
    assert document["rows"][2]["metrics"]["lpips"]["missing"] == "no weights"
    assert document["rows"][2]["verdict"] == {"perceptual": "unknown", "differences": {}, "missing": "LPIPS is missing"}
    assert document["rows"][1]["verdict"] is None
    assert "Gaussian noise" in document["controls"]["recipes"]["noised"]
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
    names, rows = list(COLUMNS)[:count], [row("blurry", 25.0, 0.3), row("predictor", 27.0, 0.4)]
    for position, own in enumerate(rows):
        own.estimates.update(dict.fromkeys(names, dataclasses.replace(own.estimates["psnr"], mean=position + 0.125)))
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
    assert "unknown: LPIPS was not asked for" in lines
    assert not any(line.endswith(" -") for line in lines)


def test_the_table_says_a_verdict_for_each_setting_and_none_for_other_rows():
    summary = summary_of()
    words = {row.label: row.verdict.perceptual for row in summary.settings}
    lines = format_table(summary).splitlines()
    for label in (own.label for own in summary.rows):
        [line] = [line for line in lines if line[2:].startswith(f"{label} ")]
        assert line[-10:].strip() == words.get(label, "")
