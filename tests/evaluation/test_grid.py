"""Reading grids, running them on a problem with known scores, averaging, the Pareto front, and the files."""

import csv
import dataclasses
import itertools
import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from evaluation.controls import NOISED, SHARPENED
from evaluation.grid import (
    CONTROLS,
    NO_INTERVAL,
    GridError,
    Outcome,
    Picture,
    Restorer,
    Row,
    best_sample,
    choose_presets,
    key,
    label_settings,
    pareto_front,
    perception_metric,
    read_grid,
    run_grid,
    summarise,
)
from evaluation.journal import Journal, JournalError, Score
from evaluation.metrics import MetricError, SetMetric, make_metrics
from evaluation.results import format_table, whole_file, write_results
from models.pipeline import cost_of
from models.schedules import linear
from models.settings import SamplingSettings

GRIDS = Path(__file__).parents[2] / "configs" / "grid"


def read(tmp_path: Path, text: str) -> list[SamplingSettings]:
    (tmp_path / "grid.yaml").write_text(text)
    return read_grid(tmp_path / "grid.yaml", SamplingSettings)


def row(label: str, psnr: float | None, lpips: float | None = None, ssim: float | None = 0.5) -> Row:
    settings = {} if label in ("blurry", "predictor", *CONTROLS) else {"sampler": "ddim", "steps": 5}
    return Row(label, settings, 1, 0.0, {"psnr": psnr, "ssim": ssim, "lpips": lpips})


# Reading


def test_a_grid_is_the_product_and_the_listed_settings_each_once(tmp_path):
    settings = read(
        tmp_path,
        "product: {sampler: [ddim, ddpm], steps: [5, 10], schedule: cosine}\n"
        "settings:\n"
        "  - {sampler: unipc, steps: 3, blend: 1}\n"
        "  - {sampler: ddim, steps: 5, schedule: cosine}\n",
    )
    expected = [SamplingSettings(s, "cosine", n) for s in ("ddim", "ddpm") for n in (5, 10)]
    assert settings == [*expected, SamplingSettings("unipc", steps=3)]


def test_several_products_and_yaml_s_textual_exponents(tmp_path):
    settings = read(tmp_path, "product: [{steps: 50, beta_start: 1e-6}, {steps: [20, 30], sampler: ddpm}]")
    assert [s.steps for s in settings] == [50, 20, 30]
    assert settings[0].beta_start == 1e-6


