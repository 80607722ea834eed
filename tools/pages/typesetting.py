"""Fonts, the sheet that tools.make_pages prints on, and how a camera sees it."""

import math
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fontTools.ttLib import TTCollection, TTFont
from kornia.geometry.transform import get_perspective_transform
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from deblur.data.files.formats import opened

DRAWN_SCALE = 2  # pages are drawn at twice their size, so that strokes fall between pixels as in a photograph
NUMBER_CHARACTERS = string.digits + ".,:-/()%+"
PRINTED_CHARACTERS = frozenset(map(chr, range(0x20, 0x530)))  # Latin, Greek and Cyrillic
MONOSPACED_NAMES = ("mono", "courier", "consol", "code", "ocr", "hack", "typewriter", "fixed")


@dataclass(frozen=True)
class Face:
    """A font file: its family, and the characters that it has."""

    file: Path
    family: str
    characters: frozenset[str]

    @property
    def monospaced(self) -> bool:
        """Whether the family's name says so."""
        return any(part in self.family.lower() for part in MONOSPACED_NAMES)

    def covers(self, text: str | set[str]) -> bool:
        """Whether no character would be printed as a box."""
        return self.characters.issuperset(text)


def read_face(file: Path, families: set[str] | None = None) -> Face | None:
    """Read a font file's family and characters; None if it is of another family than `families`.

    Raises ValueError, naming the file, if it cannot be read.
    """
    try:
        family = ImageFont.truetype(str(file)).getname()[0]
        if families is not None and family not in families:
            return None
        with open(file, "rb") as stream:
            font = TTCollection(stream).fonts[0] if file.suffix.lower() == ".ttc" else TTFont(stream, lazy=True)
            drawn = frozenset(chr(code) for code, glyph in font.getBestCmap().items() if glyph != ".notdef")
        return Face(file, family, drawn & PRINTED_CHARACTERS)
    except Exception as error:  # fontTools raises what its parsers happen to raise
        raise ValueError(f"{file} is a font that cannot be read: remove it, or name other folders.") from error


