"""A page of text is told from a photograph."""

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from deblur.data.files import images
from deblur.restoration.options import Options
from deblur.restoration.outputs import Names
from deblur.restoration.restorer import Restorer
from deblur.restoration.text import looks_like_text
from tests.conftest import ROOT

FONT = f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf"
LINE = "The quick brown fox jumps over the lazy dog, and nobody reads it twice."


def page(ink=(20, 20, 20), paper=(250, 250, 240), size=(800, 1000), lines=True, blur=0.0):
    """Lines of text with a shadow that falls from left to right, as an image (3, H, W) in [0, 1]."""
    drawn = Image.new("RGB", size, paper)
    draw = ImageDraw.Draw(drawn)
    for top in range(40, size[1] - 60, 34) if lines else ():
        draw.text((40, top), LINE, ink, ImageFont.truetype(FONT, 20))
    array = np.asarray(drawn.filter(ImageFilter.GaussianBlur(blur)), np.float32) / 255
    shadow = np.linspace(1, 0.85, size[0], dtype=np.float32)[:, None]
    return torch.from_numpy(array * shadow).movedim(-1, 0)


@pytest.mark.parametrize("blur", [0, 2, 5])
@pytest.mark.parametrize("size", [(800, 1000), (500, 300)])
def test_a_page_is_one_sharp_and_blurred(blur, size):
    assert looks_like_text(page(blur=blur, size=size))


def test_a_page_that_was_photographed_out_of_focus_is_one():
    assert looks_like_text(images.read(ROOT / "docs" / "page_blurry.jpg"))


@pytest.mark.parametrize(
    "image",
    [
        page(lines=False),
        page(ink=(235, 235, 225), paper=(10, 10, 10)),
        page(paper=(250, 220, 150)),
        page() * torch.linspace(1, 0.3, 800),
        torch.zeros(3, 20, 20),
        torch.rand(3, 1, 1),
    ],
    ids=["empty", "lights at night", "coloured", "a dark side", "black", "one pixel"],
)
def test_what_is_like_a_page_but_none_is_not_taken_for_one(image):
    assert not looks_like_text(image)


@pytest.mark.parametrize("file", ["docs/street_blurry.jpg", *(f"docs/examples/rsblur_{k}.jpg" for k in (1, 2, 3))])
def test_a_photograph_is_none(file):
    assert not looks_like_text(images.read(ROOT / file))


@pytest.mark.parametrize(("checkpoint", "is_said"), [("lite", True), ("text", False)])
def test_a_page_given_to_a_photograph_s_checkpoint_points_to_the_one_for_text(tmp_path, checkpoint, is_said):
    images.write(tmp_path / "a.png", page(size=(240, 200)))
    restorer = Restorer(Options("out", checkpoint=checkpoint, device="cpu"), {"blend": 0.0})
    photograph = restorer.read(tmp_path / "a.png", Names.of(tmp_path / "out.png"))
    out = restorer.pipeline(photograph.image.pixels[None], restorer.settings, output_type="pt")
    notes = restorer.restoration(photograph, out, 0.0).notes
    assert ("looks like a page of text, for which --checkpoint text is made" in notes) == is_said
