"""Reading grids, and the names of their settings."""

import math
from dataclasses import fields
from pathlib import Path

import pytest

from deblur.cli import UsageError
from deblur.evaluation.grid import Row, read_grid, rows_of
from deblur.evaluation.scoring import steps_of
from deblur.models.schedules import linear
from deblur.settings import SamplingSettings, sharing_samples
from tests.conftest import ROOT


def read(tmp_path: Path, text: str) -> list[SamplingSettings]:
    (tmp_path / "grid.yaml").write_text(text)
    return read_grid(tmp_path / "grid.yaml")


def steps_together(settings: list[SamplingSettings]) -> int:
    """Denoiser passes per image."""
    return sum(map(steps_of, sharing_samples(settings)))


def test_a_grid_is_the_product_and_the_listed_settings_each_once(tmp_path):
    listed = "settings: [{sampler: unipc, steps: 3, blend: 1}, {sampler: ddim, steps: 5, schedule: cosine}]"
    settings = read(tmp_path, f"product: {{sampler: [ddim, ddpm], steps: [5, 10], schedule: cosine}}\n{listed}")
    expected = [SamplingSettings(s, "cosine", n) for s in ("ddim", "ddpm") for n in (5, 10)]
    assert settings == [*expected, SamplingSettings("unipc", steps=3)]


def test_several_products_and_yaml_s_textual_exponents(tmp_path):
    settings = read(tmp_path, "product: [{steps: 50, beta_start: 1e-6}, {steps: [20, 30], sampler: ddpm}]")
    assert [s.steps for s in settings] == [50, 20, 30]
    assert settings[0].beta_start == 1e-6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("product: {steps: {from: 1, to: 5}}", "steps is a whole number, not {'from': 1, 'to': 5}"),
        ("product: {stepz: [5]}", "unknown field 'stepz'; known are sampler, schedule, steps"),
        ("product: {sampler: [ddim, euler]}", "sampler is one of ddpm, ddim, dpmsolver++, unipc, not euler"),
        ("product: {steps: [5, 0]}", "steps must be a whole number of 1 or more, got 0"),
        ("product: {steps: 2.5}", "steps is a whole number, not 2.5"),
        ("product: {steps: true}", "steps is a whole number, not True"),
        ("product: {beta_end: much}", "beta_end is a number, not much"),
        ("product: {beta_end: .nan}", "beta_end must be a finite number, got nan"),
        ("product: {average: 1}", "average is true or false, not 1"),
        ("settings: [{steps: [5, 10]}]", "steps is a whole number, not [5, 10]"),
        ("product: [5]", "'product' must hold fields with their values"),
        ("settings: {steps: 5}", "'settings' must hold fields with their values"),
        ("products: {steps: 5}", "must hold the keys 'product' or 'settings' and no others"),
        ("- 5", "holds no keys with values"),
        ("", "holds no keys with values"),
        ("product: {steps: []}", "holds no settings"),
        ("product: {steps: [5", "is not YAML"),
    ],
)
def test_a_wrong_grid_is_one_sentence_with_the_file(tmp_path, text, said):
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    found = str(caught.value)
    assert f"Grid file {tmp_path / 'grid.yaml'}" in found
    assert said in found
    assert "\n" not in found


def test_the_grid_files_of_the_repository():
    paper = read_grid(ROOT / "configs" / "grid" / "paper.yaml")
    plain = [s for s in paper if s.num_samples == 1 and s.blend == 1]
    assert sorted({s.steps for s in plain}) == [10, 20, 30, 50, 100, 200, 300, 500]
    ends = (0.1, 0.01, 0.001, math.exp(-10))
    for number, setting in enumerate(plain):
        assert (setting.sampler, setting.schedule) == ("ddpm", "linear")
        end = linear(setting.steps, setting.beta_start, setting.beta_end)[0].item()
        assert end == pytest.approx(ends[number % 4], rel=0.03)
    assert (len(plain), len(paper), steps_together(plain), steps_together(paper)) == (32, 88, 4840, 5680)
    for path in (ROOT / "configs" / "grid").iterdir():
        grid = read_grid(path)
        assert len(set(labels(*grid))) == len(grid), path


def labels(*settings: SamplingSettings) -> list[str]:
    return [row.label for row in rows_of(settings)]


def test_labels_are_unique_and_tell_what_differs():
    assert labels(*(SamplingSettings("ddim", steps=5, eta=eta) for eta in (0.0, 1.0))) == ["ddim 5", "ddim 5 eta=1.0"]
    several = [SamplingSettings(num_samples=4, average=average) for average in (False, True)]
    assert labels(*several) == ["ddim 20", "ddim 20 average"]
    assert labels(SamplingSettings("ddpm", "cosine", 9), SamplingSettings()) == ["ddpm 9 cosine", "ddim 20 training"]


OTHER = {"sampler": "unipc", "schedule": "cosine", "average": True, "steps": 7, "num_samples": 3, "start": 0.5}
OTHER |= {"stages": 2}


@pytest.mark.parametrize("field", [field.name for field in fields(SamplingSettings)])
def test_every_field_makes_a_row_of_its_own_except_where_nothing_is_sampled(field):
    changed = {field: OTHER.get(field, 0.25)}
    rows = rows_of([SamplingSettings(), SamplingSettings(**changed)])
    assert len({row.label for row in rows}) == len({row.key for row in rows}) == 2
    assert [row.settings for row in rows] == [SamplingSettings(), SamplingSettings(**changed)]
    alone = [SamplingSettings(blend=0.0), SamplingSettings(**changed | {"blend": 0.0})]
    kept = []
    if field in ("keep_sharp", "stages"):  # which change the prediction, too
        kept = [(f"blend 0 {field}={changed[field]:g}", alone[1])]
    assert [(row.label, row.settings) for row in rows_of(alone)] == [("blend 0", alone[0]), *kept]


SHARING = {"num_samples", "average", "blend", "keep_sharp"}


@pytest.mark.parametrize("field", [field.name for field in fields(SamplingSettings)])
def test_settings_share_samples_unless_they_sample_differently(field):
    changed = {field: OTHER.get(field, 0.25)}
    pair = [SamplingSettings(), SamplingSettings(**changed)]
    assert sharing_samples(pair) == ([pair] if field in SHARING else [[pair[0]], [pair[1]]])
    alone = [SamplingSettings(blend=0.0), SamplingSettings(**changed | {"blend": 0.0})]
    assert sharing_samples(alone) == ([[alone[0]], [alone[1]]] if field == "stages" else [alone])


def test_the_key_of_a_setting_does_not_depend_on_the_grid():
    setting = SamplingSettings(steps=5, blend=0.5)
    [alone] = rows_of([setting])
    among = rows_of([SamplingSettings(steps=5), setting])[1]
    assert (alone.label, among.label) == ("ddim 5", "ddim 5 blend=0.5")
    assert alone.key == among.key
    assert Row("blurry").key == "blurry"
    assert Row("a/b c=1").file_name == "a_b_c=1"
