"""Pages of every kind that the tests print, by matplotlib's fonts and a few words."""

import random
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from matplotlib import get_data_path
from PIL import Image
from torch.nn.functional import avg_pool2d

from deblur.tools.make_pages import find_faces
from deblur.tools.pages.kinds import PAGE_KINDS
from deblur.tools.pages.typesetting import Page, photograph

FONTS = Path(get_data_path(), "fonts", "ttf")  # matplotlib's: DejaVu has Cyrillic letters, the others have not
ENGLISH = ["table", "lamp", "river", "window", "morning", "paper", "seven", "garden", "castle", "orange", "bridge"]


@cache
def faces():
    """All of matplotlib's faces."""
    return find_faces([str(FONTS)], None)


class DrawnPage(Page):
    """A page that remembers what is drawn on it, and where, to a tenth of a pixel."""

    def __init__(self, *args):
        super().__init__(*args)
        self.drawn = [self.paper, self.ink]

    def put(self, x, y, text, font, ink=None, read=True):
        self.drawn.append((round(x, 1), round(y, 1), text, font.size, ink, read))
        super().put(x, y, text, font, ink, read)

    def rule(self, *ends, width=1.0):
        self.drawn.append((*(round(end, 1) for end in ends), width))
        super().rule(*ends, width=width)

    def box(self, *corners, colour):
        self.drawn.append((*(round(corner, 1) for corner in corners), colour))
        super().box(*corners, colour=colour)


def page_of(kind, family="DejaVu Sans", side=512, photos=(), seed=1):
    page = DrawnPage(side, random.Random(seed), faces(), ENGLISH, list(photos))
    page.faces = [face for face in page.faces if face.family == family]
    page.face = page.faces[0]
    PAGE_KINDS[kind](page)
    return page


def photographed(kind, folder):
    """Pages of a kind of three seeds, and their photographs (3, 512, 512, 3)."""
    Image.new("RGB", (30, 20), (200, 30, 40)).save(folder / "photo.png")
    pages = [page_of(kind, seed=seed, photos=[folder / "photo.png"]) for seed in range(3)]
    for page in pages:
        page.stamp()
    return pages, np.stack([photograph(page, screen_like=True) for page in pages])


def digest(kind):
    """A checksum of all that is drawn on the pages of a kind, of so many seeds that each of its choices is met."""
    pages = [page_of(kind, seed=seed) for seed in range(12 if kind == "book" else 48)]  # a book takes longest
    return sha256(repr([page.drawn for page in pages]).encode()).hexdigest()[:16]


def small(seen):
    """The mean colours of squares of 16 pixels, three photographs beside each other (3, 32, 96)."""
    return torch.cat([*avg_pool2d(torch.from_numpy(seen).movedim(-1, 1) / 255, 16)], -1)