@pytest.mark.parametrize(
    ("field", "text", "values"),
    [
        ("steps", "{from: 5, to: 20, step: 5}", [5, 10, 15, 20]),
        ("steps", "{from: 5, to: 19, step: 5}", [5, 10, 15]),
        ("steps", "{from: 5, to: 50, count: 4, spacing: log}", [5, 11, 23, 50]),
        ("steps", "{from: 1, to: 3, count: 9}", [1, 2, 3]),
        ("eta", "{from: 0, to: 0.3, step: 0.1}", [0.0, 0.1, 0.2, 0.3]),
        ("blend", "{from: 0.0, to: 1.0, count: 3}", [0.0, 0.5, 1.0]),
        ("beta_end", "{from: 1e-2, to: 1.0e-1, count: 3, spacing: log}", [0.01, 0.0316227766017, 0.1]),
    ],
)
def test_a_range_stands_for_its_numbers(tmp_path, field, text, values):
    first = "sampler: ddim, steps: 500, " if field == "beta_end" else ""
    settings = read(tmp_path, f"product: {{{first}{field}: {text}}}")
    assert [getattr(setting, field) for setting in settings] == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("product: {steps: {from: 1, to: 5}}", "the range of steps must be {from, to, step}"),
        ("product: {steps: {from: 1, to: much, step: 1}}", "all numbers"),
        ("product: {steps: {from: 5, to: 1, step: 1}}", "rising"),
        ("product: {steps: {from: 1, to: 5, step: 0}}", "rising"),
        ("product: {eta: {from: 0.0, to: 1.0, count: 3, spacing: log}}", "ends above 0"),
        ("product: {eta: {from: 0.0, to: 1.0, count: 1}}", "a count of 2 or more"),
        ("product: {eta: {from: 0.0, to: 1.0, count: 2, spacing: cubic}}", "spacing linear or log"),
        ("product: {steps: {from: 1, to: 2, step: 0.5}}", "\"steps\": Expected a <class 'int'>"),
        ("settings: [{steps: {from: 1, to: 5, step: 1}}]", "\"steps\": Expected a <class 'int'>"),
        ("product: {stepz: [5]}", "unknown field 'stepz'; known are sampler, schedule, steps"),
        ("product: {sampler: [ddim, euler]}", "'ddim', 'dpmsolver++', 'unipc']. Got value: euler"),
        ("product: {steps: [5, 0]}", "steps must be a whole number of 1 or more, got 0"),
        ("product: {steps: 2.5}", "\"steps\": Expected a <class 'int'>. Got value: 2.5"),
        ("product: {steps: true}", "\"steps\": Expected a <class 'int'>. Got value: True"),
        ("product: {beta_end: much}", "\"beta_end\": Expected a <class 'float'>. Got value: much"),
        ("product: {beta_end: .nan}", "beta_end must be a finite number, got nan"),
        ("product: {average: 1}", "\"average\": Expected a <class 'bool'>. Got value: 1"),
        ("settings: [{steps: [5, 10]}]", "\"steps\": Expected a <class 'int'>. Got value: [5, 10]"),
        ("product: [5]", "'product' must hold fields with their values"),
        ("settings: {steps: 5}", "'settings' must hold fields with their values"),
        ("products: {steps: 5}", "must hold the keys 'product' or 'settings' and no others"),
        ("- 5", "must hold the keys 'product' or 'settings' and no others"),
        ("", "must hold the keys 'product' or 'settings' and no others"),
        ("product: {steps: []}", "holds no settings"),
        ("product: {steps: [5", "is not YAML"),
    ],
)
def test_a_wrong_grid_is_one_sentence_with_the_file(tmp_path, text, said):
    with pytest.raises(GridError) as caught:
        read(tmp_path, text)
    assert f"Grid file {tmp_path / 'grid.yaml'}" in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_grid_file_is_named(tmp_path):
    with pytest.raises(GridError, match=r"absent\.yaml cannot be read: No such file"):
        read_grid(tmp_path / "absent.yaml", SamplingSettings)


def test_the_grid_files_of_the_repository():
    demo = read_grid(GRIDS / "demo.yaml", SamplingSettings)
    assert {(s.sampler, s.steps) for s in demo} == {(s, n) for s in ("ddim", "ddpm") for n in (2, 5, 20)}
    paper = read_grid(GRIDS / "paper.yaml", SamplingSettings)
    plain = [s for s in paper if s.num_samples == 1 and s.blend == 1]
    assert sorted({s.steps for s in plain}) == [10, 20, 30, 50, 100, 200, 300, 500]
    ends = (0.1, 0.01, 0.001, math.exp(-10))
    for number, setting in enumerate(plain):
        assert (setting.sampler, setting.schedule) == ("ddpm", "linear")
        end = (1 - linear(setting.steps, setting.beta_start, setting.beta_end)).prod().item()
        assert end == pytest.approx(ends[number % 4], rel=0.03)
    assert (len(plain), len(paper), cost_of(plain)[1], cost_of(paper)[1]) == (32, 88, 4840, 5680)
    for name, settings, steps in (("quick", 18, 120), ("few_steps", 80, 440)):
        grid = read_grid(GRIDS / f"{name}.yaml", SamplingSettings)
        assert (len(grid), cost_of(grid)[1]) == (settings, steps)
        assert len(set(label_settings(grid))) == settings


