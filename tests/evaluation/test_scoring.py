"""Running the settings of a grid on a problem with known scores: batches, shared samples, stopping, processes."""

import dataclasses
import math

import pytest
import torch

from deblur.data.files import images
from deblur.evaluation.grid import CONTROLS, SHARPENED, rows_of
from deblur.evaluation.report import keep_examples
from deblur.evaluation.scoring import batch_size_for, score_images
from deblur.evaluation.summary import summarise
from deblur.settings import SamplingSettings
from tests.evaluation.toy import METRICS, Toy, decibels, score_of, summary


def labels_of(settings) -> list[str]:
    return [row.label for row in rows_of(settings)]


def test_every_setting_gets_its_known_score_and_the_predictor_runs_once_per_image(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("deblur.progress.SECONDS_BETWEEN_LINES", 0)  # of a log, which shows the last step, too
    toy = Toy([(24, 20), (16, 12)], pause=0.002)
    settings = [SamplingSettings(steps=2), SamplingSettings(steps=5), SamplingSettings(steps=3, num_samples=2)]
    found = toy.summary(tmp_path, settings)
    rows = found.rows
    assert toy.log[:5] == ["read", "predict", *["refine image1"] * 3], "images of one size together"
    assert toy.log[5:] == ["read", "predict", *["refine image0"] * 3]
    labels = ["blurry", "predictor", "sharp", *labels_of(settings)]
    assert [r.label for r in rows] == [*labels[:3], *CONTROLS, *labels[3:]]
    controls, rows = rows[3:-3], [*rows[:3], *rows[-3:]]
    assert all(r.seconds == rows[1].seconds and r.images == 2 and r.verdict is None for r in controls)
    for control in controls:  # what is flat does not get sharper, and the change of 20 levels is the same everywhere
        sharpened = control.label.startswith(SHARPENED)
        level = 0 if sharpened else float(control.label.split()[1])
        assert control.means["psnr"] == pytest.approx(decibels(math.hypot(20, level)), abs=1e-4 if sharpened else 0.5)
    expected = [decibels(40), decibels(20), None, decibels(2), decibels(5), (decibels(3) + decibels(4)) / 2]
    assert [r.means.get("psnr") for r in rows] == [None if e is None else pytest.approx(e, abs=1e-4) for e in expected]
    assert [r.images for r in rows] == [2] * 6
    assert rows[0].seconds == 0
    assert 0 < rows[1].seconds < 0.5
    for row, steps in zip(rows[3:], (2, 5, 6), strict=True):
        assert row.seconds > rows[1].seconds + 0.002 * steps, "it holds the predictor's"
    assert rows[3].differences["psnr"].mean == pytest.approx(decibels(2) - decibels(20), abs=1e-4)
    assert rows[0].differences["psnr"].n == 2
    assert not rows[1].differences
    steps = 2 * (2 + 5 + 2 * 3)
    assert f"{steps}/{steps}" in capsys.readouterr().err
    assert found.steps == steps


def test_settings_that_share_samples_share_their_steps_and_count_their_seconds(tmp_path):
    several = {"num_samples": 4}, {}, {"blend": 0.5}, {"num_samples": 2, "average": True}
    settings = [*(SamplingSettings(steps=3, **own) for own in several), SamplingSettings(steps=2)]
    settings += [SamplingSettings(blend=0.0), SamplingSettings(blend=0.0, steps=7, num_samples=3)]
    toy = Toy([(16, 12)], pause=0.005)
    found = toy.summary(tmp_path, settings)
    assert toy.log == ["read", "predict", *["refine image0"] * 3]
    assert found.steps == 3 * 4 + 2
    seconds = {row.label: row.seconds for row in found.rows}
    before = seconds["predictor"]
    four, one, blended, two = (seconds[label] - before for label in labels_of(settings)[:4])
    assert four > 12 * 0.005
    assert (one, blended, two) == (pytest.approx(four / 4), pytest.approx(four / 4), pytest.approx(four / 2))


def test_of_several_samples_the_first_is_kept_as_the_row_s_image(tmp_path):
    settings = [SamplingSettings(steps=4, num_samples=3)]
    plan = dataclasses.replace(Toy([(24, 20)]).plan(tmp_path, settings), keeps_images=True)
    score_images(plan)
    [row] = plan.settings
    assert (images.read(plan.file(row, "image0")) * 255).unique().tolist() == [pytest.approx(104)]


def test_images_of_one_size_are_restored_together(tmp_path):
    sizes = [(24, 20), (16, 12), (24, 20), (24, 20), (16, 12)]
    settings = [SamplingSettings(steps=2), SamplingSettings(steps=5, num_samples=3)]
    toy = Toy(sizes, batch_size=2)
    alone, together = Toy(sizes).plan(tmp_path / "1", settings), toy.plan(tmp_path / "2", settings)
    summary(alone)
    summary(together)
    batches = [entry for entry in toy.log if entry.startswith("refine")]
    assert batches == [f"refine {names}" for names in ("image1 image4", "image0 image2", "image3") for _ in settings]
    one, two = alone.journal.scores(), together.journal.scores()
    assert one.keys() == two.keys()
    for place, score in one.items():
        assert score.metrics == pytest.approx(two[place].metrics, abs=1e-5), place


def test_a_batch_fills_the_device():
    assert batch_size_for("cpu", (64, 64)) == 16
    assert batch_size_for("cpu", (720, 1280)) == 1
    assert batch_size_for("cuda", (720, 1280)) == 4
    assert batch_size_for("cuda", (8, 8)) == 32


def test_an_image_too_small_for_a_metric_is_omitted_from_every_mean(tmp_path):
    plan = Toy([(24, 20), (8, 8)]).plan(tmp_path, [SamplingSettings(steps=2)])
    rows = summary(plan).rows
    small = [s for s in plan.journal.scores().values() if s.image == "image1" and s.row != "sharp"]
    assert small
    assert all(s.metrics["ssim"] is None and "8x8" in s.missing["ssim"] for s in small)
    for row in rows:
        if row.label != "sharp":
            assert row.means.get("ssim") == score_of(plan, row.label, "image0").metrics["ssim"]
            assert (row.estimates["ssim"].n, row.estimates["psnr"].n) == (1, 2)
            assert row.missing["ssim"].startswith("1 of 2 images, first image1: SSIM needs 11 pixels")


def test_a_setting_that_breaks_on_one_image_has_no_mean_and_spoils_no_other(tmp_path):
    class Breaking(Toy):
        def images_of(self, prediction, setting):
            images = super().images_of(prediction, setting)
            return images * float("nan") if (setting.steps, self.names) == (5, ["image1"]) else images

    plan = Breaking([(24, 20)] * 2).plan(tmp_path, [SamplingSettings(steps=2), SamplingSettings(steps=5)])
    rows = summary(dataclasses.replace(plan, keeps_images=True)).rows
    assert rows[-2].means.get("psnr") == pytest.approx(decibels(2), abs=1e-4)
    assert rows[-1].means.get("psnr") is None
    assert "image1" in rows[-1].missing["psnr"]
    assert "not finite" in rows[-1].missing["psnr"]


def test_other_errors_of_a_metric_are_not_swallowed(tmp_path):
    def broken(restored, sharp):
        raise ZeroDivisionError

    metrics = {"psnr": dataclasses.replace(METRICS["psnr"], function=broken)}
    with pytest.raises(ZeroDivisionError):
        Toy([(12, 12)]).rows(tmp_path, [SamplingSettings()], metrics)


def test_images_of_another_program_are_a_row(tmp_path):
    toy, files = Toy([(24, 20), (16, 12)]), {}
    for image in toy.images:
        files[image.name] = tmp_path / f"{image.name}.png"
        images.write(files[image.name], torch.full((3, *image.size), 110 / 255))
    plan = dataclasses.replace(toy.plan(tmp_path, []), pipeline=None, outputs={"outputs other": files})
    found = summary(plan)
    assert [r.label for r in found.rows] == ["blurry", "sharp", "outputs other"]
    assert found.rows[2].means["psnr"] == pytest.approx(decibels(10), abs=1e-4)
    assert found.rows[2].estimates["psnr"].n == 2
    assert not found.rows[2].differences
    keep_examples(plan, found, [found.typical])
    [example] = found.examples
    assert images.read(tmp_path / example.files["restored"]).mean().item() == pytest.approx(110 / 255)


# Stopping and resuming


def test_what_is_done_is_not_done_again(tmp_path):
    settings, toy = [SamplingSettings(steps=2), SamplingSettings(steps=5)], Toy([(24, 20)] * 3)
    first, count = toy.rows(tmp_path, settings[:1]), len(toy.log)
    again = toy.rows(tmp_path, settings[:1])
    assert again == first
    assert len(toy.log) == count
    toy.rows(tmp_path, settings)
    assert toy.log[count:] == [done for at in range(3) for done in ("read", "predict", f"refine image{at}")]
    with (tmp_path / "scores_0.jsonl").open("a") as file:
        file.write('{"row": "blurry", "image": "ima')
    assert toy.rows(tmp_path, settings[:1]) == first
    assert (tmp_path / "scores_0.jsonl").read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(("stages", "offset"), [(None, 3), (1, 8)])
def test_examples_are_what_was_scored_and_are_restored_again_only_by_a_later_run(tmp_path, kept, stages, offset):
    """A Toy's images of one stage are off by 5 levels more, and a setting of 3 steps by 3."""
    plan = Toy([(24, 24)]).plan(tmp_path, [SamplingSettings(steps=3, stages=stages)])
    score_images(plan)
    if not kept:
        plan = dataclasses.replace(plan, kept={})
    found, count = summarise(plan), len(plan.pipeline.log)
    [row] = found.settings
    assert row.means["psnr"] == pytest.approx(decibels(offset))
    keep_examples(plan, found, [])
    [example] = found.examples
    restored, prediction = (images.read(tmp_path / example.files[kind]) for kind in ("restored", "predictor"))
    assert restored.mean().item() == pytest.approx((100 + offset) / 255)
    assert prediction.mean().item() == pytest.approx(120 / 255)
    again = [] if kept else ["predict", *["predict"] * (stages is not None), "refine image0"]
    assert plan.pipeline.log[count:] == ["read", *again]
