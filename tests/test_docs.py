"""Every command and every piece of Python in the documentation, in a folder where what it names lies ready in small."""

import os
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import yaml

import app
import evaluate
import sample
import train
from data import images
from data.formats import MOST_METADATA
from data.search import READ
from tests.conftest import ROOT
from tests.tiny import tiny_pipeline
from training.command import require_files

CARDS = [ROOT / "pretrained" / name / "README.md" for name in ("lite", "text")]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *CARDS]
# What is not done here, by how a command begins, and why.
EXCEPTIONS = {
    "make": "installs, or runs what stands below it",
    "python3 -m venv": "installs",
    "python -m pip": "installs",
    "python -m pytest": "is what runs this",
    "python -m ruff": "is make lint",
    "python -m benchmarks.": "takes minutes to hours; tests/test_benchmarks.py and others run them in small",
    "python -m batch": "tests/batch runs it on a local Ray",
    "python -m deployment.": "tests/deployment runs each on small networks",
    "python sample.py photo.jpg --checkpoint deployed/": "needs an export; tests/deployment makes one",
    "python -m tools.": "tests/tools runs each on small data",
    "python app.py": "serves until it is stopped; tests/test_app.py uses it in a browser",
}


def blocks(language):
    """(page, code) of every fenced block in a language; in bash or in none for commands."""
    found = []
    for page in PAGES:
        for block in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```", page.read_text(), re.DOTALL | re.MULTILINE):
            if block[2] in language:
                found.append((page.name, block[3]))
    return found


def commands():
    """(page, words) of every command, without torchrun's and srun's part of it."""
    found = []
    for page, code in blocks(("", "bash")):
        for line in code.replace("\\\n", " ").splitlines():
            line = re.sub(r"^(torchrun|srun) .*?(?=(train|sample|evaluate)\.py)", "python ", line.strip())
            line = re.sub(r"^(OMP_NUM_THREADS=1 )?(\.venv/bin/)?python ", "python ", line).replace(
                "python python", "python"
            )
            if re.match(r"(python3?|make) ", line):
                found.append((page, shlex.split(line, comments=True)))
    return found


def reason(words):
    line = " ".join(words)
    return next((why for start, why in EXCEPTIONS.items() if line.startswith(start)), None)


RUN = [(page, words) for page, words in commands() if reason(words) is None]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which everything that the pages name is there."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("configs", "pretrained"):
        (folder / name).symlink_to(ROOT / name)
    generator = torch.Generator().manual_seed(0)

    def write(*names):
        for name in names:
            images.write(folder / name, torch.rand(3, 24, 20, generator=generator))

    write("photo.jpg", "page.jpg", "docs/page_blurry.jpg", *(f"runs/text/restored/{name}.png" for name in ("a", "b")))
    write("photos/a.png", "scans/sub/b.tif", "docs/examples/c.jpg", "runs/demo/photos/clock_motion.png")
    write("PHOTOS/a.png", "OTHER_PHOTOS/b.png", *(f"baseline/results/{name}.png" for name in ("a", "b")))
    write(*(f"baselines/unsharp_mask/{name}.png" for name in ("a", "b")))
    for data in ("GoPro", "PAIRS", "OTHER_PAIRS", "camera", "already_sharp", "runs/demo/photos", "TEXT_TEST"):
        write(*(f"{data}/{side}/{name}.png" for side in ("blur", "sharp") for name in ("a", "b")))
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "docs/extend.md").read_text(), re.DOTALL):
        (folder / name).write_text(text)
    for name in ("runs/demo", "runs/finetune", "runs/gopro_lite", "runs/first", "runs/int8", "first", "second"):
        pipeline = tiny_pipeline()
        # As evaluate.py --save_presets true stores them; eta belongs to ddim, and pages choose other samplers.
        pipeline.register_to_config(presets={"balanced": {"steps": 2, "eta": 1.0}, "perceptual": {"steps": 2}})
        pipeline.save_pretrained(folder / name / "checkpoint")
    return folder


@pytest.fixture(scope="module")
def parser(place):
    """What train.py parses with."""
    before = os.getcwd()
    os.chdir(place)
    try:
        return train.cli(["--config", "configs/demo.yaml", "--data.train", "PHOTOS"], run=False).parser
    finally:
        os.chdir(before)


def test_there_are_commands_and_every_exception_is_one():
    lines = [" ".join(words) for _, words in commands()]
    assert len(RUN) > 30
    for start in EXCEPTIONS:
        assert any(line.startswith(start) for line in lines), f"no page says {start}: remove the exception"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("page", "words"), RUN, ids=[f"{page}-{at}" for at, (page, _) in enumerate(RUN)])
def test_a_command_of_the_pages(place, parser, monkeypatch, tmp_path, capsys, page, words):
    """sample.py runs. evaluate.py stops where the device is looked for, when all else was found right; training is
    parsed with its config, and its paths are looked for."""
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    script, *args = words[1:]
    if script == "sample.py":
        args = [value for value in args if value != "more/IMG_1.heic"]  # an optional extra reads these
        args[args.index("--output") + 1] = str(tmp_path / Path(args[args.index("--output") + 1]).name)
        steps = [] if "--steps" in args else ["--steps", "2"]
        assert sample.main([*args, *steps, "--device", "cpu"]) == 0, capsys.readouterr().err
        assert "wrote" in capsys.readouterr().out
    elif script == "evaluate.py":
        args[args.index("--output") + 1] = str(tmp_path / "scores")
        with pytest.raises(ValueError, match="device cuda:99 cannot be used here"):
            evaluate.cli([*args, "--device", "cuda:99"])
    else:
        assert script == "train.py", f"nothing here runs {script}, and it is no exception"
        require_files(args[0], parser.parse_args(args[1:]))


def test_the_python_of_the_pages(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    elsewhere = ("web.md", "extend.md")  # tests/test_app.py has the page it needs; tests/test_extend.py
    found = [block for block in blocks(("python",)) if block[0] not in elsewhere]
    assert len(found) == 3
    for _, code in found:
        names = {"restored": torch.rand(1, 3, 40, 40), "sharp": torch.rand(1, 3, 40, 40)}
        exec(code, names)
    assert Path("restored.png").is_file() and capsys.readouterr().out.count("RGB, clipped to [0, 1]") == 3


def test_every_page_links_to_the_glossary_which_explains_words_of_the_program():
    glossary = ROOT / "docs" / "glossary.md"
    for page in PAGES:
        links = re.findall(r"\]\(([^)#]+)", page.read_text())
        assert page == glossary or glossary in [(page.parent / link).resolve() for link in links], page
    words = re.findall(r"^\| `?(\w+)", glossary.read_text(), re.MULTILINE)
    assert {"predictor_training", "scale_kind", "noises", "keep_sharp", "start", "blend"} <= set(words)
    sources = "".join(path.read_text() for path in (ROOT / "models").glob("*.py"))
    for name in re.findall(r"^\| `(\w+)", glossary.read_text(), re.MULTILINE):
        assert re.search(rf"\b{name}\b", sources), name


def test_the_citation_and_the_security_page_say_what_the_program_has():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["preferred-citation"]["year"] == 2022
    security = (ROOT / "SECURITY.md").read_text()
    flags = {field.name for kind in (app.Served, sample.Options) for field in fields(kind)}
    assert set(re.findall(r"--(\w+)", security)) - {"require"} <= flags | {"hashes"}
    assert f"limited to {MOST_METADATA >> 20} MiB" in security
    assert all(name.lower() in security.lower() for name in READ)