def test_labels_are_unique_and_tell_what_differs():
    settings = [SamplingSettings("ddim", steps=5, eta=eta) for eta in (0.0, 1.0)]
    assert label_settings(settings) == ["ddim 5", "ddim 5 eta=1.0"]
    several = [SamplingSettings(num_samples=4, average=average) for average in (False, True)]
    assert label_settings(several) == ["ddim 20", "ddim 20 average"]
    assert label_settings([SamplingSettings("ddpm", "cosine", 9), SamplingSettings()]) == [
        "ddpm 9 cosine",
        "ddim 20 training",
    ]


# Running

METRICS = make_metrics(["psnr", "ssim"])


class Toy:
    """A restorer whose result is off by `steps` levels everywhere, the prediction by 20, the input by 40."""

    def __init__(self, sizes: list[tuple[int, int]], slots: int = 3):
        self.log, self.slots = [], slots
        self.pictures = [
            Picture(f"picture{number}", size, lambda size=size: self.read(size)) for number, size in enumerate(sizes)
        ]
        self.restorer = Restorer(self.predict, self.refine, cost_of, lambda size: slots)

    def read(self, size):
        self.log.append("read")
        sharp = torch.full((3, *size), 100 / 255)
        return sharp + 40 / 255, sharp

    def predict(self, blurry):
        self.log.append("predict")
        assert blurry.shape[:2] == (1, 3)
        return blurry - 20 / 255

    def refine(self, cases, slots, progress):
        for name, _, x_init, settings in cases:
            assert len({tuple(x_init.shape)}) == 1 and slots <= self.slots
            for setting in settings:
                self.log.append(f"refine {name}")
                progress(setting.steps * setting.num_samples)
                offsets = torch.arange(setting.num_samples) + setting.steps
                yield name, setting, (x_init - 20 / 255) + offsets.view(-1, 1, 1, 1) / 255, 0.5

    def run(self, folder, settings, metrics=METRICS, **options) -> Outcome:
        facts = {"recipe": {name: metric.recipe for name, metric in metrics.items()}}
        journal = Journal(folder, facts, options.get("share", (0, 1))[0])
        return run_grid(self.pictures, settings, self.restorer, metrics, journal, **options)

    def rows(self, folder, settings, metrics=METRICS, **options) -> list[Row]:
        outcome = self.run(folder, settings, metrics, **options)
        return summarise(outcome, [p.name for p in self.pictures], settings, metrics, None)


def decibels(offset: float) -> float:
    return 20 * math.log10(255 / offset)


def test_every_setting_gets_its_known_score_and_the_predictor_runs_once_an_image(tmp_path, capsys):
    toy = Toy([(24, 20), (16, 12)])
    settings = [SamplingSettings(steps=2), SamplingSettings(steps=5), SamplingSettings(steps=3, num_samples=2)]
    rows = toy.rows(tmp_path, settings)
    assert toy.log[:5] == ["read", "predict", *["refine picture1"] * 3], "pictures of one size together"
    assert toy.log[5:] == ["read", "predict", *["refine picture0"] * 3]
    labels = ["blurry", "predictor", "sharp", *label_settings(settings)]
    assert [r.label for r in rows] == [*labels[:3], *CONTROLS, *labels[3:]]
    controls, rows = rows[3:-3], [*rows[:3], *rows[-3:]]
    assert all(r.seconds == rows[1].seconds and r.images == 2 and r.verdict is None for r in controls)
    for control in controls:  # what is flat does not get sharper, and the change of 20 levels is the same everywhere
        sharpened = control.label.startswith(SHARPENED)
        level = 0 if sharpened else float(control.label.split()[1])
        assert control.metrics["psnr"] == pytest.approx(decibels(math.hypot(20, level)), abs=1e-4 if sharpened else 0.5)
    expected = [decibels(40), decibels(20), None, decibels(2), decibels(5), (decibels(3) + decibels(4)) / 2]
    assert [r.metrics["psnr"] for r in rows] == [None if e is None else pytest.approx(e, abs=1e-4) for e in expected]
    assert [r.images for r in rows] == [2] * 6
    assert rows[0].seconds == 0 and 0 < rows[1].seconds < 0.5
    assert [r.seconds for r in rows[3:]] == [pytest.approx(0.5 + rows[1].seconds)] * 3, "it holds the predictor's"
    assert rows[3].differences["psnr"].mean == pytest.approx(decibels(2) - decibels(20), abs=1e-4)
    assert rows[0].differences["psnr"].n == 2 and not rows[1].differences
    assert f"{2 * (2 + 5 + 2 * 3)}/{2 * (2 + 5 + 2 * 3)}" in capsys.readouterr().err


