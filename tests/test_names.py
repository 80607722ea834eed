"""The one import name: from a checkout beside other packages, and after pip install."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import deblur
from deblur.data.files import images
from tests.conftest import ROOT

pytestmark = pytest.mark.commands
FOREIGN = ("models", "data", "training", "evaluation", "tools")


@pytest.fixture
def project(tmp_path):
    """The folder of another project, with packages of the same names, and a photograph."""
    for name in FOREIGN:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("THEIRS = True\n")
    images.write(tmp_path / "photo.png", torch.rand(3, 30, 40))
    return tmp_path


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The programs of an environment with this one's packages, into which pip installed a copy of the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / "clone" / name, follow_symlinks=False)
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=300)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet"]
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    flags.append("--config-settings=--build-option=--compression=stored")  # the weights take seconds to compress
    done = subprocess.run([*pip, *flags, folder / "clone"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(folder / "clone")
    return environment / "bin"


def said(*command, folder):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # of tests.processes
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


HUB = """
import sys
import torch
from PIL import Image
pipeline = torch.hub.load(sys.argv[1], "pipeline", "lite", source="local")
image = Image.open("photo.png")
print(pipeline(image, "balanced").images[0].size, pipeline(image, "perceptual").images[0].size)
for precision in ("fp32", "bf16"):
    print(torch.hub.load(sys.argv[1], "pipeline", "lite", source="local", precision=precision).precision)
import models, data, training
print(models.THEIRS, data.THEIRS, training.THEIRS)
"""


def test_torch_hub_restores_beside_packages_of_the_same_names(project):
    done = said(sys.executable, "-c", HUB, ROOT, folder=project)
    assert done.stdout.splitlines() == ["(40, 30) (40, 30)", "fp32", "bf16", "True True True"], done.stderr


def test_a_script_restores_beside_packages_of_the_same_names(project):
    words = ["photo.png", "--output", "out", "--checkpoint", "lite"]
    done = said(sys.executable, ROOT / "sample.py", *words, folder=project)
    assert done.returncode == 0, done.stderr
    assert images.read(project / "out" / "photo.png").shape == (3, 30, 40)


INSTALLED = """
import sys
from PIL import Image
import deblur
from deblur import load_pipeline
load_pipeline("lite")(Image.open("photo.png")).images[0].save("restored.png")
import models
print(models.THEIRS, deblur.__file__, [name for name in sys.modules if name.startswith("models.")])
"""


def test_after_pip_install_python_restores(installed, project):
    done = said(installed / "python", "-c", INSTALLED, folder=project)
    assert done.returncode == 0, done.stderr
    theirs, file, twice = done.stdout.split()
    assert theirs == "True"
    assert Path(file).is_relative_to(installed.parent)
    assert twice == "[]"
    assert images.read(project / "restored.png").shape == (3, 30, 40)


def test_after_pip_install_the_command_restores(installed, project):
    words = ["photo.png", "--output", "out", "--checkpoint", "lite"]
    done = said(installed / "deblur", "sample", *words, folder=project)
    assert done.returncode == 0, done.stderr
    assert images.read(project / "out" / "photo.png").shape == (3, 30, 40)


EXPLAINED = """
import sys
from deblur.__main__ import COMMANDS, main
for command in COMMANDS:
    sys.argv = ["deblur", command, "--help"]
    try:
        main()
    except SystemExit as end:
        print(f"{command} ends with {end.code}")
"""


def test_after_pip_install_every_command_explains_itself(installed, tmp_path):
    listed = said(installed / "deblur", "--help", folder=tmp_path).stdout
    done = said(installed / "python", "-c", EXPLAINED, folder=tmp_path)
    commands = ["sample", "train", "evaluate", "app", "doctor", "make-pairs", "export", "batch"]
    assert re.findall(r"^([\w-]+) ends with 0$", done.stdout, re.MULTILINE) == commands, done.stderr
    assert len(re.findall("^usage: ", done.stdout, re.MULTILINE)) == len(commands)
    assert all(f"\n  {command} " in listed for command in commands)


def test_an_unknown_command_and_the_version_are_said(installed, tmp_path):
    done = said(installed / "deblur", "restore", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "deblur: error: restore is no command: it is one of sample, train, evaluate, app, doctor, make-pairs, export,"
        " batch\n"
    )
    assert said(installed / "deblur", "--version", folder=tmp_path).stdout == f"deblur {deblur.__version__}\n"


def test_without_its_weights_an_installation_says_so(installed, project):
    (place,) = installed.parent.glob("lib/python*/site-packages/deblur")
    shutil.move(place / "pretrained", project / "weights")
    try:
        done = said(installed / "deblur", "sample", "photo.png", "--output", "out", folder=project)
    finally:
        shutil.move(project / "weights", place / "pretrained")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "nor one that comes with the repository (none is there)" in done.stderr


def test_the_version_stands_in_the_changes():
    versions = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == deblur.__version__


def test_the_public_names_are_there():
    for name, module in deblur.PUBLIC.items():
        assert getattr(deblur, name).__module__ == module
    with pytest.raises(AttributeError, match="has no attribute nothing"):
        deblur.nothing  # noqa: B018