class Page:
    """A sheet that is being printed: draws text and remembers it in the order in which it is read.

    Args:
        side: of the square page in pixels; all other lengths are in these pixels, too.
        rng: all random choices.
        faces: fonts, all of which have the characters of `words`.
        words: of one language.
        photos: image files to print between the text; may be empty.
    """

    def __init__(self, side: int, rng: random.Random, faces: list[Face], words: list[str], photos: list[Path]):
        self.side = side
        self.rng = rng
        self.faces = faces
        self.words = words
        self.photos = photos
        dark = rng.random() < 0.12
        paper, ink = [rng.randint(228, 255)] * 3, [rng.randint(0, 45)] * 3
        if rng.random() < 0.6:
            paper = [min(255, value + rng.randint(-28, 6)) for value in paper]
        if rng.random() < 0.25:
            ink = [rng.randint(0, 120) for _ in range(3)]
        self.paper, self.ink = (ink, paper) if dark else (paper, ink)
        self.image = Image.new("RGB", (side * DRAWN_SCALE, side * DRAWN_SCALE), tuple(self.paper))
        self.draw = ImageDraw.Draw(self.image)
        self.lines: list[str] = []
        self.face = rng.choice(faces)

    def font(self, size: float, face: Face | None = None) -> ImageFont.FreeTypeFont:
        """The page's font, or another, at a size in pixels."""
        return ImageFont.truetype(str((face or self.face).file), round(size * DRAWN_SCALE))

    def body_size(self) -> float:
        """A font size of running text; its x-height is about half: 6 px and more."""
        return 12.0 * (34 / 12) ** (self.rng.random() ** 1.3)

    def width(self, text: str, font: ImageFont.FreeTypeFont) -> float:
        """The width of a line in pixels."""
        return font.getlength(text) / DRAWN_SCALE

    def put(self, x: float, y: float, text: str, font: ImageFont.FreeTypeFont, ink=None, read: bool = True) -> None:
        """Print a line with its top left corner at (x, y)."""
        self.draw.text((x * DRAWN_SCALE, y * DRAWN_SCALE), text, tuple(ink or self.ink), font)
        if read:
            self.lines.append(text)

    def rule(self, *ends: float, width: float = 1.0) -> None:
        """Print a line from (x, y) to (x, y)."""
        self.draw.line([end * DRAWN_SCALE for end in ends], tuple(self.ink), max(1, round(width * DRAWN_SCALE)))

    def box(self, *corners: float, colour: list[int]) -> None:
        """Print a filled rectangle from (left, top) to (right, bottom)."""
        self.draw.rectangle([corner * DRAWN_SCALE for corner in corners], tuple(colour))

    def word(self) -> str:
        """A random word or, sometimes, a number, a date, a price or an address."""
        if self.rng.random() < 0.08:
            return self.number()
        return self.rng.choice(self.words)

    def number(self) -> str:
        """A made-up number as it is found on paper."""
        r = self.rng
        return r.choice(
            [
                f"{r.randint(1, 28)}.{r.randint(1, 12)}.{r.randint(1950, 2030)}",
                f"{r.randint(0, 23):02}:{r.randint(0, 59):02}",
                f"{r.randint(0, 999)}.{r.randint(0, 99):02}",
                f"{r.randint(1, 99)},{r.randint(0, 999):03}",
                f"{r.randint(0, 100)}%",
                f"({r.randint(100, 999)}) {r.randint(1000, 9999)}-{r.randint(100, 999)}",
                str(r.randint(0, 10**6)),
            ]
        )

    def sentences(self, count: int) -> Iterator[str]:
        """That many words with capitals and punctuation."""
        start = True
        for at in range(count):
            word = self.word()
            word = word[:1].upper() + word[1:] if start else word
            start = at + 1 == count or self.rng.random() < 0.09
            yield word + ("." if start else "," if self.rng.random() < 0.07 else "")

    def paragraph(self, x: float, y: float, width: float, bottom: float, size: float, words: int) -> float:
        """Print a paragraph that ends above `bottom`, and return the height below it."""
        font, step = self.font(size), size * self.rng.uniform(1.15, 1.5)
        justified, line = self.rng.random() < 0.4, []
        for word in [*self.sentences(words), None]:
            longer = [*line, word] if word else line
            if line and (word is None or self.width(" ".join(longer), font) > width):
                if y + step > bottom:
                    return bottom
                gap = (width - sum(self.width(shown, font) for shown in line)) / max(1, len(line) - 1)
                if justified and word and gap < size:
                    left = x
                    for shown in line:
                        self.put(left, y, shown, font, read=False)
                        left += self.width(shown, font) + gap
                    self.lines.append(" ".join(line))
                else:
                    self.put(x, y, " ".join(line), font)
                y, longer = y + step, [word]
            line = longer
        return y + size * self.rng.uniform(0.2, 0.9)

    def photo(self, x: float, y: float, width: float, height: float) -> None:
        """Print a photograph, or a bar code where there are none."""
        if self.photos and self.rng.random() < 0.6:
            with opened(self.rng.choice(self.photos)) as photo:
                photo = photo.convert("RGB")
            self.image.paste(
                photo.resize((round(width * DRAWN_SCALE), round(height * DRAWN_SCALE))),
                (round(x * DRAWN_SCALE), round(y * DRAWN_SCALE)),
            )
        elif self.rng.random() < 0.5:
            left = x
            while left < x + width:
                bar = self.rng.choice([1, 1, 2, 3]) * max(1.0, width / 160)
                self.box(left, y, min(left + bar, x + width), y + height, colour=self.ink)
                left += bar + self.rng.choice([1, 1, 2, 3]) * max(1.0, width / 160)
        else:
            cell = min(width, height) / 25
            for row in range(25):
                for column in range(25):
                    if self.rng.random() < 0.5:
                        left, top = x + column * cell, y + row * cell
                        self.box(left, top, left + cell, top + cell, colour=self.ink)

    def stamp(self) -> None:
        """Print a slanted stamp somewhere over the page; it is not part of the text."""
        r, size = self.rng, self.rng.uniform(20, 44)
        font, word = self.font(size, r.choice(self.faces)), r.choice(self.words).upper()
        word = word if self.face.covers(word) else r.choice(self.words)
        layer = Image.new("L", (round(font.getlength(word)) + 40, round(size * DRAWN_SCALE * 1.6)), 0)
        ImageDraw.Draw(layer).text((20, 4), word, 170, font)
        ImageDraw.Draw(layer).rectangle([2, 2, layer.width - 3, layer.height - 3], outline=170, width=4)
        layer = layer.rotate(r.uniform(-30, 30), Image.Resampling.BICUBIC, expand=True)
        place = tuple(r.randint(0, max(1, self.side * DRAWN_SCALE - extent)) for extent in layer.size)
        colour = r.choice([(190, 20, 30), (20, 40, 160), (30, 110, 50)])
        self.image.paste(Image.new("RGB", layer.size, colour), place, layer)


