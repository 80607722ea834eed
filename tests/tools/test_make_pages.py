import json
import shutil

import pytest

from deblur.data.files import images
from deblur.evaluation.text import ErrorRate
from deblur.tools.make_pages import find_faces, main, read_words
from deblur.tools.make_pairs import main as make_pairs
from deblur.tools.pages.kinds import PAGE_KINDS
from deblur.tools.pages.typesetting import NUMBER_CHARACTERS, read_face
from tests import processes
from tests.conftest import ASSETS
from tests.tools.printed import ENGLISH, FONTS, digest, page_of, photographed, small

pytestmark = pytest.mark.commands
RUSSIAN = ["стол", "лампа", "река", "окно", "утро", "бумага", "семь", "сад", "замок", "мост", "зима", "дорога"]


@pytest.fixture
def words(tmp_path):
    """A folder with lists of words, and a folder of three fonts."""
    (tmp_path / "fonts").mkdir()
    for name in ("DejaVuSans", "DejaVuSansMono", "cmr10"):
        (tmp_path / "fonts" / f"{name}.ttf").symlink_to(FONTS / f"{name}.ttf")
    (tmp_path / "english.txt").write_text("\n".join(ENGLISH))
    (tmp_path / "russian.txt").write_text("\n".join(f"{word}/FLAGS" for word in RUSSIAN))
    return tmp_path


def make(words, name, *flags, lists="english.txt"):
    given = ["--words", str([str(words / one) for one in lists.split()]), "--output", str(words / name)]
    main([str(words / "fonts"), *given, "--count", "2", "--size", "256", "--workers", "1", *flags])
    return words / name


def test_a_seed_makes_the_same_pages_and_another_others(words):
    made = [make(words, f"pages{at}", "--seed", seed) for at, seed in enumerate("001")]
    for file in ("page_0000.png", "page_0001.png", "text/page_0000.txt", "text/page_0001.txt"):
        same, again, other = ((folder / file).read_bytes() for folder in made)
        assert same == again != other
    facts = json.loads((made[2] / "pages.json").read_text())
    assert (facts["seed"], facts["count"], facts["size"]) == (1, 2, 256)
    assert "DejaVu Sans" in facts["families"]


@pytest.mark.parametrize("kind", PAGE_KINDS)
def test_every_kind_prints_its_text_and_nothing_that_its_font_lacks_and_the_same_as_ever(kind, tmp_path):
    pages, seen = photographed(kind, tmp_path)
    assert seen.shape == (3, 512, 512, 3)
    assert seen.std((1, 2, 3)).min() > 5
    for page in pages:
        assert page.lines
        assert all(line.strip() for line in page.lines)
        assert page.faces[0].covers("".join(page.lines))
    # A seed stands for the pages that a checkpoint was trained on.
    assert (small(seen) - images.read(ASSETS / "printed" / f"{kind}.png")).abs().max() < 0.02


@pytest.mark.parametrize("kind", PAGE_KINDS)
def test_a_seed_draws_every_kind_as_ever(kind):
    """Each word, rule and bar, which the small images do not show; `python -m tests.golden` after a change."""
    assert digest(kind) == json.loads((ASSETS / "printed" / "digests.json").read_text())[kind]


def test_pages_of_a_kind_alone(words):
    signs = make(words, "signs", "--kinds", "[sign]", "--count", "6")
    assert all(" " not in file.read_text() for file in (signs / "text").iterdir())  # a sign has one word a line


def test_a_language_has_only_fonts_with_all_of_its_letters(words):
    cyrillic = make(words, "cyrillic", "--count", "6", lists="russian.txt")
    assert set("".join(file.read_text() for file in (cyrillic / "text").iterdir())) & set("абвгдежзиклмнопрст")
    faces = find_faces([str(words / "fonts")], None)
    able = {face.family for face in faces if face.covers(set("".join(RUSSIAN)) | set(NUMBER_CHARACTERS))}
    assert "DejaVu Sans" in able
    assert "cmr10" not in able
    assert "cmr10" in {face.family for face in faces}
    (words / "families.txt").write_text("# a comment\ncmr10\tpackage\tlicence\n")
    with pytest.raises(ValueError, match="has letters that no font"):
        make(words, "boxes", "--families", str(words / "families.txt"), lists="russian.txt")
    assert not (words / "boxes").exists()


