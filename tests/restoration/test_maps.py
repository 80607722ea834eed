"""The panel that compares a restoration with its input."""

import torch

from deblur.data.files import images
from deblur.evaluation import plots
from deblur.restoration.maps import DETAIL_SIDE, write_before_and_after


def test_a_comparison_shows_the_whole_reduced_and_what_changed_most_at_full_size(tmp_path):
    height, width = 40, DETAIL_SIDE + 200
    image = torch.zeros(3, height, width)
    image[0] = torch.arange(width) / width
    restored = image.clone()
    restored[1:, 10:20, -40:-10] = 0.8
    write_before_and_after(tmp_path / "c.png", image, restored, image)
    drawn = images.read(tmp_path / "c.png")
    rows = drawn[0].unfold(1, DETAIL_SIDE, 1)
    for wanted in ((torch.arange(DETAIL_SIDE) + 0.5) / DETAIL_SIDE, image[0, 0, -DETAIL_SIDE:]):
        assert ((rows - wanted).abs().amax(-1) < 0.01).any()
    heights = [round(plots.IMAGE_WIDTH * part / DETAIL_SIDE) for part in (height * DETAIL_SIDE // width, height)]
    assert drawn.shape[1] == sum(heights) + 3 * plots.TEXT_HEIGHT