def test_a_distance_of_sets_is_made_of_all_pictures_and_says_why_it_has_no_interval(tmp_path):
    def features(pictures):
        if pictures.shape[-1] < 12:
            raise MetricError("too small")
        return pictures.mean((2, 3))[:, None]

    def levels_apart(restored, sharp):
        return 255 * (restored.mean(0) - sharp.mean(0)).abs().max().item()

    metrics = METRICS | {"fid": SetMetric("fid", "FID", features, levels_apart, "recipe")}
    facts = {"recipe": {name: metric.recipe for name, metric in metrics.items()}}
    settings = [SamplingSettings(steps=2)]

    def rows(sizes):
        toy, folder = Toy(sizes), tmp_path / str(sizes[1][0])
        toy.run(folder, settings, metrics)
        outcome = toy.run(folder, settings, metrics)  # out of the journal
        return summarise(outcome, ["picture0", "picture1"], settings, metrics, Journal(folder, facts))

    blurry, predictor, sharp, *_, setting = rows([(24, 20), (16, 12)])
    assert [row.metrics["fid"] for row in (blurry, predictor, setting)] == pytest.approx([40, 20, 2], abs=1e-3)
    assert sharp.metrics["fid"] is None
    assert setting.estimates["fid"].low is None and setting.missing["fid"] == NO_INTERVAL
    assert setting.differences["fid"].mean == pytest.approx(-18, abs=1e-3)
    *_, setting = rows([(24, 20), (8, 8)])
    assert setting.metrics["fid"] is None and setting.missing["fid"] == "1 images, first picture1: too small"


def test_a_picture_too_small_for_a_metric_is_left_out_of_every_mean(tmp_path):
    toy = Toy([(24, 20), (8, 8)])
    settings = [SamplingSettings(steps=2)]
    scores = toy.run(tmp_path, settings).scores
    small = [s for s in scores.values() if s.image == "picture1" and s.row != "sharp"]
    assert all(s.metrics["ssim"] is None and "8x8" in s.missing["ssim"] for s in small)
    for r in toy.rows(tmp_path, settings):
        if r.label != "sharp":
            row = key(settings[0]) if r.settings else r.label
            assert r.metrics["ssim"] == scores[row, "picture0"].metrics["ssim"]
            assert r.missing["ssim"].startswith("1 of 2 images, first picture1: SSIM needs 11 pixels")


def test_a_setting_that_breaks_on_one_picture_has_no_mean_and_spoils_no_other(tmp_path):
    toy = Toy([(24, 20), (24, 20)])
    settings = [SamplingSettings(steps=2), SamplingSettings(steps=5)]
    working = toy.refine

    def refine(cases, slots, progress):
        for name, setting, images, seconds in working(cases, slots, progress):
            broken = (setting.steps, name) == (5, "picture1")
            yield name, setting, images * float("nan") if broken else images, seconds

    toy.restorer = dataclasses.replace(toy.restorer, refine=refine)
    rows = toy.rows(tmp_path, settings)
    assert rows[-2].metrics["psnr"] == pytest.approx(decibels(2), abs=1e-4)
    assert rows[-1].metrics["psnr"] is None
    assert "picture1" in rows[-1].missing["psnr"] and "not finite" in rows[-1].missing["psnr"]