def test_held_out_words_are_the_others(words):
    sides = [set(read_words(words / "english.txt", held_out)) for held_out in (False, True)]
    assert all(sides)
    assert not sides[0] & sides[1]
    assert sides[0] | sides[1] == set(ENGLISH)
    assert set(read_words(words / "russian.txt", True)) < set(RUSSIAN)  # without what follows a slash


def test_a_word_is_held_out_in_whatever_case_it_is_written(tmp_path):
    words = [word for word in ENGLISH if len(word) > 1]
    for name, written in (("lower", str.lower), ("upper", str.upper), ("title", str.title)):
        (tmp_path / name).write_text("\n".join(map(written, words)))
    sides = {frozenset(map(str.lower, read_words(tmp_path / name, True))) for name in ("lower", "upper", "title")}
    assert len(sides) == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda at: {"fonts": at / "none"}, "no font (.ttf, .otf, .ttc) is there"),
        (lambda at: {"fonts": at / "broken"}, "bad.ttf is a font that cannot be read"),
        (lambda at: {"--kinds": "[book,poster]"}, "poster is unknown; there are book"),
        (lambda at: {"--families": at / "english.txt"}, "no font is of a family in"),
        (lambda at: {"--families": at / "missing.txt"}, "missing.txt"),
        (lambda at: {"--words": f"[{at / 'empty.txt'}]"}, "empty.txt has no words"),
        (lambda at: {"--words": f"[{at / 'chinese.txt'}]"}, "chinese.txt has letters that no font"),
        (lambda at: {"--output": at}, "is not an empty folder"),
    ],
)
def test_bad_input_is_one_sentence(words, change, sentence):
    (words / "none").mkdir()
    (words / "broken").mkdir()
    (words / "broken" / "bad.ttf").write_text("no font")
    (words / "empty.txt").write_text("1\n2\n")
    (words / "chinese.txt").write_text("\n".join(["漢字", "文字", "言葉", "日本", "東京", "大阪", "京都", "学校"] * 3))
    given = {"fonts": words / "fonts", "--words": f"[{words / 'english.txt'}]", "--output": words / "out"}
    given |= change(words)
    flags = [str(part) for name, value in given.items() if name != "fonts" for part in (name, value)]
    ended = processes.run("tools.make_pages", [str(given["fonts"]), *flags])
    assert ended.returncode
    assert sentence in ended.stderr
    assert ended.stderr.count("\n") <= 2
    assert "Traceback" not in ended.stderr
    assert not (words / "out").exists()


def test_a_font_s_family_and_letters():
    face, mono = (read_face(FONTS / f"{name}.ttf") for name in ("DejaVuSans", "DejaVuSansMono"))
    assert (face.family, mono.family) == ("DejaVu Sans", "DejaVu Sans Mono")
    assert face.covers("a")
    assert not face.covers("漢")
    assert mono.monospaced
    assert not face.monospaced
    assert read_face(mono.file, {"DejaVu Sans"}) is None


@pytest.mark.skipif(shutil.which("tesseract") is None, reason="no Tesseract")
@pytest.mark.parametrize("kind", ["book", "letter", "code"])
def test_the_text_beside_a_page_is_what_is_read_on_it(kind, tmp_path):
    page = page_of(kind, side=768, seed=5)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "page.txt").write_text("\n".join(page.lines))
    page.image.save(tmp_path / "page.png")
    assert ErrorRate(tmp_path)(images.read(tmp_path / "page.png")[None], ["page"]) < 0.15


def test_whole_pages_keep_their_text_beside_the_pairs(words):
    pages = make(words, "pages")
    for part, suffix in ((pages, "png"), (pages / "text", "txt")):
        (part / "book").mkdir()
        (part / f"page_0001.{suffix}").rename(part / "book" / f"page_0001.{suffix}")
    (words / "blur.yaml").write_text("data: {blur: {class_path: deblur.data.blur.SyntheticBlur}}")
    flags = ["--config", str(words / "blur.yaml"), "--workers", "1", "--output"]
    make_pairs([str(pages), *flags, str(words / "whole")])
    make_pairs([str(pages), *flags, str(words / "crops"), "--crops", "1", "--size", "32"])
    assert not (words / "crops" / "text").exists()
    for name in ("page_0000", "book/page_0001"):
        assert (words / "whole" / "sharp" / f"{name}.png").is_file()
        text = pages / "text" / f"{name}.txt"
        assert (words / "whole" / "text" / f"{name}.txt").read_text() == text.read_text()
