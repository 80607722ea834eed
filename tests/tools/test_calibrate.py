"""The expected error, calibrated: closed forms of the curve, the table, what is stored, and what refuses."""

import json
import math

import pytest
import tifffile
import torch
from diffusers import DDPMScheduler

import sample
from deblur.calibration import ErrorCurve
from deblur.checkpoints import checkpoint_hash
from deblur.data.files import images
from deblur.hub import CheckpointError
from deblur.models.networks.base import IdentityPredictor
from deblur.models.networks.unet import UNetPredictor
from deblur.pipeline import DeblurPipeline, load_pipeline
from deblur.tools import calibrate
from tests.tiny import tiny_pipeline

pytestmark = pytest.mark.commands


class Knowing(IdentityPredictor):
    """Returns the blurry image, and knows that the brighter half is 20 levels too bright."""

    def forward(self, blurry):
        error = torch.where(blurry[:, :1] > -0.2 + 0.01, 40 / 255, 2 / 255)
        return blurry, error.log()


def test_a_predictor_that_knows_its_error_is_calibrated():
    sharp = torch.full((3, 32, 40), 0.4)
    blurry = sharp.clone()
    blurry[:, :, 16:] += 20 / 255
    scheduler = DDPMScheduler(num_train_timesteps=1, trained_betas=[0.5])
    knowing = DeblurPipeline(Knowing(), None, scheduler)
    rows = calibrate.fifths(*calibrate.errors(knowing, [(blurry, sharp)])[0], None)
    assert [round(row.actual) for row in rows] == [0, 0, 20, 20, 20]
    assert rows[0].covered is None
    assert [round(row.expected) for row in rows] == [1, 1, 20, 20, 20]
    assert rows[4].ratio == pytest.approx(1, rel=1e-4)
    [doubled] = calibrate.errors(knowing, [(blurry, sharp - 20 / 255)])
    assert calibrate.fifths(*doubled, None)[4].ratio == pytest.approx(2, rel=1e-4)
    curve = ErrorCurve.fit(*doubled)
    rows = [(round(row.actual), round(row.ratio, 4)) for row in calibrate.fifths(*doubled, curve)]
    assert rows == [*2 * [(20, 1.0)], *3 * [(40, 1.0)]]
    with pytest.raises(ValueError, match="no size head"):
        calibrate.errors(DeblurPipeline(IdentityPredictor(), None, scheduler), [(blurry, sharp)])


def test_the_curve_is_fitted_to_known_errors():
    """Errors that are exponential with mean 3 e^0.5: their 90 % quantile is the mean times ln 10."""
    generator = torch.Generator().manual_seed(0)
    estimate = torch.rand(400_000, generator=generator) * 50 + 1
    mean = 3 * estimate.sqrt()
    actual = -mean * torch.rand(400_000, generator=generator).log()
    curve = ErrorCurve.fit(estimate, actual)
    assert list(curve.mean) == sorted(set(curve.mean))
    assert 20 < len(curve.mean) <= 32
    tested = torch.tensor([3.0, 10.0, 25.0, 48.0])
    expected = 255 * curve.expected(tested / 255)
    assert torch.allclose(expected, 3 * tested.sqrt(), rtol=0.05)
    assert torch.allclose(255 * curve.bounding(expected / 255), expected * math.log(10), rtol=0.05)
    constant = ErrorCurve.fit(estimate, torch.full_like(actual, 7.0))
    assert len(constant.mean) == 1
    assert constant.mean[0] == constant.bound[0] == pytest.approx(7)
    falling = ErrorCurve.fit(estimate, 60 - estimate)  # isotonic: a constant is all that rises
    assert len(falling.mean) == 1