def test_other_errors_of_a_metric_are_not_swallowed(tmp_path):
    def broken(restored, sharp):
        raise ZeroDivisionError

    metrics = {"psnr": dataclasses.replace(METRICS["psnr"], function=broken)}
    with pytest.raises(ZeroDivisionError):
        Toy([(12, 12)]).run(tmp_path, [SamplingSettings()], metrics)


def test_pictures_of_another_program_are_a_row(tmp_path):
    toy = Toy([(24, 20), (16, 12)])

    def read(name):
        return torch.full((3, *toy.pictures[int(name[-1])].size), 110 / 255)

    journal = Journal(tmp_path, {})
    outcome = run_grid(toy.pictures, [], None, METRICS, journal, {"outputs rival": read})
    rows = summarise(outcome, [p.name for p in toy.pictures], [], METRICS, journal, outputs=["outputs rival"])
    assert [r.label for r in rows] == ["blurry", "sharp", "outputs rival"]
    assert rows[2].metrics["psnr"] == pytest.approx(decibels(10), abs=1e-4)
    assert rows[2].estimates["psnr"].n == 2 and not rows[2].differences


def test_a_setting_is_perceptual_where_it_beats_both_controls(tmp_path):
    """LPIPS is planted: the controls' falls with their strength, and the first setting's is a little lower still."""
    settings = [SamplingSettings(steps=steps) for steps in (22, 23, 24)]
    labels = dict(zip(map(key, settings), ("better", "worse", "broken"), strict=True))

    def lpips(restored, sharp):
        return (restored - sharp).abs().mean((1, 2, 3))  # about the offset in levels: sharpening changes nothing

    metrics = METRICS | {"lpips": dataclasses.replace(METRICS["ssim"], higher_is_better=False, function=lpips)}
    toy = Toy([(16, 12)] * 6)
    outcome = toy.run(tmp_path, settings, metrics)
    scores = {}
    for (row, name), score in outcome.scores.items():
        spread = 0.001 * (int(name[-1]) - 2.5)
        values = {"better": 0.05 + spread, "worse": 0.5 + spread, "broken": None}
        if row in labels:
            score = dataclasses.replace(
                score,
                metrics=score.metrics | {"lpips": values[labels[row]]},
                missing={} if values[labels[row]] else {"lpips": "not finite"},
            )
        elif row in CONTROLS:
            psnr = decibels(20) - 2 * (CONTROLS.index(row) % 5)
            score = dataclasses.replace(score, metrics=score.metrics | {"psnr": psnr, "lpips": 0.07})
        scores[row, name] = score
    rows = summarise(
        dataclasses.replace(outcome, scores=scores), [p.name for p in toy.pictures], settings, metrics, None
    )
    better, worse, broken = (row.verdict for row in rows[-3:])
    assert (better.perceptual, worse.perceptual) == ("yes", "no")
    for control in (SHARPENED, NOISED):
        assert better.differences[control].mean == pytest.approx(-0.02, abs=0.003)
        assert better.differences[control].high < 0 < worse.differences[control].low
    assert broken.perceptual is None and broken.missing == "its LPIPS is missing for an image"
    assert all(row.verdict is None for row in rows[:-3])


# Stopping and going on


