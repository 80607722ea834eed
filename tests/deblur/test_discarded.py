"""Where a prediction is no image's, the image is kept, and that is said."""

import pytest
import torch
from PIL import Image

import sample
from deblur.data.files import images
from deblur.models.networks.unet import UNetPredictor
from deblur.pipeline import Area
from deblur.settings import SamplingSettings
from tests.tiny import tiny_pipeline

WHOLE_SAMPLE = SamplingSettings(steps=1, blend=1.0, keep_sharp=0.0)


class Glitching(UNetPredictor):
    """A predictor that is far out of range where the image is pure green."""

    value = 9.0

    def forward(self, blurry):
        green = (blurry[:, 1:2] - blurry[:, :1] - blurry[:, 2:]) > 2.9
        x_init, log_size = super().forward(blurry)
        return x_init.where(~green, self.value), log_size.where(~green, self.value)


def pipeline(kind):
    torch.manual_seed(0)
    made = tiny_pipeline(kind(8, (1, 2), 1, size_head=True))
    made.register_to_config(scale_kind="learned")
    return made


def photograph(height, width):
    values = torch.randint(20, 220, (1, 3, height, width), generator=torch.Generator().manual_seed(0)) / 255
    values[..., 40:44, 60:70] = torch.tensor([0.0, 1.0, 0.0]).view(3, 1, 1)
    return values


@pytest.mark.parametrize("value", [9.0, -9.0, float("nan")])
def test_an_image_is_kept_around_what_leaves_the_range(value, monkeypatch):
    monkeypatch.setattr(Glitching, "value", value)
    plain, glitching = pipeline(UNetPredictor), pipeline(Glitching)
    given = torch.cat([photograph(110, 130), photograph(110, 130)[:, [1, 0, 2]]])  # the second has nothing green
    out = glitching(given, WHOLE_SAMPLE, output_type="pt")
    assert torch.equal(out.images[0, :, 8:76, 28:102], given[0, :, 8:76, 28:102])
    assert torch.equal(out.discarded, torch.tensor([68 * 74 / (110 * 130), 0]))
    assert out.images.isfinite().all()
    assert out.expected_error.isfinite().all()
    masked = glitching(given, WHOLE_SAMPLE, output_type="pt", area=Area(mask=torch.full((110, 130), 0.5)))
    assert torch.equal(masked.share, 0.5 * out.share)
    expected = plain(given, WHOLE_SAMPLE, output_type="pt")
    assert expected.discarded is None
    torch.testing.assert_close(out.images[1], expected.images[1])
    assert not torch.equal(out.images[0, :, 90:], given[0, :, 90:]), "the rest is restored"


def test_the_command_says_what_was_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pipeline(Glitching).save_pretrained("glitching")
    values = photograph(110, 130)[0].mul(255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(values).save("photo.png")
    flags = ["--checkpoint", "glitching", "--classes", "tests.deblur.test_discarded.Glitching", "--blend", "0"]
    sample.main(["photo.png", *flags, "--output", "restored", "--restore", "all"])
    said = capsys.readouterr().err
    assert said == "photo.png: is unlike what this checkpoint knows on 35% of its area, which is kept as it is\n"
    restored = images.read("restored/photo.png")
    assert torch.equal(restored[:, 8:76, 28:102], images.read("photo.png")[:, 8:76, 28:102])
