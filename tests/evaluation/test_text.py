"""The error rate of text: by hand where the reading is given, and by Tesseract on pages that are printed here."""

import shutil
from unicodedata import normalize

import numpy as np
import pytest
import torch
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

from deblur.data.files import images
from deblur.evaluation import text
from deblur.evaluation.metrics import make_metrics
from deblur.evaluation.pixels import MetricError
from deblur.evaluation.text import ErrorRate
from tests import processes

LINES = ["Seven quick foxes read", "a page of 1234 words", "before the lamp is out."]
needs_tesseract = pytest.mark.skipif(shutil.which("tesseract") is None, reason="no Tesseract")


def printed(lines=LINES, size=30):
    """A page (1, 3, H, W) with these lines."""
    font = ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf", size)
    page = Image.new("RGB", (560, 60 + 60 * len(lines)), (250, 248, 240))
    for at, line in enumerate(lines):
        ImageDraw.Draw(page).text((40, 30 + 60 * at), line, (20, 20, 30), font)
    return torch.from_numpy(np.array(page)).movedim(-1, 0)[None].float() / 255


@pytest.fixture
def pages(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "page.txt").write_text("\n".join(LINES) + "\n")
    return tmp_path


@needs_tesseract
def test_a_sharp_page_is_read_and_wrong_letters_count(pages):
    cer = ErrorRate(pages)
    assert cer(printed(), ["page"]) == 0
    wrong, length = printed(["Seven quick boxes read", *LINES[1:]]), len(" ".join(LINES))
    assert cer(wrong, ["page"]).item() == pytest.approx(1 / length)
    assert cer(torch.ones_like(printed()), ["page"]) == 1
    assert cer(torch.cat([printed(), wrong]), ["page", "page"]).tolist() == pytest.approx([0, 1 / length])
    (pages / "text" / "wide.txt").write_text("\n".join(LINES).replace("1234", "\uff11\uff12\uff13\uff14"))
    assert cer(printed(), ["wide"]) == 0
    beginning = "Seven quick"
    (pages / "text" / "beginning.txt").write_text(beginning)
    assert cer(printed(), ["beginning"]).item() == pytest.approx((length - len(beginning)) / len(beginning))


@needs_tesseract
def test_the_recipe_names_all_that_the_number_depends_on(pages):
    def recipe(language="eng"):
        return make_metrics(["cer"], data=pages, language=language)["cer"].recipe

    found = [recipe()]
    assert all(
        word in found[0] for word in ("Tesseract 5", "language eng", "page mode 3", "rapidfuzz", "NFKC", "8 bits")
    )
    (pages / "text" / "page.txt").write_text("another text")
    found.append(recipe())
    (pages / "text" / "scene").mkdir()
    (pages / "text" / "scene" / "page.txt").write_text("a text below")
    found.append(recipe())
    (pages / "text" / "scene" / "page.txt").write_text("another text below")
    found.append(recipe())
    (pages / "text" / "scene" / "page.txt").rename(pages / "text" / "scene" / "side.txt")
    found.append(recipe())
    assert len(set(found)) == 5
    assert "no language xyz; it has" in make_metrics(["cer"], data=pages, language="eng+xyz")["cer"].reason


@needs_tesseract
def test_a_page_without_its_text_is_missing_alone(pages):
    cer = ErrorRate(pages)
    (pages / "text" / "blank.txt").write_text(" \n")
    (pages / "text" / "latin.txt").write_bytes(b"Stra\xdfe")
    for name, said in (("other", "text/other.txt is missing"), ("blank", "blank.txt is empty"), ("latin", "latin.txt")):
        with pytest.raises(MetricError, match=said):
            cer(printed(), [name])
    with pytest.raises(MetricError, match="not finite"):
        cer(printed() / 0, ["page"])


@needs_tesseract
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_text_is_read_as_editors_save_it_below_a_folder_and_in_either_form_of_its_name(pages, encoding):
    folder, name = pages / "text" / "scene", "M\u00fcller"
    folder.mkdir()
    (folder / f"{normalize('NFD', name)}.txt").write_text("\n".join(LINES), encoding=encoding)
    assert ErrorRate(pages)(printed(), [f"scene/{name}"]) == 0


def test_what_is_missing_is_said(pages, tmp_path, monkeypatch):
    reason = make_metrics(["cer"], tmp_path / "none")["cer"].reason
    assert "is no folder: it should have a text file for each image" in reason
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = make_metrics(["cer"], pages)["cer"].reason
    assert reason == "the program tesseract is not installed (on Debian: apt install tesseract-ocr)"

    def not_there(package):
        raise text.PackageNotFoundError(package)

    monkeypatch.setattr(text, "version", not_there)
    assert "package pytesseract is not installed" in make_metrics(["cer"], pages)["cer"].reason


@pytest.mark.commands
@needs_tesseract
@pytest.mark.parametrize("layout", ["folders", "csv"])
def test_a_grid_scores_text_in_blurry_sharp_and_predicted_rows(pages, layout):
    for side, image in (("blur", printed(["Seven slow", "geese", "sleep"])), ("sharp", printed())):
        images.write(pages / side / "page.png", image[0])
    table, data = pages / "pairs.csv", pages
    if layout == "csv":  # text/ lies beside the table
        (pages / "blur" / "page.png").rename(pages / "page.png")
        table.write_text("blurry,sharp\npage.png,sharp/page.png\n")
        data = table
    arguments = ["--data", data, "--output", pages / "scores", "--metrics", "cer", "--outputs", pages / "sharp"]
    table = processes.run("evaluate.py", list(map(str, arguments))).stdout
    lines = {line.split()[0]: line for line in table.splitlines() if line.split()}
    assert "0.0000" in lines["sharp"]
    assert "0.0000" not in lines["blurry"]