def test_what_is_done_is_not_done_again(tmp_path):
    settings = [SamplingSettings(steps=2), SamplingSettings(steps=5)]
    toy = Toy([(24, 20)] * 3)
    first = toy.rows(tmp_path, settings[:1])
    count = len(toy.log)
    again = toy.rows(tmp_path, settings[:1])
    assert again == first and len(toy.log) == count
    toy.rows(tmp_path, settings)
    assert toy.log[count:] == [
        "read",
        "predict",
        "refine picture0",
        *["read", "predict", "refine picture1"],
        *["read", "predict", "refine picture2"],
    ]
    with (tmp_path / "scores_0.jsonl").open("a") as file:
        file.write('{"row": "blurry", "image": "pict')
    assert toy.rows(tmp_path, settings[:1]) == first
    assert (tmp_path / "scores_0.jsonl").read_bytes().endswith(b"}\n")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"checkpoint": "b1"}, "another checkpoint: a1 there, b1 now"),
        ({"picture": {"a": "1", "b": "3"}}, "another picture of b: 2 there, 3 now"),
        ({"picture": {"a": "1"}}, "another picture of b: 2 there, none now"),
        ({"recipe": {"psnr": "new"}}, "another recipe of psnr: old there, new now"),
        ({"seed": 1}, "another seed: 0 there, 1 now"),
    ],
)
def test_scores_of_something_else_are_refused(tmp_path, changed, said):
    facts = {"checkpoint": "a1", "picture": {"a": "1", "b": "2"}, "recipe": {"psnr": "old"}, "seed": 0}
    Journal(tmp_path, facts).add(Score("blurry", "a", 0.0, {"psnr": 1.0}, {}), {})
    Journal(tmp_path, facts)
    with pytest.raises(JournalError, match=said) as caught:
        Journal(tmp_path, facts | changed)
    assert "--overwrite true" in str(caught.value)


