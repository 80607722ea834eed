"""The curve over few steps with tiny checkpoints: its numbers, its files, and that it goes on where it stopped."""

import json

import pytest
import torch

from benchmarks import few_steps
from data import images
from evaluation.metrics import psnr
from models.checkpoints import load_pipeline
from models.settings import SamplingSettings
from tests.test_evaluate import place  # noqa: F401 (a fixture)

pytestmark = pytest.mark.xdist_group("few steps")  # which compare one set of results


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for the results of few settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(few_steps, "STEPS", (1, 3))
        yield tmp_path_factory.mktemp("few_steps")


def run(folder, place, out="out"):  # noqa: F811
    command = [str(place / "checkpoint"), "--data", f"tiny={place / 'data'}", "--work", str(folder / "work")]
    few_steps.cli([*command, "--output", str(folder / out), "--device", "cpu", "--precision", "fp32", "--start", "2"])
    return json.loads((folder / out / "few_steps.json").read_text())


@pytest.fixture(scope="module")
def found(place, folder):  # noqa: F811
    """The contents of few_steps.json."""
    return run(folder, place)


@pytest.mark.filterwarnings("ignore")
def test_the_rows_are_those_of_the_pipelines(place, folder, found):  # noqa: F811
    rows = {row["row"]: row for row in found["data"]["tiny"]["rows"]}
    sampled = ["ddim 1", "ddim 3", "ddim 1 eta=1.0", "ddim 3 eta=1.0", "dpmsolver++ 1", "dpmsolver++ 3"]
    assert list(rows)[:2] == ["blurry", "predictor"] and list(rows)[-6:] == sampled
    assert {"sharpened 0.3", "noised 2"} < set(rows) and found["data"]["tiny"]["images"] == 3
    assert found["start"] == 2 and found["commit"] and "AlexNet" in found["metrics"]["lpips"]

    pairs = [[images.read(place / "data" / side / f"{name}.png") for side in ("blur", "sharp")] for name in ("a", "b")]
    pairs.append([images.read(place / "data" / side / "tiny.png") for side in ("blur", "sharp")])
    pipeline = load_pipeline(str(place / "checkpoint"), precision="fp32")
    for row in ("ddim 3 eta=1.0", "dpmsolver++ 3"):
        settings = SamplingSettings(**rows[row]["fields"])
        assert settings.start == 2
        scores, spreads = [], []
        for name, (blurry, sharp) in zip(("a", "b", "tiny"), pairs, strict=True):
            predicted = pipeline.predict(blurry[None])
            [drawn] = pipeline.refine_shared(blurry[None], predicted, [settings], names=[name])
            scores.append(psnr(drawn.images, sharp.expand_as(drawn.images)))
            spreads.append(255 * drawn.std.mean().item())
        means = torch.stack(scores).mean(0)  # of each sample over the images
        assert rows[row]["psnr"] == pytest.approx(means.mean().item(), abs=1e-3)
        assert rows[row]["psnr_spread"] == pytest.approx(means.std().item(), abs=1e-3)
        assert rows[row]["diversity"] == pytest.approx(sum(spreads) / 3, rel=1e-3)
        assert rows[row]["seconds"] > rows["predictor"]["seconds"] > 0
    assert rows["predictor"]["psnr_spread"] is None and "diversity" not in rows["predictor"]
    # The smallest image is too small for LPIPS.
    assert rows["ddim 3"]["lpips"] is None and rows["ddim 3"]["perceptual"] is None


def test_they_are_shown_and_kept(place, folder, found, capsys):  # noqa: F811
    rows = {row["row"]: row for row in found["data"]["tiny"]["rows"]}
    table = (folder / "out" / "few_steps.md").read_text()
    assert table.count("\n| ddim 3 | 3 | ") == 1 and "tiny, 3 images:" in table
    assert (folder / "out" / "few_steps.png").read_bytes().startswith(b"\x89PNG")

    # What was done is not done again; what is lacking is, to the same numbers.
    journal = folder / "work" / "tiny" / "journal" / "scores_0.jsonl"
    whole = journal.read_bytes()
    assert run(folder, place)["data"] == found["data"]
    assert journal.read_bytes() == whole
    assert table.rstrip().rpartition("\n\n")[0] in capsys.readouterr().out
    journal.write_bytes(b"\n".join(whole.split(b"\n")[:-6]) + b'\n{"torn')
    again = {row["row"]: row for row in run(folder, place)["data"]["tiny"]["rows"]}
    numbers = [*few_steps.SCORES, *(f"{metric}_spread" for metric in few_steps.SCORES), "diversity"]
    for row, values in rows.items():
        known = {name: values[name] for name in numbers if values.get(name) is not None}
        assert {name: again[row][name] for name in known} == pytest.approx(known, rel=1e-4)


def test_settings_end_at_the_most_steps():
    diffusion = few_steps.settings_of(10.0, "training", 1.0, 1)
    assert [(s.sampler, s.steps, s.start) for s in diffusion] == [(s, 1, 10.0) for s in ("ddim", "ddim", "dpmsolver++")]


def test_what_cannot_be_compared_is_one_sentence(place, folder):  # noqa: F811
    with pytest.raises(ValueError, match="two datasets are called data: name them, as --data NAME="):
        command = [str(place / "checkpoint"), "--data", str(place / "data"), str(place / "data")]
        few_steps.cli([*command, "--output", str(folder / "wrong")])
    assert not (folder / "wrong").exists()
