"""Where a prediction is no image's, the image is kept, and that is said."""

import torch
from PIL import Image

import sample
from deblur.data.files import images
from deblur.models.networks.unet import UNetPredictor
from deblur.settings import SamplingSettings
from tests.tiny import tiny_pipeline

WHOLE_SAMPLE = SamplingSettings(steps=1, blend=1.0, keep_sharp=0.0)


class Glitching(UNetPredictor):
    """A predictor that is far out of range where the image is pure green."""

    def forward(self, blurry):
        green = (blurry[:, 1:2] - blurry[:, :1] - blurry[:, 2:]) > 2.9
        return super().forward(blurry) + 9 * green


def pipeline(kind):
    torch.manual_seed(0)
    return tiny_pipeline(kind(8, (1, 2), 1))


def photograph(height, width):
    values = torch.randint(20, 220, (1, 3, height, width), generator=torch.Generator().manual_seed(0)) / 255
    values[..., 40:44, 60:70] = torch.tensor([0.0, 1.0, 0.0]).view(3, 1, 1)
    return values


def test_an_image_is_kept_around_what_leaves_the_range():
    plain, glitching = pipeline(UNetPredictor), pipeline(Glitching)
    given = torch.cat([photograph(110, 130), photograph(110, 130)[:, [1, 0, 2]]])  # the second has nothing green
    out = glitching(given, WHOLE_SAMPLE, output_type="pt")
    assert torch.equal(out.images[0, :, 8:76, 28:102], given[0, :, 8:76, 28:102])
    assert torch.equal(out.discarded, torch.tensor([68 * 74 / (110 * 130), 0]))
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