@pytest.mark.parametrize("processes", [2, 3])
def test_any_number_of_processes_gives_the_same(tmp_path, processes):
    settings = [SamplingSettings(steps=2), SamplingSettings(steps=5)]
    sizes = [(24, 20), (16, 12), (24, 20), (24, 20), (16, 12)]
    alone = Toy(sizes).run(tmp_path / "alone", settings).scores
    shares = []
    for rank in range(processes):
        toy = Toy(sizes)
        toy.run(tmp_path / "shared", settings, share=(rank, processes))
        shares.append(toy.log.count("predict"))
    together = Journal(tmp_path / "shared", {"recipe": {name: m.recipe for name, m in METRICS.items()}}).scores()
    strip = {place: (score.metrics, score.missing) for place, score in alone.items()}
    assert {place: (score.metrics, score.missing) for place, score in together.items()} == strip
    assert max(shares) <= -(-5 // processes) + 1


# The race: its statistics are in test_race.py


def test_a_race_drops_what_is_beaten_and_keeps_the_front(tmp_path):
    sizes = [(16, 12)] * 40
    noise = torch.Generator().manual_seed(0)
    levels = {name: torch.randn(16, 12, generator=noise) * 4 for name in (f"picture{n}" for n in range(40))}
    lpips = dataclasses.replace(
        METRICS["ssim"], higher_is_better=False, function=lambda x, y: (x - y).mean((1, 2, 3)).abs()
    )
    metrics = {"psnr": METRICS["psnr"], "lpips": lpips}
    settings = [SamplingSettings(steps=steps) for steps in range(1, 9)]

    def toy():
        made = Toy(sizes)

        def refine(cases, slots, progress):
            for name, blurry, _, chosen in cases:
                for setting in chosen:
                    # More steps: a smaller mean error (the toy's LPIPS), more noise (PSNR); the odd ones are worse.
                    n = setting.steps
                    error = (10 - n) + 3 * (n % 2) + (n + 2 * (n % 2)) * levels[name].roll(n)
                    progress(n)
                    yield name, setting, (blurry - 40 / 255 + error / 255)[None].clamp(0, 1), 0.1

        made.restorer = dataclasses.replace(made.restorer, refine=refine)
        return made

    full = toy().rows(tmp_path / "full", settings, metrics)
    racing = toy()
    outcome = racing.run(tmp_path / "race", settings, metrics, racing=True)
    rows = summarise(outcome, [p.name for p in racing.pictures], settings, metrics, None)
    assert [r.label for r in pareto_front(rows)] == [r.label for r in pareto_front(full)]
    assert len(pareto_front(rows)) >= 3 and outcome.steps < 0.8 * outcome.steps_in_full
    for row in rows:
        if row.dropped:
            assert row.images < 40 and row.dropped.startswith(f"after {row.images} of 40 images: beaten by ")
            assert row not in pareto_front(rows)
    again = toy().rows(tmp_path / "race", settings, metrics, racing=True)
    assert again == rows
    finished = toy().rows(tmp_path / "full", settings, metrics, racing=True)
    assert [dataclasses.replace(row, seconds=0) for row in finished] == [
        dataclasses.replace(row, seconds=0) for row in rows
    ], "a dropped setting has the pictures that it ran on, though the journal knows more"


def test_a_race_that_the_prediction_wins_leaves_settings_for_presets(tmp_path):
    settings = [SamplingSettings(steps=steps) for steps in range(1, 9)]
    metrics = METRICS | {"lpips": dataclasses.replace(METRICS["ssim"], higher_is_better=False)}
    toy = Toy([(16, 12)] * 40)
    journal = Journal(tmp_path / "race", {"recipe": {name: m.recipe for name, m in metrics.items()}})
    loss = {"predictor": 0, "blurry": 5, "sharp": 9} | {key(setting): setting.steps for setting in settings}
    for number, row in itertools.product(range(40), loss):
        worse = loss[row] * (1 + 0.1 * (number % 4))
        values = {"psnr": 30 - number % 7 - worse, "ssim": 0.5, "lpips": 0.1 + 0.01 * worse}
        journal.add(Score(row, f"picture{number}", 0.0, values, {}), {})
    outcome = toy.run(tmp_path / "race", settings, metrics, racing=True)
    rows = summarise(outcome, [p.name for p in toy.pictures], settings, metrics, None)
    assert [row.label for row in pareto_front(rows)] == ["predictor"]
    assert sorted(outcome.dropped) == [f"ddim {steps}" for steps in range(2, 9)]
    assert {chosen.label for chosen in choose_presets(rows).values()} == {"ddim 1"}
    assert outcome.steps < outcome.steps_in_full / 3


# The front


def test_pareto_front_is_what_nothing_beats():
    rows = [
        row("blurry", 25.0, 0.30),
        row("predictor", 27.0, 0.40),
        row("front", 26.0, 0.25),
        row("beaten", 25.9, 0.26),
        row("equal on one axis", 26.0, 0.27),
        row("twin", 26.0, 0.25),
        row("unscored", None, None),
        row("sharpened 0.6", 26.5, 0.2),
    ]
    assert [r.label for r in pareto_front(rows)] == ["front", "twin", "predictor"]
    assert best_sample(rows).label == "front"


def test_without_lpips_the_front_is_of_psnr_and_ssim():
    rows = [row("blurry", 25.0, ssim=0.9), row("predictor", 27.0, ssim=0.6), row("a", 26.0, ssim=0.7), row("b", 25.5)]
    assert perception_metric(rows) == "ssim"
    assert [r.label for r in pareto_front(rows)] == ["blurry", "a", "predictor"]
    assert best_sample(rows).label == "a"
    assert best_sample(rows[:2]) is None


def test_presets_are_the_ends_and_the_knee():
    made = [
        row("predictor", 30.0, 0.05),
        row("plain", 27.0, 0.40),
        row("knee", 26.5, 0.28),
        row("middle", 25.5, 0.26),
        row("vivid", 25.0, 0.25),
        row("beaten", 24.0, 0.30),
    ]
    assert {name: chosen.label for name, chosen in choose_presets(made).items()} == {
        "faithful": "plain",
        "balanced": "knee",
        "vivid": "vivid",
    }
    assert {chosen.label for chosen in choose_presets(made[:2]).values()} == {"plain"}
    assert choose_presets(made[:1]) == {}


# The files


def test_files_hold_the_rows(tmp_path):
    settings = [SamplingSettings("ddim", steps=5), SamplingSettings("ddpm", steps=5)]
    keys = ["blurry", "predictor", *map(key, settings)]
    numbers = [(25.0, 0.5), (float("inf"), 1.0), (26.0, 0.7), (24.0, 0.4)]
    metrics = make_metrics(["psnr", "ssim"]) | {"lpips": dataclasses.replace(METRICS["ssim"], reason="no weights")}
    scores = {
        (row, image): Score(row, image, 0.25, {"psnr": p + shift, "ssim": s}, {})
        for row, (p, s) in zip(keys, numbers, strict=True)
        for image, shift in (("a/1", 0.0), ("b", 1.0))
    }
    outcome = Outcome(scores, {"ddpm 5": "after 2 of 4 images: beaten by ddim 5"}, 20, 40)
    rows = summarise(outcome, ["a/1", "b"], settings, METRICS, None)
    paths = write_results(tmp_path, rows, outcome, ["a/1", "b"], settings, metrics, {"vivid": rows[2]}, {"seed": 3})
    assert sorted(tmp_path.iterdir()) == sorted(paths)

    table = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [line["setting"] for line in table] == ["blurry", "predictor", "ddim 5", "ddpm 5"]
    assert {line["perceptual"] for line in table} == {line["lpips_over_noised_high"] for line in table} == {""}
    assert (table[0]["sampler"], table[0]["steps"]) == ("", "")
    assert (table[3]["sampler"], table[3]["steps"], table[3]["psnr"]) == ("ddpm", "5", "24.5")
    assert (table[2]["preset"], table[2]["front"], table[3]["front"]) == ("vivid", "False", "False")
    assert (table[2]["psnr_low"], table[2]["psnr_high"], table[2]["psnr_n"]) == ("26", "27", "2")
    assert table[1]["psnr"] == "inf" and table[1]["psnr_low"] == ""
    assert {line["lpips"] for line in table} == {""}
    assert pq.read_table(tmp_path / "results.parquet").to_pylist()[3]["dropped"].startswith("after 2 of 4")
    each = pq.read_table(tmp_path / "per_image.parquet").to_pylist()
    assert each[4] == {
        "setting": "ddim 5",
        "image": "a/1",
        "seconds": 0.25,
        "psnr": 26.0,
        "ssim": 0.7,
        "lpips": None,
        "missing": None,
    }
    document = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert document["seed"] == 3
    assert [r["metrics"]["psnr"]["mean"] for r in document["rows"]] == [25.5, "inf", 26.5, 24.5]
    assert [r["front"] for r in document["rows"]] == [False, True, False, False]
    assert document["rows"][2]["fields"]["steps"] == 5
    assert document["rows"][2]["metrics"]["lpips"]["missing"] == "no weights"
    assert document["rows"][2]["verdict"] == {"perceptual": None, "differences": {}, "missing": "LPIPS is missing"}
    assert document["rows"][1]["verdict"] is None and "Gaussian noise" in document["controls"]["recipes"]["noised"]
    assert document["rows"][2]["metrics"]["ssim"]["difference"] == pytest.approx(-0.3)
    assert document["cost"] == {"denoising_steps": 20, "denoising_steps_in_full": 40}


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("earlier")
    with pytest.raises(MetricError), whole_file(path) as part:
        part.write_text("half")
        raise MetricError("stopped")
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_the_table_is_sorted_and_marks_the_front():
    lines = format_table(
        [row("blurry", 25.0, 0.3), row("predictor", 27.0, 0.4), row("ddim 5", 24.0, None)]
    ).splitlines()
    assert [line[:11].strip() for line in lines[1:4]] == ["* blurry", "* predictor", "ddim 5"]
    assert lines[3].split()[2:8] == ["24.00", "-", "0.5000", "-", "-", "-"]