def test_between_the_points_it_is_linear_and_beyond_them_proportional():
    curve = ErrorCurve([2.0, 4.0], [1.0, 5.0], [3.0, 9.0])
    levels = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 8.0]])
    assert torch.allclose(255 * curve.expected(levels / 255), torch.tensor([[0.0, 0.5, 1.0], [3.0, 5.0, 10.0]]))
    assert torch.allclose(255 * curve.bounding(levels / 255), torch.tensor([[0.0, 3.0, 4.5], [6.0, 7.5, 14.4]]))


@pytest.fixture
def sized(tmp_path):
    """A folder with a checkpoint whose predictor has a size head, and six pairs."""
    torch.manual_seed(0)
    tiny_pipeline(UNetPredictor(8, (1, 2), 1, size_head=True)).save_pretrained(tmp_path / "sized")
    for k in range(6):
        sharp = torch.rand(3, 24, 20, generator=torch.Generator().manual_seed(k))
        images.write(tmp_path / "pairs" / "sharp" / f"{k}.png", sharp)
        images.write(tmp_path / "pairs" / "blur" / f"{k}.png", 0.5 * sharp + 0.25)
    return tmp_path


def test_a_stored_curve_maps_the_expected_error_everywhere(sized, capsys):
    checkpoint, pairs = str(sized / "sized"), str(sized / "pairs")
    blurry = images.read(sized / "pairs" / "blur" / "0.png")[None]
    before, hashed = load_pipeline(checkpoint)(blurry, output_type="pt"), checkpoint_hash(checkpoint)
    calibrate.main([checkpoint, pairs, "--save", "true"])
    said, pipeline = capsys.readouterr().out, load_pipeline(checkpoint)
    after = pipeline(blurry, output_type="pt")
    assert f"is stored in {checkpoint}" in said
    assert checkpoint_hash(checkpoint) != hashed
    assert torch.equal(after.images, before.images)
    assert torch.equal(after.expected_error, pipeline.error_curve.expected(before.expected_error))
    calibrate.main([checkpoint, pairs])  # the table of the stored curve, which is the one just printed
    assert capsys.readouterr().out.splitlines() == said.splitlines()[:-1]
    for line in said.splitlines()[1:6]:
        ratio, covered = map(float, line.split()[3:])
        assert 0.7 < ratio < 1.4
        assert 0.8 < covered <= 1

    command = [str(sized / "pairs" / "blur" / "0.png"), "--checkpoint", checkpoint, "--output", str(sized / "out")]
    assert sample.main([*command, "--uncertainty", "true", "--error_bound", "true"]) == 0
    written = {kind: torch.from_numpy(tifffile.imread(sized / "out" / f"0_{kind}.tif")) for kind in ("error", "bound")}
    assert torch.allclose(written["error"][..., 0], after.expected_error[0, 0])
    assert torch.allclose(written["bound"][..., 0], pipeline.error_curve.bounding(after.expected_error)[0, 0])


def test_what_cannot_be_calibrated_is_said(sized, capsys):
    image, out = str(sized / "pairs" / "blur" / "0.png"), ["--output", str(sized / "out")]
    assert sample.main([image, "--checkpoint", str(sized / "sized"), *out, "--error_bound", "true"]) == 2
    assert "--error_bound needs a checkpoint whose expected error is calibrated" in capsys.readouterr().err
    with pytest.raises(ValueError, match="someone/model is no exported folder"):
        calibrate.main(["someone/model", str(sized / "pairs"), "--save", "true"])
    index = sized / "sized" / "model_index.json"
    plain = json.loads(index.read_text())
    for curve in (
        "rising",
        {"estimate": [1.0]},
        {"estimate": [1.0, 2.0], "mean": [2.0, 1.0], "bound": [3.0, 3.0]},
        {"estimate": [], "mean": [], "bound": []},
        {"estimate": ["1"], "mean": ["1"], "bound": ["1"]},
        {"estimate": [1.0], "mean": [-1.0], "bound": [1.0]},
    ):
        index.write_text(json.dumps(plain | {"error_curve": curve}))
        with pytest.raises(CheckpointError, match="error_curve that is none"):
            load_pipeline(str(sized / "sized"))
