"""What the pages say of the program's words, and that they lead to their explanation."""

import json
import re
from dataclasses import fields

import pytest
import yaml

import app
import sample
from deblur.data.files.formats import MOST_METADATA, MOST_PIXELS
from deblur.data.files.kinds import KINDS
from deblur.hub import SHIPPED
from deblur.settings import SamplingSettings
from tests.conftest import ROOT
from tests.documented import CARDS, PAGES


def test_every_page_links_to_the_glossary_which_explains_words_of_the_program():
    glossary = ROOT / "docs" / "glossary.md"
    for page in PAGES:
        links = re.findall(r"\]\(([^)#]+)", page.read_text())
        assert page == glossary or glossary in [(page.parent / link).resolve() for link in links], page
    words = re.findall(r"^- `(\w+)`:", glossary.read_text(), re.MULTILINE)
    assert {"predictor_training", "scale_kind", "noises", "keep_sharp", "start", "blend"} <= set(words)
    files = [*(ROOT / "models").rglob("*.py"), *(ROOT / "deblur").glob("*.py"), ROOT / "training" / "module.py"]
    sources = "".join(path.read_text() for path in files)
    for name in words:
        assert re.search(rf"\b{name}\b", sources), name


def test_the_pages_are_short_and_name_no_commit():
    readme = (ROOT / "README.md").read_text()
    pages = [readme, *(page.read_text() for page in (ROOT / "docs").glob("*.md"))]
    assert len(readme.splitlines()) < 180
    assert sum(len(page.split()) for page in pages) <= 11_000
    for page in pages:
        assert not re.search(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b", page)


def test_the_readme_says_about_how_many_lines_the_method_has():
    told = re.search(r"read these files, about ([\d,]+) lines(.*?)docs/method", (ROOT / "README.md").read_text(), re.S)
    files = re.findall(r"`(\w+/\w+\.py)`", told[2])
    lines = sum(len((ROOT / file).read_text().splitlines()) for file in files)
    assert len(files) == 5
    assert abs(int(told[1].replace(",", "")) - lines) <= 50


def test_the_citation_and_the_security_page_say_what_the_program_has():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["preferred-citation"]["year"] == 2022
    security = (ROOT / "SECURITY.md").read_text()
    flags = {field.name for kind in (app.Served, sample.Options) for field in fields(kind)}
    assert set(re.findall(r"--(\w+)", security)) - {"require"} <= flags | {"hashes"}
    assert f"limited to {MOST_METADATA >> 20} MiB, an image to {MOST_PIXELS / 1e6:.0f} megapixels" in security
    assert all(name.lower() in security.lower() for name in KINDS)


def test_the_commands_of_a_card_name_its_checkpoint():
    for card in CARDS:
        commands = re.findall(r"^python sample\.py .*", card.read_text(), re.MULTILINE)
        assert commands
        assert all(re.search(rf"--checkpoint {card.parent.name}\b", line) for line in commands), commands


TABLES = [(card, card.parent.name) for card in CARDS] + [(ROOT / "tools/benchmarks/results/scores.md", "lite")]


@pytest.mark.parametrize(("page", "checkpoint"), TABLES, ids=[f"{page.parent.name}" for page, _ in TABLES])
def test_a_table_has_the_settings_of_the_presets_that_it_names(page, checkpoint):
    presets = json.loads((SHIPPED / checkpoint / "model_index.json").read_text())["presets"]
    for name, told in re.findall(r"^\| preset (\w+) \((.+?)\)", page.read_text(), re.MULTILINE):
        stored = SamplingSettings(**presets[name])
        words = [f"{stored.steps} step{'s' * (stored.steps > 1)}"]
        words += [f"blend {stored.blend:g}"] * (stored.blend != 1)
        words += [f"keep_sharp {stored.keep_sharp:g}"] * (stored.keep_sharp != 0)
        assert told == ", ".join(words), name