def photograph(page: Page, screen_like: bool) -> Image.Image:
    """The sheet as a camera sees it in focus: light, shadow, paper, the back of the sheet, a screen's moiré, tilt."""
    r, side = page.rng, page.side
    sheet = page.image
    if r.random() < 0.15:  # the print on the other side
        back = sheet.transpose(Image.Transpose.FLIP_LEFT_RIGHT).filter(ImageFilter.GaussianBlur(2 * DRAWN_SCALE))
        sheet = Image.blend(sheet, back, r.uniform(0.04, 0.14))
    if r.random() < 0.6:
        width, height = sheet.size
        corners = [(0, 0), (0, height), (width, height), (width, 0)]
        seen = [(x + r.gauss(0, 0.008) * width, y + r.gauss(0, 0.008) * height) for x, y in corners]
        plane = get_perspective_transform(*torch.tensor([[corners], [seen]], dtype=torch.float64))
        sheet = sheet.transform(
            sheet.size,
            Image.Transform.PERSPECTIVE,
            plane.flatten()[:8].tolist(),
            Image.Resampling.BICUBIC,
            fillcolor=tuple(page.paper),
        )
    sheet = sheet.resize(
        (side, side), r.choice([Image.Resampling.LANCZOS, Image.Resampling.HAMMING, Image.Resampling.BOX])
    )
    values = np.asarray(sheet, dtype=np.float32) / 255
    noise = np.random.default_rng(r.getrandbits(32))
    y, x = np.mgrid[0 : 1 : side * 1j, 0 : 1 : side * 1j].astype(np.float32)
    angle, strength = r.uniform(0, 2 * math.pi), r.uniform(0, 0.4) ** 1.5
    light = 1 - strength * (0.5 + 0.5 * np.tanh(math.cos(angle) * (x - 0.5) * 2 + math.sin(angle) * (y - 0.5) * 2))
    if r.random() < 0.3:  # a shadow's edge
        edge = (math.cos(angle) * (x - r.random()) + math.sin(angle) * (y - r.random())) / r.uniform(0.01, 0.2)
        light *= 1 - r.uniform(0.1, 0.5) / (1 + np.exp(-np.clip(edge, -30, 30)))
    if r.random() < 0.5:  # uneven paper
        coarse = Image.fromarray(noise.normal(0, 1, (side // r.randint(2, 64) + 2,) * 2).astype(np.float32))
        light *= 1 + r.uniform(0, 0.02) * np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC))
    if screen_like and r.random() < 0.5:
        waves = np.sin(x * r.uniform(40, 400) + y * r.uniform(-60, 60)) * np.sin(y * r.uniform(40, 400))
        light *= 1 + r.uniform(0, 0.06) * waves
    tint = np.array([r.uniform(0.93, 1), r.uniform(0.95, 1), r.uniform(0.88, 1)], dtype=np.float32)
    values = np.clip(values * light[..., None] * tint, 0, 1)
    return Image.fromarray((values * 255 + 0.5).astype(np.uint8))
