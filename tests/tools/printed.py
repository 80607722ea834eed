"""Pages of every kind that the tests print, by matplotlib's fonts and a few words."""

import random

import numpy as np
import torch
from matplotlib import get_data_path
from PIL import Image
from torch.nn.functional import avg_pool2d

from tools.make_pages import find_faces
from tools.page_kinds import KINDS
from tools.typesetting import Page, photograph

FONTS = f"{get_data_path()}/fonts/ttf"  # matplotlib's: DejaVu has Cyrillic letters, the others have not
ENGLISH = ["table", "lamp", "river", "window", "morning", "paper", "seven", "garden", "castle", "orange", "bridge"]


def page_of(kind, family="DejaVu Sans", side=512, photos=(), seed=1):
    page = Page(side, random.Random(seed), find_faces([FONTS], None), ENGLISH, list(photos))
    page.faces = [face for face in page.faces if face.family == family]
    page.face = page.faces[0]
    KINDS[kind](page)
    return page


def photographed(kind, folder):
    """Pages of a kind of three seeds, and their photographs (3, 512, 512, 3)."""
    Image.new("RGB", (30, 20), (200, 30, 40)).save(folder / "photo.png")
    pages = [page_of(kind, seed=seed, photos=[folder / "photo.png"]) for seed in range(3)]
    for page in pages:
        page.stamp()
    return pages, np.stack([photograph(page, screen_like=True) for page in pages])


def small(seen):
    """The mean colours of squares of 16 pixels, three photographs beside each other (3, 32, 96)."""
    return torch.cat([*avg_pool2d(torch.from_numpy(seen).movedim(-1, 1) / 255, 16)], -1)
