"""Render pages of text: python -m tools.make_pages FONTS ... --families LIST --output PAGES

PAGES gets a sharp page (PNG) and, in text/NAME.txt, its lines in the order in which they are read; pages.json says how
they were made. Blur them with tools.make_pairs. Repeating a stopped command resumes it.
"""

import random
import sys
from functools import partial
from pathlib import Path
from zlib import crc32

from deblur.cli import call, run_command
from deblur.data.files import search
from deblur.storage import replacing
from deblur.tools.pages.kinds import PAGE_KINDS
from deblur.tools.pages.typesetting import NUMBER_CHARACTERS, Face, Page, photograph, read_face
from deblur.tools.resumable import on_all_cores, resumable

FONT_SUFFIXES = {".ttf", ".otf", ".ttc"}
LARGEST_VOCABULARY = 20_000  # words drawn from a list: some have a million


def read_families(file: str) -> set[str]:
    """The families of a list: one a line, before the first tab; # begins a comment."""
    lines = [line.partition("#")[0].partition("\t")[0].strip() for line in Path(file).read_text().splitlines()]
    return {line for line in lines if line}


def find_faces(folders: list[str], families: str | None) -> list[Face]:
    """The fonts of the folders, of the listed families only. ValueError if there are none, or one cannot be read."""
    files = sorted(
        file for folder in folders for file in Path(folder).rglob("*") if file.suffix.lower() in FONT_SUFFIXES
    )
    if not files:
        raise ValueError(f"{', '.join(folders)}: no font (.ttf, .otf, .ttc) is there; give folders that have some.")
    wanted = None if families is None else read_families(families)
    faces = [face for file in files if (face := read_face(file, wanted)) is not None]
    if not faces:
        raise ValueError(f"{', '.join(folders)}: no font is of a family in {families}.")
    return faces


def read_words(file: Path, held_out: bool) -> list[str]:
    """The words of a list, one a line (what follows a / is left out): a fifth of them, or all others.

    The fifth follows from the word's checksum, so that pages to test on have words that no training page has.
    """
    words = (line.partition("/")[0].strip() for line in file.read_text(errors="replace").splitlines())
    kept = [word for word in words if 1 < len(word) < 15 and word.replace("'", "").isalpha()]
    return [word for word in kept if (crc32(word.lower().encode()) % 5 == 0) == held_out]


def read_language(file: Path, faces: list[Face], held_out: bool, seed: int) -> tuple[list[str], list[Face]]:
    """At most LARGEST_VOCABULARY words of a list, and the faces that have its letters. ValueError if there are none."""
    words = read_words(file, held_out)
    if not words:
        raise ValueError(f"{file} has no words: give a text file with one a line.")
    letters = {letter for word in words for letter in word} | set(NUMBER_CHARACTERS)
    able = [face for face in faces if face.covers(letters)]
    if not able:
        raise ValueError(f"{file} has letters that no font has: leave it out or add a font.")
    return random.Random(seed).sample(words, min(len(words), LARGEST_VOCABULARY)), able


def make_page(
    name: str,
    folder: Path,
    languages: list[tuple[list[str], list[Face]]],
    photos: list[Path],
    kinds: list[str],
    size: int,
    seed: int,
) -> None:
    """Render one page, unless it exists; it follows from the seed and its name."""
    target = folder / f"{name}.png"
    if target.is_file():
        return
    rng = random.Random(f"{seed} {name}")
    words, faces = rng.choice(languages)
    kind = rng.choice(kinds)
    page = Page(size, rng, faces, words, photos)
    PAGE_KINDS[kind](page)
    if rng.random() < 0.1:
        page.stamp()
    (folder / "text" / f"{name}.txt").write_text("\n".join(page.lines) + "\n")
    with replacing(target) as part:
        photograph(page, screen_like=kind in ("screen", "code")).save(part)


def make(
    fonts: list[str],
    output: str,
    words: list[str],
    families: str | None = None,
    held_out: bool = False,
    photos: str | None = None,
    kinds: list[str] | None = None,
    count: int = 160,
    size: int = 1024,
    seed: int = 0,
    workers: int | None = None,
) -> None:
    """Render pages.

    Args:
        fonts: folders of font files.
        output: folder to write to; must be new or empty.
        words: lists of words, one file a language, one word a line; a page has words of one of them.
        families: text file of the font families to use, one a line; none: all in the folders.
        held_out: use only the fifth of the words that is left out otherwise.
        photos: folder of photographs to print between the text; none: bar codes only.
        kinds: of pages: book, letter, form, table, receipt, code, sign, screen; none: all of them.
        count: number of pages.
        size: side of a page in pixels.
        seed: of all random choices.
        workers: processes; none: one per core.

    Raises:
        ValueError, OSError: something cannot be read or written, or no font has all letters of a list of words.
    """
    unknown = set(kinds or []) - set(PAGE_KINDS)
    if unknown:
        raise ValueError(f"kinds: {', '.join(sorted(unknown))} is unknown; there are {', '.join(PAGE_KINDS)}.")
    folder, faces = Path(output), find_faces(fonts, families)
    languages = [read_language(Path(file), faces, held_out, seed) for file in words]
    facts = {"families": sorted({face.family for face in faces}), "words": words, "held_out": held_out, "kinds": kinds}
    facts |= {"photos": photos, "count": count, "size": size, "seed": seed}
    names = [f"page_{number:04}" for number in range(count)]
    printed = [] if photos is None else search.find(Path(photos))
    look = {"languages": languages, "photos": printed, "kinds": kinds or list(PAGE_KINDS), "size": size, "seed": seed}
    with resumable(folder, "pages.json", facts) as part:
        (part / "text").mkdir(exist_ok=True)
        work = partial(make_page, folder=part, **look)
        list(on_all_cores(work, names, workers=workers, unit="page"))
    print(f"{folder}: {count} pages in {len(facts['families'])} font families with seed {seed}")


def main(args: list[str] | None = None) -> None:
    """The command line."""
    call(make, args, "-m tools.make_pages", nargs="+")


if __name__ == "__main__":
    sys.exit(run_command("tools.make_pages", main, "stopped; run again to resume"))
